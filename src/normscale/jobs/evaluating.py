"""Fit detectors, score every set with them, and rank the scores exactly, however many rows there are."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from normscale.detectors.base import Detector
from normscale.errors import InvalidInput
from normscale.jobs.evaluation import rank_scores
from normscale.jobs.fitting import Say, describe_fit, fit, warn
from normscale.jobs.scoring import describe_score, score
from normscale.jobs.sources import PIECE_ROWS, Paths, Skipped
from normscale.jobs.spreading import Engine, open_engine
from normscale.jobs.watching import Tick
from normscale.metrics.ranking import RankingResult
from normscale.rows import is_remote


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


def evaluate(
    id_paths: Paths,
    ood_paths: Mapping[str, Paths],
    detectors: Mapping[str, Detector],
    *,
    train: Sequence[str] = (),
    validation: Sequence[str] = (),
    scores: str | None = None,
    probabilities: bool = False,
    on_invalid: str = "raise",
    memory: int | str | None = None,
    engine: str | Engine | None = None,
    workers: int | None = None,
    address: str | None = None,
    piece_rows: int = PIECE_ROWS,
    tick: Tick | None = None,
    say: Say = warn,
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
    probabilities, on_invalid, memory, engine, workers, address, piece_rows, tick, say
        As in :func:`~normscale.jobs.fit` and :func:`~normscale.jobs.score`.

    Returns
    -------
    list of Evaluated
        AUROC and FPR95 as :func:`normscale.evaluate` gives them, bit for bit; AUPR up to the rounding of a sum.
    """
    sides: dict[str, Paths] = {"id": id_paths, **{f"ood-{name}": paths for name, paths in ood_paths.items()}}
    on = {name: _fit_paths(detector, train, validation) for name, detector in detectors.items()}
    found = []
    with (
        open_engine(engine, workers=workers, address=address) as opened,
        _scores_folder(scores, opened) as folder,
    ):
        common: dict[str, Any] = {"on_invalid": on_invalid, "engine": opened, "tick": tick, "say": say}
        common |= {"probabilities": probabilities, "piece_rows": piece_rows}
        for number, (method, detector) in enumerate(detectors.items()):
            start = time.perf_counter()
            if on[method]:
                detector = fit(on[method], detector, memory=memory, **common).detector
            skipped = {}
            for side, paths in sides.items():
                skipped[side] = score(paths, detector, inside(folder, f"{number}-{side}"), **common).skipped
            for name in ood_paths:
                pair = [inside(folder, f"{number}-{side}") for side in ("id", f"ood-{name}")]
                ranked = rank_scores(*pair, on_invalid=on_invalid, engine=opened, tick=tick, piece_rows=piece_rows)
                left_out = skipped["id"] + skipped[f"ood-{name}"]
                if ranked.skipped.n > left_out.n:  # scores of good rows that are infinite
                    left_out = ranked.skipped
                seconds = time.perf_counter() - start
                found.append(Evaluated(method, detector, name, ranked.result, seconds, left_out))
    return found


def describe_evaluate(
    id_paths: Paths,
    ood_paths: Mapping[str, Paths],
    detectors: Mapping[str, Detector],
    *,
    train: Sequence[str] = (),
    validation: Sequence[str] = (),
    probabilities: bool = False,
    piece_rows: int = PIECE_ROWS,
) -> Iterator[str]:
    """What :func:`evaluate` would read and need, in lines."""
    sides: dict[str, Paths] = {"id": id_paths, **{f"ood-{name}": paths for name, paths in ood_paths.items()}}
    options: dict[str, Any] = {"piece_rows": piece_rows, "probabilities": probabilities}
    for method, detector in detectors.items():
        if on := _fit_paths(detector, train, validation):
            yield f"{method}, {detector.fitted_on}:"
            yield describe_fit(on, detector, **options)
        for side, paths in sides.items():
            yield f"{method}, {side}:"
            yield describe_score(paths, detector, **options)


def inside(folder: str, name: str) -> str:
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
