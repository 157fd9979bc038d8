"""Outputs of a model by name on data by path, written to tables piece by piece; what is there is not made again."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._atomic import atomic_path
from normscale._progress import bar
from normscale.errors import InvalidInput, NormscaleError
from normscale.extraction.extracting import extract_batches, extract_options
from normscale.extraction.items import Items, open_items
from normscale.extraction.models import OpenedModel, open_model
from normscale.jobs import open_engine
from normscale.jobs.job_folder import JobFolder
from normscale.jobs.running import Engine
from normscale.outputs import ModelOutputs
from normscale.rows import check_folder, format_of, need_arrow, read_table, write_table


class ExtractedTable(NamedTuple):
    """What was written."""

    n_rows: int
    n_made: int
    """Pieces that were not there before."""


class _Job(NamedTuple):
    """What all pieces share; it is sent to workers."""

    model: str
    model_files: str
    data: str
    data_files: str
    pattern: str
    """Where a piece goes, by its number."""
    keep: str
    piece_rows: int
    devices: list[str] | list[None]
    given: dict[str, Any]
    """Options of :func:`normscale.extraction.extract`."""


_ITEMS: dict[str, Items] = {}
"""The inputs that this process reads, by what tells them from others."""


def extract_to(
    model: str,
    data: str,
    output: str,
    *,
    keep: str = "float32",
    piece_rows: int = 8192,
    device: str | None = None,
    engine: str | Engine | None = None,
    processes: int | None = None,
    address: str | None = None,
    say: Callable[[str], object] = lambda _: None,
    **given: Any,
) -> ExtractedTable:
    """Run a model over data and write its outputs; begun again, it goes on where it stopped.

    Parameters
    ----------
    model, data : str
        As in :func:`normscale.extraction.extract`, whose further options are ``given``.
    output : str
        A file (.parquet, .npz, .safetensors), or a folder of .parquet files, one for each piece. A file is written at
        the end, whole; until then its pieces are in ``<output>.pieces``. Parquet has a column ``path`` that says which
        picture a row came from.
    keep : {"float32", "float16"}
        In what precision the tables are.
    piece_rows : int
        Rows of a piece; no more outputs than those are in memory, but for .npz and .safetensors, which hold all.
    device : str, optional
        Where to run; several, with commas, take turns with the pieces, for ``engine="local"`` with a process each.
    engine, processes, address
        Where pieces are made: here, local (processes) or ray; as in :func:`normscale.jobs.open_engine`.
    say : callable
        Takes sentences on the way.
    """
    _validate.one_of(keep, "keep", ("float32", "float16"))
    _validate.at_least(piece_rows, "piece_rows", 1)
    suffix = os.path.splitext(output)[1].lower()
    if suffix:
        format_of(output)
        check_folder(output)
    else:
        need_arrow("pyarrow", output)
    options = extract_options(given)
    parts = [data] if os.path.exists(data) else data.rsplit("@", 1)  # FOLDER@LIST.txt
    located = "@".join(map(os.path.abspath, parts))
    items = _open_items(located, options)
    _ITEMS[str(items.stamp)] = items
    folder = JobFolder(f"{output}.pieces" if suffix else output)
    name, files = _located(model, options.weights)
    pattern = os.path.join(folder.path, "part-{:06d}" + (".parquet" if suffix in ("", ".parquet") else ".npz"))
    devices = device.split(",") if device else [None]
    job = _Job(name, files, located, str(items.stamp), pattern, keep, piece_rows, devices, given)
    unchanging = ("workers", "device", "progress", "say")
    texts = {"preprocess": options.preprocess and str(options.preprocess)}
    chosen = {k: one for k, one in (vars(options) | texts).items() if k not in unchanging and one is not None}
    plan = {"model": name, "model files": files, "data": items.stamp, "options": chosen}
    pieces = [pattern.format(number) for number in range(-(-items.n // piece_rows))]
    try:
        with folder.working({**plan, "keep": keep, "piece_rows": piece_rows}):
            missing = [number for number, piece in enumerate(pieces) if not os.path.exists(piece)]
            if 0 < len(missing) < len(pieces):
                say(f"going on: {len(pieces) - len(missing)} of {len(pieces)} pieces are there.")
            with (
                open_engine(engine or "here", workers=processes, address=address) as workers,
                bar("extracting pieces", len(pieces), wanted=len(pieces) > 1) as line,
            ):
                line.at(len(pieces) - len(missing))
                said: dict[str, str] = {}
                for _, texts in workers.map(_make, job, missing):
                    for text in texts:
                        key = text.partition(": on the first")[0]  # a lower precision is compared in every piece
                        if said.setdefault(key, text) is text:
                            say(text)
                    line.advance(1)
            made = list(filter(os.path.exists, pieces))
            if not made:
                raise InvalidInput(f"none of the {items.n} inputs of {data} could be read.")
            n_rows = _joined(made, output if suffix else None)
    except NormscaleError:
        if os.path.isdir(folder.path) and not folder.names():
            shutil.rmtree(folder.path, ignore_errors=True)  # nothing was made, so nothing is left
        raise
    if suffix:
        shutil.rmtree(folder.path, ignore_errors=True)
    return ExtractedTable(n_rows, len(missing))


def _make(job: _Job, number: int) -> list[str]:
    """Make one piece, in this process or another; what there is to say about it."""
    said: list[str] = []
    paths: list[str] = []
    options = extract_options(job.given)
    if job.data_files not in _ITEMS:
        _ITEMS[job.data_files] = _open_items(job.data, options)
    items = _ITEMS[job.data_files]
    rows = number * job.piece_rows, min((number + 1) * job.piece_rows, items.n)
    given = {**job.given, "device": job.devices[number % len(job.devices)], "say": said.append}
    opened = _model(job.model, options.weights, job.model_files)
    if parts := list(extract_batches(opened, items, rows=rows, paths=paths, **given)):
        outputs = ModelOutputs.concatenate(parts)
        piece = job.pattern.format(number)
        columns = {"path": paths} if paths and piece.endswith(".parquet") else None
        write_table(piece, _in_half_precision(outputs) if job.keep == "float16" else outputs, columns=columns)
    return said


def _open_items(path: str, options: Any) -> Items:
    _ITEMS.clear()  # one at a time
    return open_items(path, column=options.column, label=options.label, on_invalid=options.on_invalid)


def _joined(pieces: list[str], output: str | None) -> int:
    """Write the pieces to one file, if there is one to write; how many rows they have."""
    if not pieces[0].endswith(".parquet"):
        whole = ModelOutputs.concatenate(read_table(path) for path in pieces)
        write_table(str(output), whole)
        return len(whole)
    parquet = need_arrow("pyarrow.parquet", pieces[0])
    if output is not None:
        with atomic_path(output) as temporary, parquet.ParquetWriter(temporary, parquet.read_schema(pieces[0])) as file:
            for path in pieces:
                with parquet.ParquetFile(path) as piece:
                    for group in range(piece.num_row_groups):
                        file.write_table(piece.read_row_group(group))
    return sum(parquet.read_metadata(path).num_rows for path in pieces)


@lru_cache(maxsize=2)
def _model(name: str, weights: str | None, files: str) -> OpenedModel:
    return open_model(name, weights=weights)


def _in_half_precision(outputs: ModelOutputs) -> ModelOutputs:
    """The arrays in float16, which ends at 65 504."""
    try:
        with np.errstate(over="raise"):
            return outputs.replace(**{name: outputs.array(name).astype(np.float16) for name in outputs.names})
    except FloatingPointError:
        raise InvalidInput("outputs go beyond 65504, where float16 ends; leave keep='float16' out.") from None


def _located(model: str, weights: str | None) -> tuple[str, str]:
    """A model's name with its path as workers in other folders see it; and what tells it from another of that name."""
    file, colon, function = model.rpartition(":")
    if os.path.exists(model):
        model = os.path.abspath(model)
    elif file.endswith(".py"):
        model = f"{os.path.abspath(file)}{colon}{function}"
    inside = [os.path.join(model, name) for name in sorted(os.listdir(model))] if os.path.isdir(model) else []
    files = [one for one in (model, file, weights or "", *inside) if os.path.isfile(one)]
    return model, " ".join(f"{os.path.basename(one)}:{_stamp(one)}" for one in files)


def _stamp(path: str) -> str:
    """A small file's content, so that a new checkout of it is the same model; a large one's size and time."""
    size = os.path.getsize(path)
    if size > 1 << 20:
        return f"{size}:{os.stat(path).st_mtime_ns}"
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]
