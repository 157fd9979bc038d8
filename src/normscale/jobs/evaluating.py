"""Fit detectors, score every set with them in pieces, and rank the scores."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Unpack

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.errors import FileFormatError, InvalidInput
from normscale.jobs.fitting import describe_fit, fit
from normscale.jobs.options import JobOptions, Paths, with_defaults
from normscale.jobs.pieces import LISTED, Skipped
from normscale.jobs.scoring import describe_score, score
from normscale.jobs.spreading import open_engine
from normscale.metrics.ranking import RankingResult
from normscale.metrics.ranking import evaluate as evaluate_scores
from normscale.rows import find_files, is_remote
from normscale.rows.formats.parquet import open_parquet
from normscale.rows.source import source_of


class Evaluated(NamedTuple):
    """How well a detector tells one OoD set from the in-distribution set, as fitted."""

    method: str
    """What the detector is called."""
    detector: Detector
    ood_set: str
    result: RankingResult
    seconds: float
    skipped: Skipped
    """Rows of both sides that were left out."""


class ScoresEvaluation(NamedTuple):
    """How well scores in files tell OoD inputs from others."""

    result: RankingResult
    skipped: Skipped


def evaluate(
    id_paths: Paths,
    ood_paths: Mapping[str, Paths],
    detectors: Mapping[str, Detector],
    *,
    train: Sequence[str] = (),
    validation: Sequence[str] = (),
    scores: str | None = None,
    memory: int | str | None = None,
    **options: Unpack[JobOptions],
) -> list[Evaluated]:
    """Compare detectors as fitted on tables of any size: fit what needs it, score every set, rank all scores.

    Parameters
    ----------
    id_paths : path, or several
        In-distribution inputs that the classifier was not trained on.
    ood_paths : mapping of name to the same
        Sets of OoD inputs.
    detectors : mapping of name to Detector
        Fitted ones are used as they are.
    train, validation : sequence of paths
        What detectors are fitted on; each says on which of them.
    scores : path, optional
        A folder where the scores go, and stay; a rerun uses them. By default a temporary one.
    memory
        As in :func:`~normscale.jobs.fit`.
    **options
        See :class:`~normscale.jobs.JobOptions`.

    Returns
    -------
    list of Evaluated
        The metrics as :func:`normscale.evaluate` gives them.
    """
    job = with_defaults(options)
    on = {name: _fit_paths(detector, train, validation) for name, detector in detectors.items()}
    found = []
    with (
        open_engine(job["engine"], workers=job["workers"], address=job["address"]) as opened,
        _scores_folder(scores, opened) as folder,
    ):
        job["engine"], job["workers"], job["address"] = opened, None, None
        for number, (method, detector) in enumerate(detectors.items()):
            start = time.perf_counter()
            if on[method]:
                detector = fit(on[method], detector, memory=memory, **job).detector
            sides = {}
            for side, paths in _sides(id_paths, ood_paths).items():
                output = _inside(folder, f"{number}-{side}")
                skipped = score(paths, detector, output, **job).skipped
                own, more = read_scores(output, on_invalid=job["on_invalid"])
                sides[side] = own, more if more.n > skipped.n else skipped  # scores of good rows may be infinite
            for name in ood_paths:
                result = evaluate_scores(sides["id"][0], sides[f"ood-{name}"][0])
                seconds = time.perf_counter() - start
                left_out = sides["id"][1] + sides[f"ood-{name}"][1]
                found.append(Evaluated(method, detector, name, result, seconds, left_out))
    return found


def describe_evaluate(
    id_paths: Paths,
    ood_paths: Mapping[str, Paths],
    detectors: Mapping[str, Detector],
    *,
    train: Sequence[str] = (),
    validation: Sequence[str] = (),
    **options: Unpack[JobOptions],
) -> Iterator[str]:
    """What :func:`evaluate` would read and need, in lines."""
    for method, detector in detectors.items():
        if on := _fit_paths(detector, train, validation):
            yield f"{method}, {detector.fitted_on}:"
            yield describe_fit(on, detector, **options)
        for side, paths in _sides(id_paths, ood_paths).items():
            yield f"{method}, {side}:"
            yield describe_score(paths, detector, **options)


def rank_scores(
    id_paths: Paths, ood_paths: Paths, *, tpr: float = 0.95, column: str = "score", on_invalid: str = "raise"
) -> ScoresEvaluation:
    """Measure how well scores in Parquet files tell OoD inputs (high) from in-distribution inputs (low).

    Parameters
    ----------
    id_paths, ood_paths : path, or several
        Folders that :func:`~normscale.jobs.score` wrote, or other files, folders and globs of .parquet files. The
        scores are ranked in this process, which takes about 24 bytes of memory for each.
    tpr : float in (0, 1]
        The true positive rate at which ``fpr95_out`` and ``fpr95_in`` are read.
    column : str
        Which column holds the scores.
    on_invalid : {"raise", "skip"}
        What to do with scores that are NaN (rows that were skipped) or infinite.
    """
    (inside, in_skipped), (outside, out_skipped) = (
        read_scores(paths, column, on_invalid=on_invalid) for paths in (id_paths, ood_paths)
    )
    return ScoresEvaluation(evaluate_scores(inside, outside, tpr=tpr), in_skipped + out_skipped)


def read_scores(paths: Paths, column: str = "score", *, on_invalid: str = "raise") -> tuple[FloatArray, Skipped]:
    """The finite scores in Parquet files, and which others were skipped."""
    parts: list[FloatArray] = [np.empty(0)]
    skipped = Skipped()
    for file in find_files(paths):
        try:
            with open_parquet(source_of(file.path)) as opened:
                names = opened.schema_arrow.names
                if column not in names:
                    raise FileFormatError(f"{file.path} has no column {column!r}; it has {', '.join(names[:8])}.")
                scores = opened.read([column]).column(0).to_numpy().astype(np.float64, copy=False)
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{file.path} is damaged, or is no .parquet file of scores: {error}") from error
        good = np.isfinite(scores)
        if not good.all():
            bad = np.flatnonzero(~good)
            if on_invalid == "raise":
                raise InvalidInput(
                    f"{file.path}: the score in row {int(bad[0])} is {scores[bad[0]]}; a ranking needs finite scores. "
                    'Pass on_invalid="skip" to leave such rows out, or find out why.'
                )
            skipped += Skipped(bad.size, tuple((file.path, int(row)) for row in bad[:LISTED]))
            scores = scores[good]
        parts.append(scores)
    found: FloatArray = np.concatenate(parts)
    if not found.size:
        raise InvalidInput(f"{paths} holds no finite score; both sides need some.")
    return found, skipped


def _sides(id_paths: Paths, ood_paths: Mapping[str, Paths]) -> dict[str, Paths]:
    return {"id": id_paths, **{f"ood-{name}": paths for name, paths in ood_paths.items()}}


def _inside(folder: str, name: str) -> str:
    """The path of something in a folder, which may be one of an object store with options."""
    if not is_remote(folder):
        return os.path.join(folder, name)
    location, mark, options = folder.partition("?")
    return f"{location.rstrip('/')}/{name}{mark}{options}"


def _fit_paths(detector: Detector, train: Sequence[str], validation: Sequence[str]) -> list[str]:
    """What a detector is fitted on; nothing where it is fitted already or works without."""
    if detector.widths_ is not None:
        return []
    on = list(validation if detector.fitted_on == "validation" else train)
    if not on and detector.needs_fit:
        raise InvalidInput(f"{detector.name} must be fitted; add --{detector.fitted_on} TABLES.")
    return on


@contextmanager
def _scores_folder(given: str | None, engine: Any) -> Iterator[str]:
    """Where the scores go: the folder given, or a temporary one that every worker sees."""
    if given is not None:
        yield given
        return
    if getattr(engine, "n_machines", 1) > 1:
        raise InvalidInput(
            "the cluster has several machines, which do not see a temporary folder of this one; add --scores FOLDER "
            "with a place that all of them see, such as s3://bucket/scores."
        )
    with tempfile.TemporaryDirectory(prefix="normscale-") as folder:
        yield folder
