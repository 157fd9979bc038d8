"""Compare detectors on the same outputs: one in-distribution test set, any number of OoD sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.measuring import Advance, Measured, measure
from normscale.bench.experiments.methods import Method, default_methods, every_setting, fit_on, uniquely_named
from normscale.dataframes import read_dataframe
from normscale.detectors.base import Detector, OutputsLike, Setting
from normscale.detectors.choosing import AUTO, default_detector
from normscale.detectors.registry import make_detector
from normscale.errors import InvalidInput
from normscale.input_checks.tables import shared_names
from normscale.outputs import ModelOutputs, as_outputs, is_dataframe


def compare(
    id_test: OutputsLike,
    ood_sets: Mapping[str, OutputsLike],
    *,
    train: OutputsLike | None = None,
    validation: OutputsLike | None = None,
    detectors: Sequence[Detector | str] | Mapping[str, Detector | str] | None = None,
    seed: int = 0,
) -> list[Measurement]:
    """Fit what needs fitting, score both sides in every setting of every detector, evaluate.

    Parameters
    ----------
    id_test : ModelOutputs, array, tensor, mapping or DataFrame
        In-distribution inputs the classifier was not trained on. An array is logits. Columns of DataFrames are matched
        by name: by the classes of a fitted detector, or else of the first frame among train, validation and test.
    ood_sets : mapping of name to the same
    train : the same, optional
        What detectors are fitted on. Without it, only those that need no fitting take part.
    validation : the same, optional
        Labelled held-out inputs, for detectors that are fitted on these.
    detectors : detectors to compare or their names, or a mapping of what to call them to either; optional
        Fitted ones are used as they are; ``"auto"`` is what :func:`normscale.fit` chooses for ``train``; by default
        every registered one that the outputs suffice for.
    seed : int
        Order of the shuffled streams.

    Returns
    -------
    list of Measurement
        What cannot be computed has NaN for numbers, and ``skipped`` says why. A detector that was asked for and cannot
        be fitted is an error; one that was only tried is skipped.

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> rows = compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP(), "energy"])
    >>> [(row.method, round(row.auroc, 3)) for row in rows]
    [('msp', 0.882), ('energy', 0.886)]
    """
    return compare_with(id_test, ood_sets, train=train, validation=validation, detectors=detectors, seed=seed)


def compare_with(
    id_test: OutputsLike,
    ood_sets: Mapping[str, OutputsLike],
    *,
    train: OutputsLike | None = None,
    validation: OutputsLike | None = None,
    detectors: Sequence[Detector | str] | Mapping[str, Detector | str] | None = None,
    seed: int = 0,
    begin: Callable[[list[Method]], None] = lambda _: None,
    advance: Advance = lambda rows, what: None,
    keep: Callable[[Measured], None] = lambda _: None,
) -> list[Measurement]:
    """Compare as :func:`compare` does, and call back on the way.

    Parameters
    ----------
    id_test, ood_sets, train, validation, detectors, seed
        As in :func:`compare`.
    begin : callable
        Called with the methods with their fitted detectors before the first row is scored.
    advance : callable
        Called with how many rows were scored, see :func:`normscale.bench.experiments.measuring.rows_to_score`.
    keep : callable
        Called with every record and the scores behind it as soon as it is there.
    """
    asked_for = detectors is not None
    chosen = _named(detectors or (), train)
    read = _Reader(shared_names((name, one.class_names) for name, one in chosen.items()))
    to_fit, held_out = (None if one is None else read(one) for one in (train, validation))
    test = read(id_test)
    sets = {name: read(ood) for name, ood in ood_sets.items()}
    if not asked_for:
        chosen = _named(default_methods(to_fit, held_out, present=[test, *sets.values()]))
    fitted: dict[str, Detector] = {}
    failed: dict[str, tuple[Detector, str]] = {}
    for name, detector in chosen.items():
        try:
            fitted[name] = fit_on(detector, to_fit, held_out)
        except InvalidInput as error:
            if asked_for:
                raise
            failed[name] = (detector, str(error))
    methods = [method for item in fitted.items() for method in every_setting(*item)]
    begin(methods)
    rows: list[Measurement] = []
    for one in measure(methods, test, sets, seed=seed, advance=advance):
        record = one.record if one.record.setting == Setting.STREAM else one.record._replace(seed=None)
        keep(Measured(record, one.scores))
        rows.append(record)
    return rows + [
        Measurement.of(method, ood_set, n_id=len(test), n_ood=len(ood), skipped=why)
        for name, (detector, why) in failed.items()
        for method in every_setting(name, detector)
        for ood_set, ood in sets.items()
    ]


def _named(
    detectors: Sequence[Detector | str] | Mapping[str, Detector | str] | Detector | str,
    train: OutputsLike | None = None,
) -> dict[str, Detector]:
    """Detectors by what to call them."""
    if isinstance(detectors, (str, Detector)):
        detectors = [detectors]
    names = list(detectors) if isinstance(detectors, Mapping) else None
    given = detectors.values() if isinstance(detectors, Mapping) else detectors
    made = [one if isinstance(one, Detector) else _made(one, train) for one in given]
    return uniquely_named(zip(names or [one.name for one in made], made, strict=True))


def _made(name: str, train: OutputsLike | None) -> Detector:
    if name != AUTO:
        return make_detector(name)
    if train is None:
        raise InvalidInput("auto chooses a detector for the training outputs; pass train=...")
    outputs = _Reader(None)(train)
    return default_detector(outputs.names, head=outputs.head is not None).detector


class _Reader:
    """Makes outputs of what a caller has; the columns of every DataFrame come in the order of the first names."""

    def __init__(self, class_names: tuple[str, ...] | None) -> None:
        self._class_names = class_names

    def __call__(self, value: OutputsLike) -> ModelOutputs:
        if not is_dataframe(value):
            return as_outputs(value)
        outputs, names = read_dataframe(value, class_names=self._class_names)
        self._class_names = self._class_names or names
        return outputs
