"""The hot loops, and the choice between their two forms.

The functions here cut the rows into blocks, convert what the kernels do not read natively (float16, integers, strided
views) block by block, spread blocks over threads, and call numba's kernels when numba is installed, numpy's otherwise.
numba is first imported when a kernel is first needed, so ``import normscale`` stays light.

``NORMSCALE_KERNELS=numpy`` or ``=numba`` forces one; unset or ``auto`` takes numba when it is there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from normscale.errors import InvalidInput, MissingExtra

FloatArray = NDArray[np.float64]
Item = TypeVar("Item")
Result = TypeVar("Result")
Backend = ModuleType
""":mod:`normscale._kernels.compiled`, or :mod:`normscale._kernels.reference`, which says what each function does."""

LOG_ODDS, MAX, LOG_SUM_EXP = 0, 1, 2
KINDS = {"log_odds": LOG_ODDS, "max": MAX, "log_sum_exp": LOG_SUM_EXP}
"""Log-odds of the prediction being wrong; minus the largest; minus the log-sum-exp."""
TINY_VARIANCE = 1e-300
"""Floor of a variance: a class that never varied, with deviation 0 and variance 0, scales to 0."""

_BLOCK_ELEMENTS = 1 << 19
_kernels: Backend | None = None
_before_compilation: Callable[[], object] | None = None


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
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                self.said = True
                say()

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", FirstCompilation())  # type: ignore[no-untyped-call]


def active() -> Backend:
    """The kernels that run in this process."""
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
    if _kernels is not None or os.environ.get("NORMSCALE_KERNELS", "auto") != "auto":
        active()
        return None
    _kernels = _load("numpy")

    def change() -> None:
        global _kernels
        time.sleep(after)
        better = _load("auto")
        for dtype in (np.float32, np.float64):  # the first call of a kernel reads it from disk, or compiles it
            rows, out, mean, m2 = np.ones((1, 2), dtype), np.empty(1), np.zeros(2), np.ones(2)
            better.predicted(rows, np.empty(1, np.int64))
            better.absorb(rows, 0.0, mean, m2)
            better.stream_scores(rows, 1.0, mean, m2, 0, 1.0, out)
            better.frozen_scores(rows, mean, m2, 0, out)
            better.stream_row(rows, 1.0, mean, m2, 0, 1.0, 0.0, 2.0, np.empty(2), np.empty(2), out)
        _kernels = better

    thread = threading.Thread(target=change, name="kernels", daemon=True)
    thread.start()
    return thread


def backend() -> str:
    """``"numba"`` or ``"numpy"``: which kernels run in this process."""
    return "numpy" if active().__name__.endswith("reference") else "numba"


def combine(a: BlockState, b: BlockState) -> BlockState:
    """The statistics of two sets of rows together (Chan, Golub & LeVeque 1983)."""
    weight = a.weight + b.weight
    if a.weight == 0.0 or b.weight == 0.0:
        return BlockState(weight, *((b if a.weight == 0.0 else a)[1:]))
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.weight / weight)
    m2 = a.m2 + b.m2 + delta * delta * (a.weight * (b.weight / weight))
    return BlockState(weight, mean, m2)


def native(rows: NDArray[Any]) -> NDArray[Any]:
    """The rows as the kernels read them: contiguous float32 or float64."""
    dtype = rows.dtype
    if dtype.char not in "fd":
        dtype = np.dtype(np.float32 if dtype.char == "e" else np.float64)
    return np.ascontiguousarray(rows, dtype=dtype.newbyteorder("="))


def in_blocks(work: Callable[[slice], Result], rows: NDArray[Any], threads: int = 1) -> list[Result]:
    """What ``work`` gives for blocks of rows, to convert or to share them; several threads work side by side.

    What one thread can read as it stands is left whole.
    """
    n_rows, n_columns = rows.shape
    step = max(256, _BLOCK_ELEMENTS // n_columns)
    if threads == 1 and rows.dtype.char in "fd" and rows.dtype.isnative and rows.flags.c_contiguous:
        step = max(1, n_rows)
    return side_by_side(work, [slice(a, min(a + step, n_rows)) for a in range(0, n_rows, step)], threads)


def side_by_side(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """What ``work`` gives for every item, in order, on so many threads."""
    if threads == 1:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, items))


def _own_moments(rows: NDArray[Any], threads: int) -> list[BlockState | None]:
    """Every block's own statistics; None for a block that cannot be taken in."""

    def own(block: slice) -> BlockState | None:
        state = BlockState(float(block.stop - block.start), *np.zeros((2, rows.shape[1])))
        return state if active().absorb(native(rows[block]), 0.0, state.mean, state.m2) else None

    return in_blocks(own, rows, threads)


def absorb(rows: NDArray[Any], weight: float, mean: FloatArray, m2: FloatArray, threads: int = 1) -> BlockState | None:
    """The statistics with rows (n, C) taken in; None when a row holds NaN, infinity or too large a number."""
    if threads == 1:
        mean, m2 = mean.copy(), m2.copy()

        def take_in(block: slice) -> bool:
            return bool(active().absorb(native(rows[block]), weight + block.start, mean, m2))

        return BlockState(weight + rows.shape[0], mean, m2) if all(in_blocks(take_in, rows)) else None
    total = BlockState(weight, mean.copy(), m2.copy())
    for part in _own_moments(rows, threads):
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
    kernels = active()
    total, starts = BlockState(weight, mean.copy(), m2.copy()), {}
    if threads > 1:
        done = 0
        for part in _own_moments(rows, threads):
            if part is None:
                return None
            starts[done] = total
            total, done = combine(total, part), done + int(part.weight)

    def score(block: slice) -> bool:
        state = starts.get(block.start, total)  # with one thread there is one, which moves on from block to block
        part = native(rows[block])
        moved = kernels.stream_scores(part, weight + block.start, state.mean, state.m2, kind, inverse_tau, out[block])
        return bool(moved)

    if not all(in_blocks(score, rows, threads)) or not np.isfinite(total.m2).all():
        return None
    return BlockState(weight + rows.shape[0], total.mean, total.m2)


def outside(rows: NDArray[Any], low: float, high: float) -> bool:
    """Whether any number of rows (n, C) is below ``low``, above ``high`` or NaN."""
    return any(in_blocks(lambda block: active().outside(native(rows[block]).reshape(-1), low, high), rows))


def predicted(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The predicted class of every row of finite numbers (n, C): the first of the largest; shape (n,)."""
    out = np.empty(rows.shape[0], dtype=np.int64)
    in_blocks(lambda block: active().predicted(native(rows[block]), out[block]), rows)
    return out


def less_row_means(rows: NDArray[Any]) -> FloatArray:
    """Rows (n, C) less their means; a row that is not finite or too large gives numbers that are not finite."""
    out = np.empty(rows.shape)
    in_blocks(lambda block: active().less_row_means(native(rows[block]), out[block]), rows)
    return out


def members_of_each(classes: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Every class that occurs in ``classes`` (n,), in order, with its rows, in order; one sort for all of them.

    Examples
    --------
    >>> [(c, rows.tolist()) for c, rows in members_of_each(np.array([2, 0, 2]))]
    [(0, [1]), (2, [0, 2])]
    """
    order = np.argsort(classes, kind="stable")
    found, starts = np.unique(classes[order], return_index=True)
    return zip(found.tolist(), np.split(order, starts[1:]), strict=False)  # no rows: no class, and one empty part


def frozen_scores(
    rows: NDArray[Any], shift: FloatArray, factor: FloatArray, kind: int, threads: int = 1
) -> FloatArray | None:
    """Scores (n,) of (rows - shift) * factor for rows (n, C); None when a row is not finite."""
    out, frozen = np.empty(rows.shape[0]), active().frozen_scores
    done = in_blocks(lambda block: frozen(native(rows[block]), shift, factor, kind, out[block]), rows, threads)
    return out if all(done) else None
