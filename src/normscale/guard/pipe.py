"""A guard between two pipes: whatever has arrived is one block; its answers leave before more is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.npy_header import take_npy_header
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.duty import Guard, Request
from normscale.guard.entries import block_moments
from normscale.guard.verdict import Verdict
from normscale.tables.formats import format_by_content
from normscale.tables.pipe import PipeSource

_CHUNK = 1 << 16
_LONGEST_LINE = 16 << 20


class Totals(NamedTuple):
    """What went through."""

    rows: int = 0
    flagged: int = 0
    skipped: int = 0


def watch_pipe(
    guard: Guard, source: BinaryIO, target: BinaryIO, *, skip: bool = False, say: Callable[[str], None] = lambda _: None
) -> Totals:
    """Read JSON lines or one .npy array from ``source`` until it ends; write a JSON line for every row.

    A line that cannot be scored is an error, or with ``skip`` answered with ``{"error": ...}`` and passed over. ``say``
    hears, in words, when the guard freezes and thaws.
    """
    totals, mode = Totals(), guard.mode
    for block in _blocks(source, guard.n_classes):
        totals = _answer(guard, block, target, totals, skip)
        target.flush()
        if guard.mode != mode:
            mode = guard.mode
            say(f"frozen: {guard.state.frozen.because}" if guard.state.frozen else "running again: the stream is calm.")
    return totals


class _Line(NamedTuple):
    """One row of input, or why it is none."""

    number: int
    row: NDArray[Any] | None
    others: dict[str, Any]
    error: str = ""


def _answer(guard: Guard, block: list[_Line], target: BinaryIO, totals: Totals, skip: bool) -> Totals:
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
    return Totals(totals.rows + len(checked) - bad, totals.flagged + flagged, totals.skipped + bad)


def _checked(guard: Guard, block: list[_Line]) -> Iterator[_Line]:
    """The lines, those that the guard would refuse marked as such."""
    rows = [line.row for line in block if line.row is not None]
    try:
        if rows:
            block_moments(guard.checked(np.stack(rows)))
        yield from block
    except ValueError:  # some line is wrong; find it
        for line in block:
            error = line.error
            if line.row is not None:
                try:
                    block_moments(guard.checked(line.row[None, :]))
                except InvalidInput as invalid:
                    error = str(invalid)
            yield line._replace(error=error)


def _score(guard: Guard, lines: list[_Line], target: BinaryIO) -> Verdict | None:
    """Answer good lines as one request, and write all lines in their order."""
    good = [line.row for line in lines if not line.error and line.row is not None]
    verdict: Verdict | None = None
    if good:
        (answered,) = guard.process([Request(guard.checked(np.stack(good)), client="pipe")])
        if isinstance(answered, InvalidInput):
            raise answered
        verdict = answered
    answers = iter(()) if verdict is None else _rows_of(verdict)
    for line in lines:
        told = {"error": line.error, "line": line.number} if line.error else next(answers)
        target.write(write_json({**line.others, **told}).encode() + b"\n")
    return verdict


def _rows_of(verdict: Verdict) -> Iterator[dict[str, Any]]:
    for score, is_ood, predicted in zip(
        verdict.scores.tolist(), verdict.is_ood.tolist(), verdict.predicted.tolist(), strict=True
    ):
        yield {"score": score, "is_ood": is_ood, "predicted": predicted, "mode": verdict.mode}


def _blocks(source: BinaryIO, width: int) -> Iterator[list[_Line]]:
    pipe = PipeSource(source, "the pipe", owned=False)
    head = pipe.head()
    if format_by_content(head) == "npy":
        yield from _npy_blocks(pipe, width)
    elif head:
        yield from _json_blocks(pipe)


def _json_blocks(pipe: PipeSource) -> Iterator[list[_Line]]:
    number, rest = 0, b""
    while data := pipe.read1(_CHUNK):  # whatever is there, without waiting for more
        lines = (rest + data).split(b"\n")
        rest = lines.pop()
        if len(rest) > _LONGEST_LINE:
            raise FileFormatError(
                f"line {number + len(lines) + 1} is longer than {_LONGEST_LINE} bytes; is it JSON lines?"
            )
        if lines:
            block = [_parse(number + i, line) for i, line in enumerate(lines, 1) if line.strip()]
            number += len(lines)
            if block:
                yield block
    if rest.strip():
        yield [_parse(number + 1, rest)]


def _parse(number: int, line: bytes) -> _Line:
    try:
        document = read_json(line)
    except ValueError as error:
        return _Line(number, None, {}, f"not JSON ({error})")
    others: dict[str, Any] = {}
    if isinstance(document, dict):
        others = {key: value for key, value in document.items() if key != "logits"}
        document = document.get("logits")
    numbers = isinstance(document, list) and all(type(value) in (int, float) for value in document)
    if not numbers:
        return _Line(number, None, others, 'each line must be {"logits": [numbers]} or a list of numbers')
    try:
        return _Line(number, np.array(document, np.float64), others)
    except OverflowError:
        return _Line(number, None, others, "a number is too large for float64")


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
        yield [_Line(number + i + 1, row, {}) for i, row in enumerate(rows)]
        number += n
