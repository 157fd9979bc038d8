"""Running statistics over many pieces: first every piece's own state, then every piece from the state of all before it.

For any detector whose streams can be merged (:meth:`~normscale.detectors.base.Detector.merge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.jobs.job_folder import JobFolder
from normscale.jobs.options import ProgressCounter, Tick
from normscale.jobs.pieces import Layout, Piece, PieceRows, read_piece
from normscale.jobs.spreading import Engine
from normscale.state import copied, record_arrays

STARTS = "_job/states"
"""In the output folder: states of pieces, between the two passes."""


class _StateJob(NamedTuple):
    detector: Detector
    layout: Layout
    on_invalid: str
    output: str


def streams_in_pieces(detector: Detector) -> bool:
    """Whether pieces can be streamed side by side: two of its streams have a common state."""
    try:
        detector.merge(detector.start(), detector._blank())
    except InvalidInput:
        return False
    return True


def start_states(
    detector: Detector,
    pieces: Sequence[Piece],
    layout: Layout,
    on_invalid: str,
    folder: JobFolder,
    engine: Engine,
    tick: Tick | None,
) -> list[Any]:
    """The state before every piece, and after the last: that of training and of the pieces before, in order."""
    states = _stored_states(detector, folder, len(pieces))
    missing = [piece for piece in pieces if piece.number not in states]
    counter = ProgressCounter("running statistics", len(missing), sum(piece.n_bytes for piece in missing), tick)
    job = _StateJob(detector, layout, on_invalid, folder.path)
    for place, (state, n_rows) in engine.map(_piece_state, job, missing):
        states[missing[place].number] = state
        counter.add(1, n_rows, missing[place].n_bytes)
    before = [copied(detector._current())]
    for piece in pieces:
        before.append(detector.merge(before[-1], states[piece.number]))
    if not all(np.isfinite(array).all() for array in record_arrays(before[-1]).values()):
        raise InvalidInput("the rows are too large for running statistics in float64. Rescale them.")
    return before


def _piece_state(job: _StateJob, piece: Piece) -> tuple[Any, int]:
    """The state of a piece's good rows alone, and how many rows were read: runs in a worker."""
    state = job.detector._blank()
    rows = PieceRows(read_piece(piece, job.layout), job.layout, job.detector.reads, job.on_invalid)
    try:
        for chunk in rows:
            state = job.detector.step(state, chunk)[1]
    except InvalidInput as error:
        raise rows.explain(error) from None
    JobFolder(job.output).write(_name(piece.number), save(record_arrays(state)))
    return state, rows.skipped.n + rows.n_rows


def _name(index: int) -> str:
    return f"{STARTS}/{index:06d}.safetensors"


def _stored_states(detector: Detector, folder: JobFolder, n_pieces: int) -> dict[int, Any]:
    """What an earlier run of the same job left."""
    there = set(folder.names(STARTS))
    found: dict[int, Any] = {}
    for index in range(n_pieces):
        name = _name(index)
        data = folder.read(name) if name.rpartition("/")[2] in there else None
        if data is not None:
            try:
                found[index] = detector._read_state(load(data), "")
            except (SafetensorError, InvalidInput):
                continue  # it is made again
    return found
