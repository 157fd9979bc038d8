"""A guard between two pipes: whatever has arrived is one block; its answers leave before more is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.npy_header import MAGIC
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard.guard import Guard, Request
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
    others: dict[str, Any]
    request: Request | None = None
    error: str = ""


def watch_pipe(
    guard: Guard, source: BinaryIO, target: BinaryIO, *, skip: bool = False, say: Callable[[str], None] = lambda _: None
) -> PipeTotals:
    """Read JSON lines from ``source`` until it ends; write a JSON line for every row.

    A line that cannot be scored is an error, or with ``skip`` answered with ``{"error": ...}`` and passed over. ``say``
    hears, in words, when the guard freezes and thaws.
    """
    totals, mode = PipeTotals(), guard.mode
    for block in _blocks(Pipe(source, "the pipe"), guard):
        bad = [line for line in block if line.request is None]
        stop = block.index(bad[0]) if bad and not skip else len(block)
        flagged = _answer(guard, block[:stop], target)  # what comes before a bad line is answered and taken in
        target.flush()
        if stop < len(block):
            raise InvalidInput(f"line {bad[0].number}: {bad[0].error} (--on-invalid skip goes on)")
        rows = len(block) - len(bad)
        totals = PipeTotals(totals.rows + rows, totals.flagged + flagged, totals.skipped + len(bad))
        if guard.mode != mode:
            mode = guard.mode
            frozen = guard.state.stream.frozen
            say(f"frozen: {frozen.because}" if frozen else "running again: the stream is calm.")
    return totals


def _answer(guard: Guard, lines: list[_Line], target: BinaryIO) -> int:
    """Score good lines as one group, and write the answers to all in their order; how many were flagged."""
    verdicts = iter(guard.process([line.request for line in lines if line.request is not None]))
    names, flagged = guard.detector.class_names, 0
    for line in lines:
        answer: dict[str, Any] = {"error": line.error, "line": line.number}
        if line.request is not None:
            verdict = next(verdicts)
            if isinstance(verdict, InvalidInput):
                raise verdict
            (score,), (is_ood,), (predicted,) = (
                column.tolist() for column in (verdict.scores, verdict.is_ood, verdict.predicted)
            )
            answer = {"score": score, "is_ood": is_ood, "predicted": predicted, "mode": verdict.mode}
            answer |= {} if names is None else {"predicted_name": names[predicted]}
            flagged += is_ood
        target.write(write_json({**line.others, **answer}).encode() + b"\n")
    return flagged


def _blocks(pipe: Pipe, guard: Guard) -> Iterator[list[_Line]]:
    number = 0
    if pipe.head().startswith(MAGIC):
        raise InvalidInput("the pipe holds a .npy array; send JSON lines, or score it with normscale score --stream.")
    try:
        for text in whole_lines(pipe.read1, _LONGEST_LINE):
            lines = text.split(b"\n")
            block = [_parse(number + i, line, guard) for i, line in enumerate(lines, 1) if line.strip()]
            number += text.count(b"\n")
            if block:
                yield block
    except LineTooLong as error:
        raise FileFormatError(f"line {number + 1} {error}; is it JSON lines?") from None


def _parse(number: int, line: bytes, guard: Guard) -> _Line:
    names = guard.widths
    try:
        document = read_json(line)
    except ValueError as error:
        return _Line(number, {}, error=f"not JSON ({error})")
    if not isinstance(document, dict):
        document = {LOGITS: document}
    others = {key: value for key, value in document.items() if key not in names}
    for name in names:
        numbers = document.get(name)
        if not isinstance(numbers, list) or not all(type(value) in (int, float) for value in numbers):
            wanted = ", ".join(f'"{each}": [numbers]' for each in names)
            bare = " or a list of numbers" if len(names) == 1 else f"; {name} is not there or no list of numbers"
            return _Line(number, others, error=f"each line must be {{{wanted}}}{bare}")
    try:
        rows = ModelOutputs(**{name: np.array([document[name]], np.float64) for name in names})
        return _Line(number, others, Request(guard.acceptable(rows), "pipe"))
    except OverflowError:
        return _Line(number, others, error="a number is too large for float64")
    except ValueError as error:
        return _Line(number, others, error=str(error))
