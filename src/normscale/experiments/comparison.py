"""Compare detectors on the same outputs: one in-distribution test set, any number of OoD sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normscale._version import __version__
from normscale.detectors.base import Detector, Setting
from normscale.detectors.registry import make_detector
from normscale.errors import InvalidInput
from normscale.experiments.measurement import Measurement
from normscale.experiments.measuring import NO_NUMBERS, Advance, Measured, measure
from normscale.experiments.methods import Method, default_methods, every_setting, fit_on
from normscale.outputs import ModelOutputs


def compare(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    train: ModelOutputs | None = None,
    validation: ModelOutputs | None = None,
    detectors: Sequence[Detector] | None = None,
    seed: int = 0,
    begin: Callable[[list[Method]], None] = lambda _: None,
    advance: Advance = lambda rows, what: None,
    keep: Callable[[Measured], None] = lambda _: None,
) -> list[Measurement]:
    """Fit what needs fitting, score both sides in every setting of every detector, evaluate.

    Parameters
    ----------
    id_test : ModelOutputs
        In-distribution inputs the classifier was not trained on.
    ood_sets : mapping of name to ModelOutputs
    train : ModelOutputs, optional
        What detectors are fitted on. Without it, only those that need no fitting take part.
    validation : ModelOutputs, optional
        Labelled held-out inputs, for detectors that are fitted on these.
    detectors : detectors to compare, optional
        Fitted ones are used as they are; by default every registered one that the outputs suffice for.
    seed : int
        Order of the shuffled streams.
    begin : callable
        Told the methods with their fitted detectors before the first row is scored.
    advance : callable
        Told how many rows were scored, see :func:`normscale.experiments.measuring.rows_to_score`.
    keep : callable
        Given every record with the scores behind it as soon as it is there.

    Returns
    -------
    list of Measurement
        What cannot be computed has NaN for numbers, and ``skipped`` says why. A detector that was asked for and cannot
        be fitted is an error; one that was only tried is skipped.

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> rows = compare(sample.test, {"noise": sample.ood["uniform_noise"]}, detectors=[ns.MSP(), ns.Energy()])
    >>> [(row.method, round(row.auroc, 3)) for row in rows]
    [('msp', 0.882), ('energy', 0.886)]
    """
    asked_for = detectors is not None
    if detectors is None:
        detectors = [
            make_detector(name) for name in default_methods(train, validation, present=[id_test, *ood_sets.values()])
        ]
    fitted: list[Detector] = []
    failed: dict[str, tuple[Detector, str]] = {}
    for detector in detectors:
        try:
            fitted.append(fit_on(detector, train, validation))
        except InvalidInput as error:
            if asked_for:
                raise
            failed[detector.name] = (detector, str(error))
    methods = [method for detector in fitted for method in every_setting(detector)]
    begin(methods)
    rows: list[Measurement] = []
    for one in measure(methods, id_test, ood_sets, seed=seed, advance=advance):
        record = one.record if one.record.setting == Setting.STREAM else one.record._replace(seed=None)
        keep(Measured(record, one.scores))
        rows.append(record)
    return rows + [
        _not_measured(method, name, len(id_test), len(ood), why)
        for detector, why in failed.values()
        for method in every_setting(detector)
        for name, ood in ood_sets.items()
    ]


def _not_measured(method: Method, ood_set: str, n_id: int, n_ood: int, why: str) -> Measurement:
    return Measurement(
        ood_set=ood_set,
        method=method.name,
        detector=method.detector.name,
        title=method.title,
        setting=method.setting,
        parameters=method.detector.get_params(),
        metrics=NO_NUMBERS,
        n_id=n_id,
        n_ood=n_ood,
        seed=None,
        version=__version__,
        skipped=why,
    )
