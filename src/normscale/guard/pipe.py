"""A guard between two pipes: whatever has arrived is one block; its answers leave before more is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.npy_header import take_npy_header
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.block import require_numbers
from normscale.guard.guard import Guard
from normscale.guard.request import Verdict
from normscale.outputs import LOGITS, ModelOutputs
from normscale.tables.formats import format_by_content
from normscale.tables.pipe import PipeSource

_CHUNK = 1 << 16
_LONGEST_LINE = 16 << 20


class PipeTotals(NamedTuple):
    """How many rows went through, were flagged, and were skipped."""

    rows: int = 0
    flagged: int = 0
    skipped: int = 0


def watch_pipe(
    guard: Guard, source: BinaryIO, target: BinaryIO, *, skip: bool = False, say: Callable[[str], None] = lambda _: None
) -> PipeTotals:
    """Read JSON lines or one .npy array from ``source`` until it ends; write a JSON line for every row.

    A line that cannot be scored is an error, or with ``skip`` answered with ``{"error": ...}`` and passed over. ``say``
    hears, in words, when the guard freezes and thaws.
    """
    totals, mode = PipeTotals(), guard.mode
    for block in _blocks(source, guard.widths):
        totals = _answer(guard, block, target, totals, skip)
        target.flush()
        if guard.mode != mode:
            mode = guard.mode
            say(f"frozen: {guard.state.frozen.because}" if guard.state.frozen else "running again: the stream is calm.")
    return totals


class _Line(NamedTuple):
    """One row of input, or why it is none."""

    number: int
    row: dict[str, NDArray[Any]]
    """Arrays by name, without the axis of rows."""
    others: dict[str, Any]
    error: str = ""


def _answer(guard: Guard, block: list[_Line], target: BinaryIO, totals: PipeTotals, skip: bool) -> PipeTotals:
    checked: list[_Line] = []
    for line in _checked(guard, block):
        if line.error and not skip:
            _score(guard, checked, target)  # those before it are answered and taken in
            target.flush()
            raise InvalidInput(f"line {line.number}: {line.error} (--on-invalid skip goes on)")
        checked.append(line)
    verdict = _score(guard, checked, target)
    bad = sum(bool(line.error) for line in checked)
    flagged = int(np.count_nonzero(verdict.is_ood)) if verdict is not None else 0
    return PipeTotals(totals.rows + len(checked) - bad, totals.flagged + flagged, totals.skipped + bad)


def _checked(guard: Guard, block: list[_Line]) -> Iterator[_Line]:
    """The lines, those that the guard would refuse marked as such."""
    rows = [line.row for line in block if not line.error]
    try:
        if rows:
            _stacked(guard, rows)
        yield from block
    except ValueError:  # some line is wrong; find it
        for line in block:
            error = line.error
            if not error:
                try:
                    _stacked(guard, [line.row])
                except InvalidInput as invalid:
                    error = str(invalid)
            yield line._replace(error=error)


def _stacked(guard: Guard, rows: list[dict[str, NDArray[Any]]]) -> ModelOutputs:
    """Rows as outputs that the guard takes; ``ValueError`` when one of them is wrong."""
    outputs = guard.checked({name: np.stack([row[name] for row in rows]) for name in guard.widths})
    for name in outputs.names:
        require_numbers(outputs.array(name), name)
    return outputs


def _score(guard: Guard, lines: list[_Line], target: BinaryIO) -> Verdict | None:
    """Answer good lines as one request, and write all lines in their order."""
    good = [line.row for line in lines if not line.error]
    verdict: Verdict | None = None
    if good:
        verdict = guard.score(_stacked(guard, good), client="pipe")
    answers = iter(()) if verdict is None else _rows_of(verdict)
    for line in lines:
        answer = {"error": line.error, "line": line.number} if line.error else next(answers)
        target.write(write_json({**line.others, **answer}).encode() + b"\n")
    return verdict


def _rows_of(verdict: Verdict) -> Iterator[dict[str, Any]]:
    for score, is_ood, predicted in zip(
        verdict.scores.tolist(), verdict.is_ood.tolist(), verdict.predicted.tolist(), strict=True
    ):
        yield {"score": score, "is_ood": is_ood, "predicted": predicted, "mode": verdict.mode}


def _blocks(source: BinaryIO, widths: Mapping[str, int]) -> Iterator[list[_Line]]:
    pipe = PipeSource(source, "the pipe", owned=False)
    head = pipe.head()
    if format_by_content(head) == "npy":
        if len(widths) > 1:
            raise InvalidInput(
                f"a .npy holds logits alone, and this guard needs {' and '.join(widths)}; send JSON lines."
            )
        yield from _npy_blocks(pipe, widths[LOGITS])
    elif head:
        yield from _json_blocks(pipe, widths)


def _json_blocks(pipe: PipeSource, names: Collection[str]) -> Iterator[list[_Line]]:
    number, rest = 0, b""
    while data := pipe.read1(_CHUNK):  # whatever is there, without waiting for more
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        if len(rest) > _LONGEST_LINE:
            raise FileFormatError(
                f"line {number + len(lines) + 1} is longer than {_LONGEST_LINE} bytes; is it JSON lines?"
            )
        if lines:
            block = [_parse(number + i, line, names) for i, line in enumerate(lines, 1) if line.strip()]
            number += len(lines)
            if block:
                yield block
    if rest.strip():
        yield [_parse(number + 1, rest, names)]


def _parse(number: int, line: bytes, names: Collection[str]) -> _Line:
    try:
        document = read_json(line)
    except ValueError as error:
        return _Line(number, {}, {}, f"not JSON ({error})")
    if not isinstance(document, dict):
        document = {LOGITS: document}
    others = {key: value for key, value in document.items() if key not in names}
    row: dict[str, NDArray[Any]] = {}
    for name in names:
        numbers = document.get(name)
        if not isinstance(numbers, list) or not all(type(value) in (int, float) for value in numbers):
            wanted = ", ".join(f'"{each}": [numbers]' for each in names)
            bare = " or a list of numbers" if len(names) == 1 else f"; {name} is not there or no list of numbers"
            return _Line(number, {}, others, f"each line must be {{{wanted}}}{bare}")
        try:
            row[name] = np.array(numbers, np.float64)
        except OverflowError:
            return _Line(number, {}, others, "a number is too large for float64")
    return _Line(number, row, others)


def _npy_blocks(pipe: PipeSource, width: int) -> Iterator[list[_Line]]:
    """Rows of an array as their bytes arrive."""
    try:
        header = take_npy_header(pipe)
    except ValueError as error:
        raise FileFormatError(f"the .npy on the pipe has a damaged header ({error}).") from error
    shape, dtype = header.shape, header.dtype
    if dtype.kind not in "fiu" or header.fortran_order:
        raise InvalidInput(f"the .npy on the pipe must hold real numbers in C order; got {dtype}.")
    if len(shape) != 2 or shape[1] != width:
        raise InvalidInput(f"logits must have shape (n, {width}); the .npy on the pipe has {shape}.")
    rest, number = b"", 0
    while number < shape[0]:
        if len(rest) < header.row_bytes:
            more = pipe.read1(_CHUNK)
            if not more:
                raise FileFormatError(f"the .npy on the pipe ends after {number} of {shape[0]} rows; it is cut off.")
            rest += more
            continue
        n = min(len(rest) // header.row_bytes, shape[0] - number)
        rows = np.frombuffer(rest, dtype, n * width).reshape(n, width)
        rest = rest[n * header.row_bytes :]
        yield [_Line(number + i + 1, {LOGITS: row}, {}) for i, row in enumerate(rows)]
        number += n
