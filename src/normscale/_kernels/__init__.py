"""The hot loops, and the choice between their two forms.

Everything above calls :func:`absorb`, :func:`stream_scores` and :func:`frozen_scores` here. They cut the rows into
blocks, convert what the kernels do not read natively (float16, integers, strided views) block by block, spread
blocks over threads, and call numba's kernels when numba is installed, numpy's otherwise. numba is first imported
when a kernel is first needed, so ``import normscale`` stays light.

``NORMSCALE_KERNELS=numpy`` or ``=numba`` forces one; unset or ``auto`` takes numba when it is there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from normscale._kernels.kinds import KINDS
from normscale.errors import InvalidInput, MissingExtra

__all__ = [
    "KINDS",
    "absorb",
    "backend",
    "combine",
    "frozen_scores",
    "less_row_means",
    "load_in_background",
    "predicted",
    "stream_scores",
]

FloatArray = NDArray[np.float64]
Result = TypeVar("Result")

_BLOCK_ELEMENTS = 1 << 19
_kernels: Backend | None = None
_before_compilation: Callable[[], object] | None = None


class Backend(Protocol):
    """What a back end offers; see :mod:`normscale._kernels.reference` for what each must do."""

    def absorb(self, rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray) -> bool:
        """Take rows into the statistics."""

    def stream_scores(
        self,
        rows: NDArray[Any],
        weight: float,
        mean: FloatArray,
        m2: FloatArray,
        kind: int,
        inverse_tau: float,
        out: FloatArray,
    ) -> bool:
        """Take rows in and score them."""

    def stream_row(
        self,
        row: NDArray[Any],
        weight: float,
        mean: FloatArray,
        m2: FloatArray,
        kind: int,
        inverse_tau: float,
        new_mean: FloatArray,
        new_m2: FloatArray,
        out: FloatArray,
    ) -> bool:
        """Take one row in and score it."""

    def predicted(self, rows: NDArray[Any], out: NDArray[np.int64]) -> None:
        """The first of the largest numbers of every row."""

    def less_row_means(self, rows: NDArray[Any], out: FloatArray) -> None:
        """Every row less its mean."""

    def frozen_scores(
        self, rows: NDArray[Any], shift: FloatArray, factor: FloatArray, kind: int, out: FloatArray
    ) -> bool:
        """Score rows with fixed statistics."""


class BlockState(NamedTuple):
    """Weight, mean and sum of squared deviations of some rows."""

    weight: float
    mean: FloatArray
    m2: FloatArray


def _load(wanted: str) -> Backend:
    from normscale._kernels import reference

    if wanted not in ("auto", "numba", "numpy"):
        raise InvalidInput(f"NORMSCALE_KERNELS must be 'auto', 'numba' or 'numpy'; got {wanted!r}.")
    if wanted == "numpy":
        return reference
    try:
        from normscale._kernels import compiled
    except ImportError as error:
        if wanted == "auto":
            return reference
        raise MissingExtra(
            f"NORMSCALE_KERNELS=numba, but numba cannot be imported ({error}). "
            "Run: pip install 'normscale[fast]', or unset the variable to use numpy."
        ) from error
    if _before_compilation is not None:
        _listen(_before_compilation)
    return compiled


def announce_compilation(say: Callable[[], object]) -> None:
    """Call ``say`` once, before numba compiles the first kernel, if it has to: it takes long and happens once.

    What was compiled before is read from disk in no time, and nothing is said.
    """
    global _before_compilation
    _before_compilation = say


def _listen(say: Callable[[], object]) -> None:
    from numba.core import event

    class FirstCompilation(event.Listener):
        """Speaks once."""

        said = False

        def on_start(self, event: Any) -> None:
            if not FirstCompilation.said:
                FirstCompilation.said = True
                say()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", FirstCompilation())  # type: ignore[no-untyped-call]


def _active() -> Backend:
    global _kernels
    if _kernels is None:
        _kernels = _load(os.environ.get("NORMSCALE_KERNELS", "auto"))
    return _kernels


def load_in_background(after: float = 0.0) -> threading.Thread | None:
    """Get to work with numpy's kernels at once, and change to numba's when they are loaded.

    For a service that must be ready soon: importing numba takes as long as all the rest. It begins ``after`` some
    seconds. None when there is nothing to wait for.
    """
    global _kernels
    wanted = os.environ.get("NORMSCALE_KERNELS", "auto")
    if _kernels is not None or wanted != "auto":
        _active()
        return None
    _kernels = _load("numpy")

    def change() -> None:
        global _kernels
        time.sleep(after)
        better = _load("auto")
        for dtype in (np.float32, np.float64):
            for n in (1, 2):  # the first call of a kernel reads it from disk, or compiles it
                rows, out = np.ones((n, 2), dtype), np.empty(n)
                better.predicted(rows, np.empty(n, np.int64))
                better.absorb(rows, 0.0, np.zeros(2), np.zeros(2))
                better.stream_scores(rows, 1.0, np.zeros(2), np.ones(2), 0, 1.0, out)
                better.frozen_scores(rows, np.zeros(2), np.ones(2), 0, out)
            better.stream_row(rows[:1], 1.0, np.zeros(2), np.ones(2), 0, 1.0, np.empty(2), np.empty(2), out[:1])
        _kernels = better

    thread = threading.Thread(target=change, name="kernels", daemon=True)
    thread.start()
    return thread


def backend() -> str:
    """``"numba"`` or ``"numpy"``: which kernels run in this process."""
    return "numpy" if _active().__name__.endswith("reference") else "numba"  # type: ignore[attr-defined]


def combine(a: BlockState, b: BlockState) -> BlockState:
    """The statistics of two sets of rows together (Chan, Golub & LeVeque 1983)."""
    weight = a.weight + b.weight
    if a.weight == 0.0 or b.weight == 0.0:
        return BlockState(weight, *((b if a.weight == 0.0 else a)[1:]))
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.weight / weight)
    m2 = a.m2 + b.m2 + delta * delta * (a.weight * (b.weight / weight))
    return BlockState(weight, mean, m2)


def _native(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows as the kernels read them: contiguous float32 or float64."""
    dtype = rows.dtype
    if dtype.char not in "fd":
        dtype = np.dtype(np.float32 if dtype.char == "e" else np.float64)
    return np.ascontiguousarray(rows, dtype=dtype.newbyteorder("="))


def _blocks(rows: NDArray[Any], threads: int) -> list[slice]:
    """Cut rows into blocks, to convert or to share them; what one thread can read as it stands is left whole."""
    if threads == 1 and rows.dtype.char in "fd" and rows.dtype.isnative and rows.flags.c_contiguous:
        return [slice(0, rows.shape[0])] if rows.shape[0] else []
    step = max(256, _BLOCK_ELEMENTS // rows.shape[1])
    return [slice(a, a + step) for a in range(0, rows.shape[0], step)]


def _in_threads(work: Callable[[slice], Result], blocks: list[slice], threads: int) -> list[Result]:
    if threads == 1:
        return [work(block) for block in blocks]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, blocks))


def _moments_of_blocks(rows: NDArray[Any], blocks: list[slice], threads: int) -> list[BlockState | None]:
    """Every block's own statistics; None for a block that cannot be taken in."""
    kernels, width = _active(), rows.shape[1]

    def own(block: slice) -> BlockState | None:
        part = _native(rows[block])
        state = BlockState(float(part.shape[0]), np.zeros(width), np.zeros(width))
        return state if kernels.absorb(part, 0.0, state.mean, state.m2) else None

    return _in_threads(own, blocks, threads)


def absorb(rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray, threads: int = 1) -> BlockState | None:
    """The statistics with rows (n, C) taken in; None when a row holds NaN, infinity or too large a number."""
    kernels = _active()
    if threads == 1:
        mean, m2 = mean.copy(), m2.copy()
        for block in _blocks(rows, threads):
            if not kernels.absorb(_native(rows[block]), weight + block.start, mean, m2):
                return None
        return BlockState(weight + rows.shape[0], mean, m2)

    total = BlockState(weight, mean.copy(), m2.copy())
    for part in _moments_of_blocks(rows, _blocks(rows, threads), threads):
        if part is None:
            return None
        total = combine(total, part)
    return total if np.isfinite(total.m2).all() else None


def stream_scores(
    rows: NDArray[Any],
    weight: float,
    mean: FloatArray,
    m2: FloatArray,
    kind: int,
    inverse_tau: float,
    out: FloatArray,
    threads: int = 1,
) -> BlockState | None:
    """Take rows (n, C) in one by one, score each into ``out`` (n,), and return the statistics after the last.

    With several threads: first every block's own statistics, then their running combination, which is what each
    block starts from, then the blocks' scores. None when a row cannot be taken in; nothing given is changed.
    """
    kernels = _kernels or _active()
    dtype = rows.dtype
    if rows.shape[0] == 1 and dtype.char in "fd" and dtype.isnative and rows.flags.c_contiguous:  # a row at a time
        width = rows.shape[1]
        new_mean, new_m2 = np.empty(width), np.empty(width)
        if kernels.stream_row(rows, weight, mean, m2, kind, inverse_tau, new_mean, new_m2, out):
            return tuple.__new__(BlockState, (weight + 1.0, new_mean, new_m2))  # half the time of BlockState(...)
        return None
    blocks = _blocks(rows, threads)
    if threads == 1 or len(blocks) < 2:
        mean, m2 = mean.copy(), m2.copy()
        for block in blocks:
            done = weight + block.start
            if not kernels.stream_scores(_native(rows[block]), done, mean, m2, kind, inverse_tau, out[block]):
                return None
        return BlockState(weight + rows.shape[0], mean, m2)

    starts: dict[int, BlockState] = {}
    total = BlockState(weight, mean, m2)
    for block, part in zip(blocks, _moments_of_blocks(rows, blocks, threads), strict=True):
        if part is None:
            return None
        starts[block.start] = total
        total = combine(total, part)

    def score(block: slice) -> bool:
        before = starts[block.start]
        part = _native(rows[block])
        return kernels.stream_scores(
            part, before.weight, before.mean.copy(), before.m2.copy(), kind, inverse_tau, out[block]
        )

    return total if all(_in_threads(score, blocks, threads)) and np.isfinite(total.m2).all() else None


def predicted(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The predicted class of every row of finite numbers (n, C): the first of the largest; shape (n,)."""
    out = np.empty(rows.shape[0], dtype=np.int64)
    if rows.shape[0]:
        _active().predicted(_native(rows), out)
    return out


def less_row_means(rows: NDArray[Any]) -> FloatArray:
    """Rows (n, C) less their means; a row that is not finite or too large gives numbers that are not finite."""
    out = np.empty(rows.shape)
    if rows.shape[0]:
        _active().less_row_means(_native(rows), out)
    return out


def frozen_scores(
    rows: NDArray[Any], shift: FloatArray, factor: FloatArray, kind: int, out: FloatArray, threads: int = 1
) -> bool:
    """Score rows (n, C) as (row - shift) * factor into ``out`` (n,); False when a row is not finite."""
    kernels = _active()

    def score(block: slice) -> bool:
        return kernels.frozen_scores(_native(rows[block]), shift, factor, kind, out[block])

    return all(_in_threads(score, _blocks(rows, threads), threads))
