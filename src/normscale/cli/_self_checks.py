"""What ``normscale doctor`` computes twice: the kernels that run here against numpy's, and numpy's against formulas."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np

from normscale import _kernels
from normscale._kernels import KINDS, mixture, mixture_reference, reference
from normscale._validate import FloatArray
from normscale.outputs import LOGITS, ModelOutputs

_WIDTHS = (2, 10, 100)
_DECAYS = mixture.MixtureSettings(0.98, 0.995, 0.999, 5.0, 0.8)


class SelfCheck(NamedTuple):
    """A sentence that must be true here, and whether it is; None where there was nothing to compare."""

    what: str
    passed: bool | None


def self_checks() -> list[SelfCheck]:
    """Run every check; takes about a second."""
    checks = [SelfCheck("numpy kernels equal the formulas written out, row by row", _reference_is_right())]
    if _kernels.backend() == "numpy":
        forced = os.environ.get("NORMSCALE_KERNELS") == "numpy"
        why = "NORMSCALE_KERNELS=numpy" if forced else "numba cannot be imported"
        checks.append(SelfCheck(f"compiled kernels were not checked: {why}, so numpy's do the work", None))
    else:
        checks.append(SelfCheck("compiled kernels equal numpy's", _kernels_agree()))
        checks.append(SelfCheck("compiled mixture kernels equal numpy's", _mixture_kernels_agree()))
    checks += _sample_checks()
    checks.append(SelfCheck("a running state survives a row with NaN", _nan_is_refused()))
    return checks


def _rows(n_classes: int, n: int = 300) -> FloatArray:
    rows: FloatArray = np.random.default_rng(n_classes).normal(3.0, 2.0, (n, n_classes))
    return rows


def _written_out(kind: str, scaled: FloatArray) -> float:
    """The score of one scaled row by the definition of its kind."""
    exponentials = np.exp(scaled - scaled.max())
    if kind == "log_odds":
        rest = np.delete(exponentials, scaled.argmax()).sum()
        return float(np.log(rest))  # of all other classes against the largest, whose exponential is 1
    return -float(scaled.max() + (np.log(exponentials.sum()) if kind == "log_sum_exp" else 0.0))


def _reference_is_right() -> bool:
    """Frozen and streamed scores of numpy's kernels against means and deviations taken anew for every row."""
    for n_classes in _WIDTHS:
        rows = _rows(n_classes, 60)
        shift, factor = rows.mean(axis=0), 1.0 / rows.std(axis=0)
        for kind, number in KINDS.items():
            frozen, streamed = np.empty(60), np.empty(60)
            reference.frozen_scores(rows, shift, factor, number, frozen)
            expected = [_written_out(kind, (row - shift) * factor) for row in rows]
            if not np.allclose(frozen, expected, rtol=1e-9, atol=1e-9):
                return False
            # training counts as one row at 0 with squared deviation 1 in every class
            reference.stream_scores(rows, 1.0, np.zeros(n_classes), np.ones(n_classes), number, 1.0, streamed)
            for i, row in enumerate(rows):
                seen = np.vstack([np.zeros(n_classes), rows[: i + 1]])
                deviation = np.sqrt(seen.var(axis=0) + 1.0 / len(seen))
                if not np.isclose(streamed[i], _written_out(kind, (row - seen.mean(axis=0)) / deviation), rtol=1e-9):
                    return False
    return True


def _kernels_agree() -> bool:
    for n_classes in _WIDTHS:
        rows = _rows(n_classes)
        for number in KINDS.values():
            mine, theirs = np.empty(300), np.empty(300)
            mean, m2 = np.zeros(n_classes), np.ones(n_classes)
            state = _kernels.stream_scores(rows, 1.0, mean, m2, number, 1.0, mine)
            reference.stream_scores(rows, 1.0, mean, m2, number, 1.0, theirs)
            if state is None or not np.allclose(mine, theirs, rtol=1e-10, atol=1e-10):
                return False
            if not np.allclose(state.m2, m2, rtol=1e-12):
                return False
            shift, factor = mean, np.full(n_classes, 0.5)
            frozen = _kernels.scores_of("frozen_scores", rows, shift, factor, number)
            reference.frozen_scores(rows, shift, factor, number, theirs)
            if frozen is None or not np.allclose(frozen, theirs, rtol=1e-10, atol=1e-10):
                return False
    return True


def _mixture_kernels_agree() -> bool:
    from normscale.detectors.class_profiles import ClassMoments, finished_profiles
    from normscale.detectors.partial_fit import RowSample
    from normscale.outputs import ModelOutputs

    for n_classes in _WIDTHS[:2]:
        rng = np.random.default_rng(n_classes)
        train = _rows(n_classes) + 6.0 * np.eye(n_classes)[rng.integers(0, n_classes, 300)]
        logits = np.vstack([train[:100], _rows(n_classes, 100)])  # rows that belong, then rows that do not
        stream = mixture.MixtureRows(logits, logits.max(axis=1) - 6.0)
        known = ModelOutputs(train)
        sample = RowSample.of(known, np.column_stack([train.max(axis=1) - 6.0, train.std(axis=1)]))
        profiles = finished_profiles(ClassMoments.of(known).profiles(), sample, *sample.values.T)
        state, other = (mixture.Mixture.empty(n_classes) for _ in range(2))
        mine, theirs = np.empty(200), np.empty(200)
        taken_in = mixture.stream_mixture(stream, profiles, _DECAYS, state, mine)
        mixture_reference.stream(stream, profiles, _DECAYS, other, theirs)
        if not taken_in or not np.allclose(mine, theirs, rtol=1e-9, atol=1e-9):
            return False
        if not all(np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(state, other, strict=True)):
            return False
        mixture.score_mixture(stream, profiles, _DECAYS, state, mine)
        mixture_reference.score(stream, profiles, _DECAYS, other, theirs)
        if not np.allclose(mine, theirs, rtol=1e-9, atol=1e-9):
            return False
    return True


def _sample_checks() -> list[SelfCheck]:
    """Detectors whose statistics are moments of the logits, fitted on the embedded sample and computed anew."""
    from normscale.detectors.registry import list_detectors, make_detector
    from normscale.sample import load_sample

    sample = load_sample()
    train, test = (outputs.logits.astype(np.float64) for outputs in (sample.train, sample.test))
    checks = []
    for name in list_detectors():
        detector = make_detector(name)
        if detector.reads != (LOGITS,) or detector.fitted_on != "train" or not detector.has_running_statistics:
            continue
        formula = detector.fit(sample.train).moment_formula()
        if formula is None:
            continue
        scaled = (test - train.mean(axis=0)) / (formula.temperature * train.std(axis=0))
        expected = [formula.weight * _written_out(formula.kind, row) for row in scaled]
        passed = np.allclose(detector.score(ModelOutputs(test)), expected, rtol=1e-9, atol=1e-9)
        checks.append(SelfCheck(f"{detector.title} of the embedded sample equals its formula written out", passed))
    return checks


def _nan_is_refused() -> bool:
    state = _kernels.stream_scores(np.full((1, 2), np.nan), 1.0, np.zeros(2), np.ones(2), 0, 1.0, np.empty(1))
    return state is None
