"""Outputs of a model by name on data by path, written to tables piece by piece; what is there is not made again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from normscale import _validate
from normscale._progress import bar
from normscale.errors import InvalidInput, NormscaleError
from normscale.extraction.extracting import ExtractOptions, _from_scikit, _is_scikit, extract_batches
from normscale.extraction.items import Items, open_items
from normscale.extraction.models import OpenedModel, open_model
from normscale.jobs import open_engine
from normscale.jobs.job_folder import JobFolder
from normscale.outputs import ModelOutputs
from normscale.rows import check_folder, format_of, need_arrow, read_table, write_table

PIECE_ROWS = 8192
KEPT = ("float32", "float16")


class ExtractedTable(NamedTuple):
    """Where outputs went."""

    path: str
    n_rows: int
    n_made: int
    """Pieces that were not there before."""


class _Job(NamedTuple):
    """What all pieces share; it is sent to workers."""

    model: str
    data: str
    folder: str
    suffix: str
    keep: str
    devices: tuple[str | None, ...]
    options: ExtractOptions
    stamp: str
    """Of the model's files, so that another model of that name is another one."""


def extract_to(
    model: str,
    data: str,
    output: str,
    *,
    keep: str = "float32",
    piece_rows: int = PIECE_ROWS,
    device: str | None = None,
    engine: str | None = None,
    processes: int | None = None,
    address: str | None = None,
    say: Callable[[str], object] = lambda _: None,
    **given: Any,
) -> ExtractedTable:
    """Run a model over data and write its outputs; begun again, it goes on where it stopped.

    Parameters
    ----------
    model, data : str
        As in :func:`normscale.extraction.extract`.
    output : str
        A file (.parquet, .npz, .safetensors), or a folder of .parquet files, one for each piece. A file is written at
        the end, whole; until then its pieces are in ``<output>.pieces``.
    keep : {"float32", "float16"}
        In what precision the tables are.
    piece_rows : int
        Rows of a piece; no more outputs than those are in memory where the output is a folder.
    device : str, optional
        Where to run; several, with commas, take turns with the pieces, for ``engine="local"`` with a process each.
    engine, processes, address
        Where pieces are made: here, local (processes) or ray; as in :func:`normscale.jobs.open_engine`.
    say : callable
        Takes sentences on the way.
    given
        Further options of :func:`normscale.extraction.extract`.
    """
    _validate.one_of(keep, "keep", KEPT)
    suffix = os.path.splitext(output)[1].lower()
    if suffix:
        format_of(output)
        check_folder(output)
    else:
        need_arrow("pyarrow", output)
    options = ExtractOptions(**given)
    _items.cache_clear()  # the files may be others than last time
    items = _items(os.path.abspath(data), options.column, options.label)
    tasks = [
        (n, start) for n, start in enumerate(range(0, len(items), _validate.at_least(piece_rows, "piece_rows", 1)))
    ]
    folder = JobFolder(f"{output}.pieces" if suffix else output)
    devices = tuple(device.split(",")) if device else (None,)
    name, kind = _absolute(model), ".npz" if suffix else ".parquet"
    stamp = _stamp(name, options.weights)
    job = _Job(name, os.path.abspath(data), folder.path, kind, keep, devices, options, stamp)
    plan = {
        "model": job.model,
        "model files": job.stamp,
        "data": items.stamp,
        "options": _recorded(options),
        "keep": keep,
        "piece_rows": piece_rows,
    }
    names = [f"part-{number:06d}{job.suffix}" for number, _ in tasks]
    try:
        with folder.working(plan):
            there = set(folder.names())
            missing = [task for task, name in zip(tasks, names, strict=True) if name not in there]
            if 0 < len(missing) < len(tasks):
                say(f"going on: {len(tasks) - len(missing)} of {len(tasks)} pieces are there.")
            said: set[str] = set()
            with (
                open_engine(engine or "here", workers=processes, address=address) as workers,
                bar("extracting pieces", len(tasks), wanted=len(tasks) > 1) as line,
            ):
                line.at(len(tasks) - len(missing))
                for _, texts in workers.map(_make, job, [(*task, piece_rows) for task in missing]):
                    for text in texts:
                        key = text.partition(": on the first")[0]  # a lower precision is compared in every piece
                        if key not in said:
                            say(text)
                        said.add(key)
                    line.advance(1)
            paths = [folder.at(name) for name in names if os.path.exists(folder.at(name))]
            if not paths:
                raise InvalidInput(f"none of the {len(items)} inputs of {data} could be read.")
            if suffix:
                whole = ModelOutputs.concatenate(read_table(path) for path in paths)
                write_table(output, whole)
                n_rows = len(whole)
            else:
                parquet = need_arrow("pyarrow.parquet", output)
                n_rows = sum(parquet.read_metadata(path).num_rows for path in paths)
    except NormscaleError:
        if os.path.isdir(folder.path) and not folder.names():
            shutil.rmtree(folder.path, ignore_errors=True)  # nothing was made, so nothing is left
        raise
    if suffix:
        shutil.rmtree(folder.path, ignore_errors=True)
    return ExtractedTable(output, n_rows, len(missing))


def _make(job: _Job, task: tuple[int, int, int]) -> list[str]:
    """Make one piece, in this process or another; what there is to say about it."""
    number, start, rows = task
    said: list[str] = []
    opened = _model(job.model, job.options.weights, job.stamp)
    items = _items(job.data, job.options.column, job.options.label)
    stop = min(start + rows, len(items))
    if _is_scikit(opened.model):
        contents = [item.content for item in items.between(start, stop)]
        found = _from_scikit(opened.model, contents if items.texts else np.stack(contents), job.options.ood)
    else:
        given = job.options._replace(device=job.devices[number % len(job.devices)])._asdict()
        parts = list(extract_batches(opened, items, say=said.append, rows=(start, stop), **given))
        if not parts:
            return said
        found = ModelOutputs.concatenate(parts)
    if job.keep == "float16":
        found = _halved(found)
    write_table(os.path.join(job.folder, f"part-{number:06d}{job.suffix}"), found)
    return said


@lru_cache(maxsize=2)
def _model(name: str, weights: str | None, stamp: str) -> OpenedModel:
    return open_model(name, weights=weights)


@lru_cache(maxsize=2)
def _items(path: str, column: str | None, label: str | None) -> Items:
    return open_items(path, column=column, label=label)


def _halved(outputs: ModelOutputs) -> ModelOutputs:
    """The arrays in float16, which ends at 65 504."""
    with np.errstate(over="ignore"):
        arrays = {name: outputs.array(name).astype(np.float16) for name in outputs.names}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise InvalidInput(f"{name} holds numbers beyond 65504, where float16 ends; leave keep='float16' out.")
    return outputs.replace(**arrays)


def _recorded(options: ExtractOptions) -> dict[str, Any]:
    """The options that change the outputs, as a plan keeps them."""
    chosen = {**options._asdict(), "preprocess": None if options.preprocess is None else str(options.preprocess)}
    return {name: value for name, value in chosen.items() if name not in ("workers", "device") and value is not None}


def _stamp(model: str, weights: str | None) -> str:
    """What tells a model's files from others of their names: sizes and times."""
    file = model.rpartition(":")[0]
    given = [model, file if file.endswith(".py") else "", weights or ""]
    inside = [os.path.join(model, name) for name in sorted(os.listdir(model))] if os.path.isdir(model) else []
    found = [(os.path.basename(one), os.stat(one)) for one in (*given, *inside) if os.path.isfile(one)]
    return " ".join(f"{name}:{one.st_size}:{one.st_mtime_ns}" for name, one in found)


def _absolute(model: str) -> str:
    """Paths as workers in other folders see them."""
    file, colon, function = model.rpartition(":")
    if os.path.exists(model):
        return os.path.abspath(model)
    return f"{os.path.abspath(file)}{colon}{function}" if file.endswith(".py") else model
