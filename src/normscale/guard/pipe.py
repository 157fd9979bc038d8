"""A guard between two pipes: whatever has arrived is one block; its answers leave before more is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.npy_header import MAGIC
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.guard import Guard
from normscale.outputs import LOGITS, ModelOutputs
from normscale.rows.streams import LineTooLong, Pipe, whole_lines

_LONGEST_LINE = 16 << 20


class PipeTotals(NamedTuple):
    """How many rows went through, were flagged, and were skipped."""

    rows: int = 0
    flagged: int = 0
    skipped: int = 0


class _Line(NamedTuple):
    """One row of input, or why it is none."""

    number: int
    row: dict[str, NDArray[Any]]
    """Arrays by name, without the axis of rows."""
    others: dict[str, Any]
    error: str = ""


def watch_pipe(
    guard: Guard, source: BinaryIO, target: BinaryIO, *, skip: bool = False, say: Callable[[str], None] = lambda _: None
) -> PipeTotals:
    """Read JSON lines from ``source`` until it ends; write a JSON line for every row.

    A line that cannot be scored is an error, or with ``skip`` answered with ``{"error": ...}`` and passed over. ``say``
    hears, in words, when the guard freezes and thaws.
    """
    totals, mode = PipeTotals(), guard.mode
    for block in _blocks(Pipe(source, "the pipe"), guard.widths):
        lines = _checked(guard, block)
        bad = [i for i, line in enumerate(lines) if line.error]
        stop = bad[0] if bad and not skip else len(lines)
        flagged = _answer(guard, lines[:stop], target)  # what comes before a bad line is answered and taken in
        target.flush()
        if stop < len(lines):
            raise InvalidInput(f"line {lines[stop].number}: {lines[stop].error} (--on-invalid skip goes on)")
        rows = len(lines) - len(bad)
        totals = PipeTotals(totals.rows + rows, totals.flagged + flagged, totals.skipped + len(bad))
        if guard.mode != mode:
            mode = guard.mode
            say(f"frozen: {guard.state.frozen.because}" if guard.state.frozen else "running again: the stream is calm.")
    return totals


def _checked(guard: Guard, block: list[_Line]) -> list[_Line]:
    if _trouble(guard, block):
        block = [line if line.error else line._replace(error=_trouble(guard, [line])) for line in block]
    return block


def _trouble(guard: Guard, lines: list[_Line]) -> str:
    """Why the guard would refuse those of the lines that are still good; empty: it would not."""
    good = [line for line in lines if not line.error]
    try:
        if good:
            guard.acceptable(_stacked(guard, good))
    except ValueError as error:
        return str(error)
    return ""


def _stacked(guard: Guard, lines: list[_Line]) -> ModelOutputs:
    return ModelOutputs(**{name: np.stack([line.row[name] for line in lines]) for name in guard.widths})


def _answer(guard: Guard, lines: list[_Line], target: BinaryIO) -> int:
    """Score good lines as one request, and write the answers to all in their order; how many were flagged."""
    good, answers = [line for line in lines if not line.error], []
    if good:
        verdict = guard.score(_stacked(guard, good), client="pipe")
        columns = (verdict.scores.tolist(), verdict.is_ood.tolist(), verdict.predicted.tolist())
        answers = [
            {"score": score, "is_ood": is_ood, "predicted": predicted, "mode": verdict.mode}
            for score, is_ood, predicted in zip(*columns, strict=True)
        ]
        if (names := guard.detector.class_names) is not None:
            answers = [{**answer, "predicted_name": names[answer["predicted"]]} for answer in answers]
    waiting = iter(answers)
    for line in lines:
        answer = {"error": line.error, "line": line.number} if line.error else next(waiting)
        target.write(write_json({**line.others, **answer}).encode() + b"\n")
    return sum(answer["is_ood"] for answer in answers)


def _blocks(pipe: Pipe, names: Collection[str]) -> Iterator[list[_Line]]:
    number = 0
    if pipe.head().startswith(MAGIC):
        raise InvalidInput("the pipe holds a .npy array; send JSON lines, or score it with normscale score --stream.")
    try:
        for text in whole_lines(pipe.read1, _LONGEST_LINE):
            lines = text.split(b"\n")
            block = [_parse(number + i, line, names) for i, line in enumerate(lines, 1) if line.strip()]
            number += text.count(b"\n")
            if block:
                yield block
    except LineTooLong as error:
        raise FileFormatError(f"line {number + 1} {error}; is it JSON lines?") from None


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
