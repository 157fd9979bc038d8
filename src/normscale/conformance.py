"""What every detector must do, as a suite that anyone can run over their own.

>>> import normscale as ns
>>> from normscale.conformance import check_detector
>>> check_detector(ns.Energy)  # doctest: +ELLIPSIS
['accepts_the_share_asked_for', ...]

Each check is a function of a :class:`Case`; a broken promise is a :class:`BrokenPromise` that says which.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from normscale._validate import FloatArray
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, NormscaleError, NotFitted
from normscale.metrics.ranking import evaluate
from normscale.outputs import ModelOutputs
from normscale.state import copied, load_state, record_arrays, same_records


class BrokenPromise(NormscaleError, AssertionError):
    """A detector does not do what every detector must do."""


def require(kept: object, message: str) -> None:
    """Raise :class:`BrokenPromise` unless a promise was kept; unlike ``assert`` also under ``python -O``."""
    if not kept:
        raise BrokenPromise(message)


class Case:
    """A detector under test and outputs to test it on: clear in-distribution rows, and rows near no class.

    The outputs have logits, features, head and labels, and every further array that the detector reads: one whose name
    ends in ``logits`` looks like logits, any other like features.
    """

    def __init__(self, make: Callable[[], Detector], n_classes: int, seed: int = 0) -> None:
        self.make = make
        self.n_classes = n_classes
        self._rng = np.random.default_rng(seed)
        self._names = tuple(dict.fromkeys(make()._arrays_in_fit))
        self._n_features = n_classes + 3
        self._head = (np.eye(n_classes, self._n_features), np.zeros(n_classes))
        self.train = self.in_distribution(400)
        self.validation = self.in_distribution(200)
        self.test = self.in_distribution(150)
        self.ood = self.out_of_distribution(120)

    def in_distribution(self, n: int) -> ModelOutputs:
        """Rows that belong to a class: one large logit, features near the mean of the class."""
        labels = self._rng.integers(0, self.n_classes, n)
        labels[: self.n_classes] = np.arange(self.n_classes)  # every class occurs
        means = 9.0 * np.eye(self.n_classes, self._n_features)[labels]
        wrong = slice(self.n_classes, self.n_classes + max(1, n // 20))  # nobody's classifier is always right
        labels[wrong] = (labels[wrong] + 1) % self.n_classes
        return self._outputs(means, labels)

    def out_of_distribution(self, n: int) -> ModelOutputs:
        """Rows that belong to none: no logit above 0, features far out in directions that no class uses."""
        means = np.full((n, self._n_features), -1.5)
        means[:, self.n_classes :] = -9.0
        return self._outputs(means, None, noise=0.3)

    def faint(self, n: int) -> ModelOutputs:
        """Rows of an input that excites next to nothing: all features and logits are small."""
        return self._outputs(np.zeros((n, self._n_features)), None, noise=0.1)

    def _outputs(self, means: FloatArray, labels: Any, noise: float = 1.0) -> ModelOutputs:
        features = means + self._rng.normal(0.0, noise, means.shape)
        logits = features @ self._head[0].T
        arrays = {"logits": logits, "features": features}
        for name in self._names:
            like = logits if name.endswith("logits") else features
            arrays.setdefault(name, like + self._rng.normal(0.0, 0.1, like.shape))
        return ModelOutputs(labels=labels, head=self._head, **arrays)

    def fitted(self) -> Detector:
        """A new detector, fitted."""
        return self.make().fit(self.train)


def with_arrays(detector: Detector, outputs: ModelOutputs, change: Callable[[Any], Any]) -> ModelOutputs:
    """The outputs with every array that the detector reads changed, and no other."""
    return ModelOutputs(labels=outputs.labels, **{name: change(outputs.array(name)) for name in detector.reads})


def snapshot(detector: Detector) -> tuple[Any, ...]:
    """Everything that must not change when it must not change."""
    return detector.get_params(), detector._widths, detector.threshold_, copied(detector._arrays())


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two snapshots are equal to the bit."""
    return a[:3] == b[:3] and same_records(a[3], b[3])


def same_arrays(a: Mapping[str, Any], b: Mapping[str, Any], tolerance: float, message: str) -> None:
    """Insist that two sets of arrays have the same names and, up to a tolerance, the same numbers."""
    require(a.keys() == b.keys(), f"{message}: arrays of other names")
    for name in a:
        require(close(a[name], b[name], tolerance), f"{message}: {name} differs")


def close(a: FloatArray, b: FloatArray, tolerance: float = 1e-10) -> bool:
    """Equal up to a relative and absolute tolerance."""
    return a.shape == b.shape and bool(np.allclose(a, b, rtol=tolerance, atol=tolerance))


@contextmanager
def raises(*kinds: type[Exception]) -> Iterator[None]:
    """Insist on one of our errors, with a message."""
    try:
        yield
    except kinds as error:
        require(isinstance(error, NormscaleError), f"{type(error).__name__} is not a normscale error")
        require(len(str(error)) > 20, f"the message {str(error)!r} helps nobody")
        return
    raise BrokenPromise(f"no {' or '.join(kind.__name__ for kind in kinds)} was raised")


def keeps_its_parameters(case: Case) -> None:
    """``get_params`` gives what the constructor takes, and makes an equal detector."""
    detector, cls = case.make(), type(case.make())
    given = detector.get_params()
    require(set(given) == set(detector.about.parameters), "get_params and parameters name different arguments")
    require(cls(**given).get_params() == given, "a detector made from get_params has other parameters")
    require(cls.__name__ in repr(detector), "repr does not show the class")
    try:
        cls(**{**given, "no_such_parameter": 1})
    except TypeError:
        return
    raise BrokenPromise("the constructor takes an argument that it does not know")


def says_what_it_is(case: Case) -> None:
    """Title, what it reads and its parameters, each with a meaning, stand in the class."""
    detector = case.make()
    require(detector.about.title, "it has no title")
    require(isinstance(detector.reads, tuple) and detector.reads, "reads must be a tuple of names")
    require(isinstance(detector.about.parameters, Mapping), "parameters must map each name to its meaning")
    require(all(detector.about.parameters.values()), "a parameter has no meaning")
    require(detector.about.fitted_on in ("train", "validation"), "fitted_on must be train or validation")


def streams_in_threads(case: Case) -> None:
    """Rows streamed from several threads at once are all counted, as if they had come one block after the other."""
    detector = case.fitted()
    if not detector._runs:
        return
    block = case.test[:30]
    one = case.fitted()
    for _ in range(16):
        one.stream(block)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(detector.stream, [block] * 16))
    same_arrays(detector._arrays(), one._arrays(), 1e-9, "rows that came from several threads were lost")


def scores_ood_higher(case: Case) -> None:
    """Higher = more out-of-distribution, on rows far from every class or on rows where next to nothing is excited.

    A detector may be blind to one of them; one that is upside down on both has the wrong direction.
    """
    detector = case.fitted()
    inside = detector.score(case.test)
    found = [evaluate(inside, detector.score(rows)).auroc for rows in (case.ood, case.faint(120))]
    require(max(found) > 0.8, f"AUROC {max(found):.3f} at most on clearly separate rows: wrong direction?")


def returns_one_float_per_row(case: Case) -> None:
    """Shape (n,), float64, for many rows, one and none."""
    detector = case.fitted()
    for n in (len(case.test), 1, 0):
        for scores in (detector.score(case.test[:n]), detector.stream(case.test[:n])):
            require(scores.shape == (n,), f"{n} rows gave shape {scores.shape}")
            require(scores.dtype == np.float64, f"scores are {scores.dtype}")
            require(np.isfinite(scores).all(), "a finite row has a score that is not finite")


def agrees_across_dtypes(case: Case) -> None:
    """float16, float32, float64, strided and reversed memory, and lists: equal numbers, equal scores."""
    detector = case.fitted()
    rows = with_arrays(detector, case.test, lambda array: array.astype(np.float16))
    expected = detector.score(with_arrays(detector, rows, lambda array: array.astype(np.float64)))
    variants: dict[str, Callable[[Any], Any]] = {
        "float16": lambda array: array,
        "float32": lambda array: array.astype(np.float32),
        "Fortran order": np.asfortranarray,
        "strided": lambda array: np.repeat(array, 2, axis=1)[:, ::2],
        "big-endian": lambda array: array.astype(">f8"),
        "list": lambda array: array.tolist(),
    }
    for variant, change in variants.items():
        scores = detector.score(with_arrays(detector, rows, change))
        require(close(scores, expected, 1e-9), f"{variant} input changes the scores")


def follows_the_rows(case: Case) -> None:
    """Permuting rows permutes their scores."""
    detector = case.fitted()
    order = np.random.default_rng(1).permutation(len(case.test))
    same_order = detector.score(case.test)[order]
    require(close(detector.score(case.test[order]), same_order), "permuted rows have other scores")


def scores_purely(case: Case) -> None:
    """``score`` changes nothing and gives the same bits twice, also one row at a time and in threads."""
    detector = case.fitted()
    before = snapshot(detector)
    scores = detector.score(case.test)
    require(np.array_equal(scores, detector.score(case.test)), "the second call gives other bits")
    single = np.concatenate([detector.score(case.test[i : i + 1]) for i in range(20)])
    require(close(single, scores[:20]), "one row at a time gives other scores")
    require(close(detector.score(case.test, threads=2), scores), "two threads give other scores")
    require(same(before, snapshot(detector)), "score changed the state")


def streams_any_split(case: Case) -> None:
    """Any split of a stream gives the same scores and the same state."""
    whole = case.fitted()
    expected = whole.stream(case.test)
    for cuts in ((0, 150), (0, 1, 150), (0, 37, 37, 38, 149, 150), tuple(range(151))):
        parts = case.fitted()
        pieces = [parts.stream(case.test[a:b]) for a, b in pairwise(cuts)]
        require(close(np.concatenate(pieces), expected), f"split at {cuts[:4]}... changes the scores")
        same_arrays(parts._arrays(), whole._arrays(), 1e-10, f"split at {cuts[:4]}... changes the state")


def steps_purely(case: Case) -> None:
    """``step`` gives what ``stream`` gives, and leaves the state that it was given as it was."""
    detector = case.fitted()
    before = copied(detector.start())
    begun = detector.start()
    scores, after = detector.step(begun, case.test)
    require(same_records(begun, before), "step changed the state that it was given")
    if not detector._runs:
        require(close(scores, detector.score(case.test)), "step and score give other scores, and nothing runs")
        return
    require(same_records(detector.start(), detector.state_), "step changed the state that the detector keeps")
    require(close(scores, detector.stream(case.test)), "step and stream give other scores")
    same_arrays(record_arrays(after), record_arrays(detector.state_), 1e-10, "step and stream give other states")
    require(close(detector.score(case.ood, state=after), detector.score(case.ood)), "score by a state differs")


def merges_its_streams(case: Case) -> None:
    """``merge`` of two streams' states is the state of both streams, or is refused in words."""
    detector = case.fitted()
    first, second = (detector.step(detector.start(), rows)[1] for rows in (case.test[:70], case.test[70:]))
    try:
        merged = record_arrays(detector.merge(first, second))
    except InvalidInput as error:
        require(len(str(error)) > 20, f"the message {str(error)!r} helps nobody")
        return
    whole = record_arrays(detector.step(detector.start(), case.test)[1])
    same_arrays(merged, whole, 1e-8, "merged streams are not one stream")


def fits_from_chunks(case: Case) -> None:
    """Fitting on pieces equals fitting on the whole."""
    whole = case.fitted()
    parts = case.make()._fit_chunks(case.train[a : a + 90] for a in range(0, len(case.train), 90))
    require(close(parts.score(case.test), whole.score(case.test), 1e-8), "fitting on pieces gives other scores")


def survives_a_file(case: Case) -> None:
    """Save and load: same scores to the bit, same state, threshold and class names."""
    detector = case.fitted().set_threshold(case.validation, keep=0.9, per_class=True)
    detector.stream(case.test[:50])
    detector.class_names = tuple(f"class {i}" for i in range(case.n_classes))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "detector.safetensors")
        detector.save(path)
        header, tensors = load_state(path)
        require(header["detector"] == type(detector).name, "the file names another detector")
        loaded = type(detector)._from_state(header, tensors)
    require(same(snapshot(detector), snapshot(loaded)), "the loaded state differs")
    require(loaded.class_names == detector.class_names, "the class names were lost")
    for verb in ("score", "predict", "stream"):
        own, other = (getattr(one, verb)(case.test) for one in (detector, loaded))
        require(np.array_equal(own, other), f"{verb} of the loaded detector gives other numbers")


def accepts_the_share_asked_for(case: Case) -> None:
    """``set_threshold(keep)`` accepts that share of its rows; ``predict`` is ``score > threshold``."""
    detector = case.fitted()
    for keep in (0.95, 1.0, 0.5):
        detector.set_threshold(case.validation, keep=keep)
        threshold = detector.threshold_
        if threshold is None:
            raise BrokenPromise("set_threshold set none")
        flags = detector.predict(case.validation)
        require(flags.dtype == np.bool_ and flags.shape == (len(case.validation),), "predict gives no Boolean per row")
        require((~flags).mean() >= keep, f"keep={keep} accepts only {(~flags).mean():.3f}")
        above = detector.score(case.validation) > threshold.value
        require(np.array_equal(flags, above), "predict is not score > threshold")


def explains_its_refusals(case: Case) -> None:
    """Unfitted, mis-shaped, non-numeric, empty: one of our errors, and the state stays as it was."""
    fresh = case.make()
    if fresh._needs_fit:
        with raises(NotFitted):
            fresh.score(case.test)
        with raises(NotFitted):
            fresh.save(os.devnull)
    with raises(NotFitted):
        case.make().predict(case.test[:1], scores=np.zeros(1))
    with raises(InvalidInput):
        case.make().fit(case.train[:0])
    detector = case.fitted()
    before = snapshot(detector)
    mistakes: tuple[Callable[[Any], Any], ...] = (
        lambda rows: rows[:, :-1],
        lambda rows: np.c_[rows, rows],
        lambda rows: rows[0],
        lambda rows: rows[None],
        lambda rows: np.full((3, rows.shape[1]), "x"),
    )
    for mistake in mistakes:
        for use in (detector.score, detector.stream):
            with raises(InvalidInput):
                use(with_arrays(detector, case.test.replace(labels=None), mistake))
    for name in detector.reads:
        with raises(InvalidInput):
            detector.score(ModelOutputs(another_array=case.test.array(name)))
    require(same(before, snapshot(detector)), "a refused call changed the state")


def _with_bad_rows(detector: Detector, outputs: ModelOutputs) -> Iterator[tuple[str, ModelOutputs]]:
    """All that ``fit`` needs, with a bad number in row 17 of one array that is read; and what was done to it."""
    first, *others = detector.reads
    values, dtypes = (np.nan, np.inf, -np.inf), (np.float16, np.float32, np.float64)
    spoiled = [(first, value, dtype) for value in values for dtype in dtypes]
    spoiled += [(name, value, np.float32) for name in others for value in (np.nan, np.inf)]
    for name, value, dtype in spoiled:
        rows = outputs.array(name).astype(dtype)
        rows[17, 1 if name == first else slice(None)] = value
        yield f"{value} of {name}", outputs.replace(**{name: rows})


def is_not_damaged_by_bad_rows(case: Case) -> None:
    """NaN or infinity anywhere: the row is named, nothing is taken in; "skip" scores NaN there and only there."""
    detector = case.fitted().set_threshold(case.validation)
    detector.stream(case.test[:10])
    before = snapshot(detector)
    for what, bad in _with_bad_rows(detector, case.test):
        for use in (detector.score, detector.stream, detector.fit, detector.set_threshold):
            try:
                use(bad)
            except InvalidInput as error:
                require("row 17" in str(error), f"the message does not name the row: {error}")
            else:
                raise BrokenPromise(f"{use.__name__} took {what} in")
            require(same(before, snapshot(detector)), f"{use.__name__} of {what} changed the state")
        clean = bad[np.arange(len(bad)) != 17]
        skipped = copy.copy(detector).stream(bad, on_invalid="skip")
        require(np.isnan(skipped[17]), f"a row skipped for {what} has a score")
        require(close(np.delete(skipped, 17), copy.copy(detector).stream(clean), 1e-9), "a skipped row left a trace")


def stays_finite_at_the_edges(case: Case) -> None:
    """Equal rows, constant columns, huge and tiny numbers: finite scores, and equal rows score equally."""
    detector = case.fitted()
    detector._marks_far_rows = False
    edges: tuple[Callable[[Any], Any], ...] = (
        np.zeros_like,
        lambda rows: rows * 1e4,
        lambda rows: rows * 1e-30,
        lambda rows: np.full_like(rows, -1e6),
    )
    for edge in edges:
        outputs = with_arrays(detector, case.test, edge)
        scores = detector.score(outputs)
        require(np.isfinite(scores).all(), "a finite row has a score that is not finite")
        if all((outputs.array(name) == outputs.array(name)[0]).all() for name in detector.reads):
            # Up to rounding: a matrix product may sum the last rows of a block in another order.
            require(close(scores, np.full_like(scores, scores[0]), 1e-12), "equal rows score differently")
        require(np.isfinite(copy.copy(detector).stream(outputs)).all(), "a streamed finite row scores not finite")


CHECKS: dict[str, Callable[[Case], None]] = {
    name: check
    for name, check in sorted(globals().items())
    if getattr(check, "__annotations__", {}) == {"case": "Case", "return": "None"}
}
"""Every function above that takes a :class:`Case`."""


def check_detector(
    make: Callable[[], Detector], *, n_classes: int = 5, checks: list[str] | None = None, seed: int = 0
) -> list[str]:
    """Run the suite over a detector.

    ``make`` gives a new, unfitted detector: a class, or ``lambda: MyDetector(parameter=2)``. ``checks`` limits the
    suite to some of :data:`CHECKS`. Returns the names of the checks that passed; the first that fails raises
    :class:`BrokenPromise`.
    """
    passed = sorted(CHECKS) if checks is None else checks
    for name in passed:
        try:
            CHECKS[name](Case(make, n_classes, seed))
        except BrokenPromise as error:
            raise BrokenPromise(f"{make().name} {name.replace('_', ' ')}: no. {error}") from error
    return passed
