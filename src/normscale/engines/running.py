"""Running statistics over many pieces, exactly: first every piece's moments, then every piece from all before it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from normscale import _kernels
from normscale._kernels import BlockState
from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.engines.invalid_rows import GoodRows, naming_the_row
from normscale.engines.job_folder import JobFolder
from normscale.engines.pieces import Layout, Piece, Pieces, read_piece
from normscale.engines.spreading import Engine
from normscale.engines.watching import ProgressCounter, Tick
from normscale.errors import InvalidInput
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scaling import stream_into

STARTS = "_job/moments"
"""In the output folder: moments of pieces, between the two passes."""


class _MomentsJob(NamedTuple):
    layout: Layout
    names: tuple[str, ...]
    on_invalid: str
    output: str


def require_moments(detector: Detector) -> None:
    """Refuse a detector whose running statistics are more than moments: they depend on the order of every row."""
    if detector.moment_formula() is None:
        raise InvalidInput(
            f"{detector.name} streams row after row, and what it learns depends on their order, so pieces cannot be "
            "streamed side by side. Score it frozen, or stream one table: normscale score DETECTOR TABLE --stream."
        )


def start_states(
    detector: Detector, plan: Pieces, on_invalid: str, folder: JobFolder, engine: Engine, tick: Tick | None
) -> list[BlockState]:
    """The moments before every piece, and after the last: those of training and of the pieces before, in order."""
    formula = detector.moment_formula()
    assert formula is not None  # require_moments looked
    states = _stored_moments(folder, len(plan.pieces))
    missing = [piece for piece in plan.pieces if piece.number not in states]
    counter = ProgressCounter("moments", len(missing), sum(piece.n_bytes for piece in missing), tick)
    job = _MomentsJob(plan.layout, detector.reads, on_invalid, folder.path)
    for place, (state, n_rows) in engine.map(_piece_moments, job, missing):
        states[missing[place].number] = state
        counter.add(1, n_rows, missing[place].n_bytes)
    before = [formula.state]
    for piece in plan.pieces:
        before.append(_kernels.combine(before[-1], states[piece.number]))
    if not np.isfinite(before[-1].m2).all():
        raise InvalidInput("the logits are too large for second moments in float64. Rescale them.")
    return before


def stream_rows(detector: Detector, start: BlockState) -> Callable[[ModelOutputs], FloatArray]:
    """A function that streams chunks one after the other, from moments on."""
    formula = detector.moment_formula()
    assert formula is not None  # require_moments looked
    moments = RunningMoments.wrap(start).copy()

    def stream(chunk: ModelOutputs) -> FloatArray:
        scores = stream_into(moments, chunk.logits, formula.kind, formula.temperature)
        return scores if formula.weight == 1.0 else formula.weight * scores

    return stream


def moved_detector(detector: Detector, end: BlockState) -> Detector:
    """A copy whose running statistics are these."""
    moved = copy.copy(detector)
    moved.move_moments(end)
    return moved


def _piece_moments(job: _MomentsJob, piece: Piece) -> tuple[BlockState, int]:
    """The moments of a piece's good rows, and how many rows were read: runs in a worker."""
    moments = RunningMoments(job.layout.widths[LOGITS])
    n_rows = 0
    if job.on_invalid == "skip":
        rows = GoodRows(piece, job.layout, job.names)
        for chunk in rows:
            moments.update(chunk.logits, name=LOGITS)
        n_rows = rows.skipped.n
    else:
        naming_the_row(piece, job.layout, job.names, lambda: _take_all(moments, piece, job.layout))
    state = moments.state
    stored = {"weight": np.array([state.weight]), "mean": state.mean, "m2": state.m2}
    JobFolder(job.output).write(_name(piece.number), save(stored))
    return state, n_rows + int(state.weight)


def _take_all(moments: RunningMoments, piece: Piece, layout: Layout) -> None:
    for chunk in read_piece(piece, layout):
        moments.update(chunk.logits, name=LOGITS)


def _name(index: int) -> str:
    return f"{STARTS}/{index:06d}.safetensors"


def _stored_moments(folder: JobFolder, n_pieces: int) -> dict[int, BlockState]:
    """What an earlier run of the same job left."""
    there = set(folder.names(STARTS))
    found: dict[int, BlockState] = {}
    for index in range(n_pieces):
        name = _name(index)
        data = folder.read(name) if name.rpartition("/")[2] in there else None
        if data is not None:
            try:
                arrays = load(data)
                found[index] = BlockState(float(arrays["weight"][0]), arrays["mean"], arrays["m2"])
            except (SafetensorError, KeyError, IndexError):
                continue  # it is made again
    return found
