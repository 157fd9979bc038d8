"""Compare detectors on the same outputs: one in-distribution test set, any number of OoD sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from normscale.detectors.base import Detector, Setting
from normscale.detectors.registry import make_detector
from normscale.experiments.measurement import Measurement
from normscale.experiments.measuring import measure
from normscale.experiments.methods import default_methods, every_setting, fit_on
from normscale.outputs import ModelOutputs


def compare(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    train: ModelOutputs | None = None,
    validation: ModelOutputs | None = None,
    detectors: Sequence[Detector] | None = None,
    seed: int = 0,
    tick: Callable[[str], None] = lambda _: None,
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
    tick : callable
        Told the name of each OoD set when it is done.
    """
    if detectors is None:
        detectors = [
            make_detector(name) for name in default_methods(train, validation, present=[id_test, *ood_sets.values()])
        ]
    fitted = [fit_on(detector, train, validation) for detector in detectors]
    methods = [method for detector in fitted for method in every_setting(detector)]
    rows = [one.record for one in measure(methods, id_test, ood_sets, seed=seed, tick=tick)]
    return [row if row.setting == Setting.STREAM else row._replace(seed=None) for row in rows]
