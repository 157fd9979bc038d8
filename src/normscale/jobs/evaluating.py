"""Fit detectors, score every set with them in pieces, and rank the scores."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from normscale.detectors.base import Detector
from normscale.detectors.choosing import AUTO
from normscale.errors import InvalidInput
from normscale.jobs.fitting import fit
from normscale.jobs.running import JobOptions, Paths, open_engine
from normscale.jobs.scoring import gathered_scores
from normscale.jobs.sources import Skipped
from normscale.metrics.ranking import RankingResult
from normscale.metrics.ranking import evaluate as evaluate_scores


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
    detectors: Mapping[str, Detector | str],
    *,
    train: Sequence[str] = (),
    validation: Sequence[str] = (),
    **options: Any,
) -> list[Evaluated]:
    """Compare detectors as fitted on tables of any size: fit what needs it, score every set, rank all scores.

    The scores come to this process, which takes about 24 bytes of memory for each to rank them.

    Parameters
    ----------
    id_paths : path, or several
        In-distribution inputs that the classifier was not trained on.
    ood_paths : mapping of name to the same
        Sets of OoD inputs.
    detectors : mapping of name to Detector, or to ``"auto"``
        Fitted ones are used as they are; ``"auto"`` is the default for the rows of ``train``.
    train, validation : sequence of paths
        What detectors are fitted on; each says on which of them.
    **options
        See :class:`~normscale.jobs.JobOptions`.
    """
    job = JobOptions(**options)
    on = {name: _fit_paths(detector, train, validation) for name, detector in detectors.items()}
    found = []
    with open_engine(job.engine, workers=job.workers, address=job.address) as opened:
        job = replace(job, engine=opened, workers=None, address=None)
        for method, detector in detectors.items():
            start = time.perf_counter()
            if on[method]:
                detector = fit(on[method], detector, **vars(job)).detector
            assert isinstance(detector, Detector)
            id_scores, id_skipped = gathered_scores(id_paths, detector, opened, job)
            for name, paths in ood_paths.items():
                scores, skipped = gathered_scores(paths, detector, opened, job)
                result = evaluate_scores(id_scores, scores)
                seconds = time.perf_counter() - start
                title = detector.name if method == AUTO else method
                found.append(Evaluated(title, detector, name, result, seconds, id_skipped + skipped))
    return found


def _fit_paths(detector: Detector | str, train: Sequence[str], validation: Sequence[str]) -> list[str]:
    """What a detector is fitted on; nothing where it is fitted already or works without."""
    if isinstance(detector, str):
        if not train:
            raise InvalidInput("auto chooses a detector for the rows of --train; give --train.")
        return list(train)
    if detector._widths is not None:
        return []
    on = list(validation if detector.about.fitted_on == "validation" else train)
    if not on and detector._needs_fit:
        raise InvalidInput(f"{detector.name} must be fitted; add --{detector.about.fitted_on} TABLES.")
    return on
