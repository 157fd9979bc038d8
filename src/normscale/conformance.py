"""What every detector must do, as a suite that anyone can run over their own.

>>> import normscale as ns
>>> from normscale.conformance import check_detector
>>> check_detector(ns.Energy)  # doctest: +ELLIPSIS
['accepts_the_share_it_was_told', ...]

Each check is a function of a :class:`Case`; a broken promise is an ``AssertionError`` that says which. Register
nothing, subclass :class:`~normscale.detectors.base.Detector`, and pass the class.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, NormscaleError, NotFitted
from normscale.metrics.ranking import evaluate
from normscale.outputs import ModelOutputs


class Case:
    """A detector under test and outputs to test it on: clear in-distribution rows, and rows near no class."""

    def __init__(self, make: Callable[[], Detector], n_classes: int, seed: int = 0) -> None:
        """Draw the outputs."""
        self.make = make
        self.n_classes = n_classes
        self._rng = np.random.default_rng(seed)
        self.train = self.inside(400)
        self.validation = self.inside(200)
        self.test = self.inside(150)
        self.ood = self.outside(120)

    def inside(self, n: int) -> ModelOutputs:
        """Rows that belong to a class: one large logit, features near the mean of the class."""
        labels = self._rng.integers(0, self.n_classes, n)
        labels[: self.n_classes] = np.arange(self.n_classes)  # every class occurs
        logits = self._rng.normal(0.0, 1.0, (n, self.n_classes))
        logits[np.arange(n), labels] += 9.0
        means = 6.0 * np.eye(self.n_classes, 8)
        features = means[labels] + self._rng.normal(0.0, 1.0, (n, 8))
        wrong = slice(self.n_classes, self.n_classes + max(1, n // 20))  # nobody's classifier is always right
        labels[wrong] = (labels[wrong] + 1) % self.n_classes
        return ModelOutputs(logits, features, labels)

    def outside(self, n: int) -> ModelOutputs:
        """Rows that belong to none: small logits, features far from every mean."""
        logits = self._rng.normal(0.0, 1.0, (n, self.n_classes))
        return ModelOutputs(logits, self._rng.normal(-9.0, 1.0, (n, 8)))

    def fitted(self) -> Detector:
        """A new detector, fitted."""
        return self.make().fit(self.train)


def rows_of(detector: Detector, outputs: ModelOutputs) -> Any:
    """The array a detector reads."""
    return getattr(outputs, detector.reads)


def replaced(detector: Detector, outputs: ModelOutputs, rows: Any) -> ModelOutputs:
    """The same outputs with other rows in the place the detector reads."""
    if detector.reads == "features":
        return ModelOutputs(outputs.logits, rows, outputs.labels)
    return ModelOutputs(rows, outputs.features, outputs.labels)


def snapshot(detector: Detector) -> tuple[Any, ...]:
    """Everything that must not change when it must not change."""
    tensors = {name: array.copy() for name, array in detector._tensors().items()} if detector.is_fitted else {}
    return detector.get_params(), detector.width_, detector.threshold_, tensors


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two snapshots are equal to the bit."""
    return (
        a[:3] == b[:3] and a[3].keys() == b[3].keys() and all(np.array_equal(a[3][name], b[3][name]) for name in a[3])
    )


def close(a: FloatArray, b: FloatArray, tolerance: float = 1e-10) -> bool:
    """Equal up to a relative and absolute tolerance."""
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


@contextmanager
def raises(*kinds: type[Exception]) -> Iterator[None]:
    """Insist on one of our errors, with a message."""
    try:
        yield
    except kinds as error:
        assert isinstance(error, NormscaleError), f"{type(error).__name__} is not a normscale error"
        assert len(str(error)) > 20, f"the message {str(error)!r} helps nobody"
        return
    raise AssertionError(f"no {' or '.join(kind.__name__ for kind in kinds)} was raised")


def keeps_its_parameters(case: Case) -> None:
    """``get_params`` gives what the constructor takes, and makes an equal detector."""
    detector = case.make()
    assert set(detector.get_params()) == set(detector.parameters)
    assert type(detector)(**detector.get_params()).get_params() == detector.get_params()
    assert type(detector).__name__ in repr(detector)


def scores_ood_higher(case: Case) -> None:
    """Higher = more out-of-distribution."""
    detector = case.fitted()
    result = evaluate(detector.score(case.test), detector.score(case.ood))
    assert result.auroc > 0.8, f"AUROC {result.auroc:.3f} on clearly separate rows: wrong direction?"


def returns_one_float_per_row(case: Case) -> None:
    """Shape (n,), float64, for many rows, one and none."""
    detector = case.fitted()
    for n in (len(case.test), 1, 0):
        for scores in (detector.score(case.test[:n]), detector.stream(case.test[:n])):
            assert scores.shape == (n,), f"{n} rows gave shape {scores.shape}"
            assert scores.dtype == np.float64, f"scores are {scores.dtype}"
            assert np.isfinite(scores).all(), "a finite row has a score that is not finite"


def agrees_across_dtypes(case: Case) -> None:
    """float16, float32, float64, strided and reversed memory, and lists: equal numbers, equal scores."""
    detector = case.fitted()
    rows = rows_of(detector, case.test).astype(np.float16)
    expected = detector.score(replaced(detector, case.test, rows.astype(np.float64)))
    wide = np.zeros((rows.shape[0], 2 * rows.shape[1]), np.float32)
    wide[:, ::2] = rows
    variants = [rows, rows.astype(np.float32), np.asfortranarray(rows), wide[:, ::2], rows.astype(">f8"), rows.tolist()]
    for variant in variants:
        scores = detector.score(replaced(detector, case.test, variant))
        assert close(scores, expected, 1e-9), f"{type(variant).__name__} input changes the scores"


def follows_the_rows(case: Case) -> None:
    """Permuting rows permutes their scores."""
    detector = case.fitted()
    order = np.random.default_rng(1).permutation(len(case.test))
    assert close(detector.score(case.test[order]), detector.score(case.test)[order])


def scores_purely(case: Case) -> None:
    """``score`` changes nothing and gives the same bits twice, also one row at a time and in threads."""
    detector = case.fitted()
    before = snapshot(detector)
    scores = detector.score(case.test)
    assert np.array_equal(scores, detector.score(case.test)), "the second call gives other bits"
    single = np.concatenate([detector.score(case.test[i : i + 1]) for i in range(20)])
    assert close(single, scores[:20]), "one row at a time gives other scores"
    assert close(detector.score(case.test, threads=2), scores), "two threads give other scores"
    assert same(before, snapshot(detector)), "score changed the state"


def streams_any_split(case: Case) -> None:
    """Any split of a stream gives the same scores and the same state."""
    whole = case.fitted()
    expected = whole.stream(case.test)
    for cuts in ((0, 150), (0, 1, 150), (0, 37, 37, 38, 149, 150), tuple(range(151))):
        parts = case.fitted()
        pieces = [parts.stream(case.test[a:b]) for a, b in pairwise(cuts)]
        assert close(np.concatenate(pieces), expected), f"split at {cuts[:4]}... changes the scores"
        for name, array in parts._tensors().items():
            assert close(array, whole._tensors()[name]), f"split at {cuts[:4]}... changes {name}"


def fits_from_chunks(case: Case) -> None:
    """Fitting on pieces equals fitting on the whole."""
    whole = case.fitted()
    parts = case.make().fit_chunks(case.train[a : a + 90] for a in range(0, len(case.train), 90))
    assert close(parts.score(case.test), whole.score(case.test), 1e-8)


def survives_a_file(case: Case) -> None:
    """Save and load: same scores to the bit, same state, threshold and class names, and no pickle involved."""
    detector = case.fitted().calibrate(case.validation, keep=0.9, per_class=True)
    detector.stream(case.test[:50])
    detector.class_names = tuple(f"class {i}" for i in range(case.n_classes))
    from normscale.state import load_state

    with tempfile.TemporaryDirectory() as folder, without_pickle():
        path = os.path.join(folder, "detector.safetensors")
        detector.save(path)
        header, tensors = load_state(path)
        assert header["detector"] == detector.name
        loaded = type(detector).from_state(header, tensors)
    assert same(snapshot(detector), snapshot(loaded)), "the loaded state differs"
    assert loaded.class_names == detector.class_names
    assert np.array_equal(loaded.score(case.test), detector.score(case.test)), "the loaded detector scores otherwise"
    assert np.array_equal(loaded.predict(case.test), detector.predict(case.test))
    assert np.array_equal(loaded.stream(case.test), detector.stream(case.test)), "its stream goes on otherwise"


@contextmanager
def without_pickle() -> Iterator[None]:
    """Any use of pickle inside is an error."""
    import pickle

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle was used")

    names = ("load", "loads", "dump", "dumps", "Pickler", "Unpickler")
    kept = {name: getattr(pickle, name) for name in names}
    try:
        for name in names:
            setattr(pickle, name, refuse)
        yield
    finally:
        for name, value in kept.items():
            setattr(pickle, name, value)


def accepts_the_share_it_was_told(case: Case) -> None:
    """``calibrate(keep)`` accepts that share of its rows; ``predict`` is ``score > threshold``."""
    detector = case.fitted()
    for keep in (0.5, 0.95, 1.0):
        detector.calibrate(case.validation, keep=keep)
        assert detector.threshold_ is not None
        flags = detector.predict(case.validation)
        assert flags.dtype == np.bool_
        assert flags.shape == (len(case.validation),)
        assert (~flags).mean() >= keep, f"keep={keep} accepts only {(~flags).mean():.3f}"
        assert np.array_equal(flags, detector.score(case.validation) > detector.threshold_.value)
    assert detector.predict(case.ood).mean() > 0.5, "clear OoD rows are accepted"


def explains_its_refusals(case: Case) -> None:
    """Unfitted, mis-shaped, non-numeric, empty: one of our errors, and the state stays as it was."""
    fresh = case.make()
    if fresh.needs_fit:
        with raises(NotFitted):
            fresh.score(case.test)
        with raises(NotFitted):
            fresh.save(os.devnull)
    with raises(NotFitted):
        case.make().decide(np.zeros(1), case.test[:1])
    with raises(InvalidInput):
        case.make().fit(case.train[:0])
    detector = case.fitted()
    before = snapshot(detector)
    rows = rows_of(detector, case.test)
    for bad in (rows[:, :-1], np.c_[rows, rows], rows[0], rows[None], np.full((3, rows.shape[1]), "x")):
        for use in (detector.score, detector.stream):
            with raises(InvalidInput):
                use(replaced(detector, case.test[: len(bad)], bad))
    assert same(before, snapshot(detector)), "a refused call changed the state"


def is_not_damaged_by_bad_rows(case: Case) -> None:
    """NaN or infinity anywhere: the row is named, nothing is taken in; "skip" scores NaN there and only there."""
    detector = case.fitted().calibrate(case.validation)
    detector.stream(case.test[:10])
    before = snapshot(detector)
    for value in (np.nan, np.inf, -np.inf):
        for dtype in (np.float16, np.float32, np.float64):
            rows = rows_of(detector, case.test).astype(dtype)
            rows[17, 1] = value
            bad = replaced(detector, case.test, rows)
            for use in (detector.score, detector.stream, detector.fit, detector.calibrate):
                try:
                    use(bad)
                except InvalidInput as error:
                    assert "row 17" in str(error), f"the message does not name the row: {error}"
                else:
                    raise AssertionError(f"{use.__name__} took {value} in")
                assert same(before, snapshot(detector)), f"{use.__name__} of {value} changed the state"
            clean = replaced(detector, case.test, rows)[np.arange(len(rows)) != 17]
            skipped = copy.copy(detector).stream(bad, on_invalid="skip")
            assert np.isnan(skipped[17])
            assert close(np.delete(skipped, 17), copy.copy(detector).stream(clean), 1e-9), "a skipped row left a trace"


def stays_finite_at_the_edges(case: Case) -> None:
    """Equal rows, constant columns, huge and tiny numbers: finite scores, and equal rows score equally."""
    detector = case.fitted()
    rows = rows_of(detector, case.test)
    for edge in (np.zeros_like(rows), rows * 1e4, rows * 1e-30, np.full_like(rows, -1e6)):
        outputs = replaced(detector, case.test, edge)
        scores = detector.score(outputs)
        assert np.isfinite(scores).all(), "a finite row has a score that is not finite"
        if (edge == edge[0]).all():
            assert (scores == scores[0]).all(), "equal rows score differently"
        assert np.isfinite(copy.copy(detector).stream(outputs)).all(), "a streamed finite row scores not finite"


CHECKS: dict[str, Callable[[Case], None]] = {
    check.__name__: check
    for check in (
        accepts_the_share_it_was_told,
        agrees_across_dtypes,
        explains_its_refusals,
        fits_from_chunks,
        follows_the_rows,
        is_not_damaged_by_bad_rows,
        keeps_its_parameters,
        returns_one_float_per_row,
        scores_ood_higher,
        scores_purely,
        stays_finite_at_the_edges,
        streams_any_split,
        survives_a_file,
    )
}


def check_detector(
    make: Callable[[], Detector], *, n_classes: int = 5, checks: list[str] | None = None, seed: int = 0
) -> list[str]:
    """Run the suite over a detector.

    Parameters
    ----------
    make : callable
        Makes a new, unfitted detector: a class, or ``lambda: MyDetector(parameter=2)``.
    n_classes : int
        Of the outputs it is tested on; 2 is a case of its own.
    checks : list of names, optional
        Only these; see :data:`CHECKS`.

    Returns
    -------
    list of the names of the checks that passed; the first that fails raises ``AssertionError``
    """
    passed = sorted(CHECKS) if checks is None else checks
    for name in passed:
        try:
            CHECKS[name](Case(make, n_classes, seed))
        except AssertionError as error:
            raise AssertionError(f"{make().name} {name.replace('_', ' ')}: no. {error}") from error
    return passed
