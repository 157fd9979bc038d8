"""A leaderboard's numbers: every detector on one network's outputs, as fitted and in five kinds of streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from normscale._provenance import environment
from normscale.bench.experiments.alarms import Alarms, changed_outputs, changed_pictures, false_alarms
from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.bench.experiments.measuring import measure
from normscale.bench.experiments.methods import Method, fit_on, main_setting
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.streams import ClassBalance, Streams, stream_classes
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.network_folder import OWN_SETS, TEST, TRAIN, VALIDATION
from normscale.detectors.base import Detector, Setting
from normscale.detectors.choosing import default_detector
from normscale.detectors.registry import make_detector
from normscale.errors import InvalidInput, NormscaleError
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

KINDS = {
    "50 % OoD": StreamKind(0.5, "shuffled", "balanced"),
    "10 % OoD": StreamKind(0.1, "shuffled", "balanced"),
    "2 % OoD": StreamKind(0.02, "shuffled", "balanced"),
    "Bursts": StreamKind(0.1, "bursts", "balanced"),
    "One class 80 %": StreamKind(0.1, "shuffled", "one class 80 %"),
}
"""The kinds of streams by the title of their column; in the last two a tenth of the rows is OoD."""
DEFAULT = "default"
"""The name of the method that :func:`normscale.fit` chooses."""
AS_FITTED = "_frozen"
"""Ends the name of a detector whose statistics could run and do not."""


def rank_run(
    run: RunFolder,
    detectors: Sequence[str],
    *,
    rows: int | None = None,
    train_rows: int | None = None,
    tick: Callable[[str], None] = lambda _: None,
) -> StressResult:
    """Measure detectors on the outputs of a run's first network.

    ``rows`` bounds each OoD set, five times as many the test set, whose classes are drawn apart, and ``train_rows`` the
    training set; they are drawn once, with seed 0. A detector that cannot be fitted or measured is named in
    ``settings["left_out"]`` with the reason. Inputs that have changed are corrupted test pictures where the network and
    its pictures are at hand, otherwise scaled and noised outputs; ``settings["changed"]`` says which.
    """
    seed = run.plan.seeds[0]
    names = [name for name in (*OWN_SETS, *run.plan.ood) if run.has_outputs(seed, name)]
    most = {TRAIN: train_rows, TEST: None if rows is None else 5 * rows}
    read = {name: _some(run.outputs(seed, name), most.get(name, rows)) for name in names}
    sets = {name: read[name] for name in run.plan.ood if name in read}
    if TEST not in read or TRAIN not in read or not sets:
        raise InvalidInput(
            f"{run.path} has no outputs of a training set, a test set and an OoD set. "
            "Run `normscale bench` on it: it extracts them."
        )
    files = run.network(seed)
    try:
        changed, how = dict(changed_pictures(files.path, run.plan.data)) if files.network.exists() else {}, "pictures"
    except NormscaleError:  # the pictures are elsewhere
        changed = {}
    if not changed:
        changed, how = dict(changed_outputs(read[TEST].only(*(set(read[TEST].names) & {LOGITS, FEATURES})))), "outputs"
    result = rank(detectors, read[TRAIN], read.get(VALIDATION), read[TEST], sets, changed, tick=tick)
    about = {"network": run.plan.name, "in_set": run.plan.in_set, "seed": seed, "made_by": environment()}
    asked = {"detectors": list(detectors), "rows": rows, "train_rows": train_rows}
    return result._replace(settings={**about, **result.settings, "changed": how, "asked": asked})


def _some(outputs: ModelOutputs, rows: int | None) -> ModelOutputs:
    if rows is None or len(outputs) <= rows:
        return outputs
    return outputs[np.sort(np.random.default_rng(0).permutation(len(outputs))[:rows])]


def rank(
    detectors: Sequence[str],
    train: ModelOutputs,
    validation: ModelOutputs | None,
    test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    changed: Mapping[str, ModelOutputs] | None = None,
    *,
    tick: Callable[[str], None] = lambda _: None,
) -> StressResult:
    """Fit and measure detectors one after the other: on all rows, and in every one of ``KINDS``.

    Rows of the result without a stream are of all rows of both sets. ``tick`` is called with the name of a detector
    that is done. The share that the default flags of streams without OoD rows is measured too, of inputs that have
    ``changed`` among them.
    """
    balances = {kind.balance: ClassBalance(stream_classes(test), kind.balance, 0) for kind in KINDS.values()}
    orders: dict[tuple[float, str], list[str]] = {}
    for kind in KINDS.values():
        orders.setdefault((kind.share, kind.balance), []).append(kind.order)
    streams = [Streams(len(test))]
    streams += [Streams(len(test), share, balances[name], found) for (share, name), found in orders.items()]
    found: list[Measurement] = []
    alarms: list[Alarms] = []
    left_out: dict[str, str] = {}
    for name in detectors:
        try:
            detector = _made(name, train)
            fitted = fit_on(detector, train, validation)
            measured = list(measure(_methods(name, fitted), test, ood_sets, streams=streams, quiet=True))
            found += [one.record._replace(version="", commit=None) for one in measured]
            if name == DEFAULT:
                alarms += false_alarms({name: fitted}, test, changed or {})
        except NormscaleError as error:
            left_out[name] = str(error)
        except Exception as error:  # whatever a detector does must not take the others with it
            left_out[name] = f"{type(error).__name__}: {error}"
        tick(name)
    sizes = {"n_train": len(train), "n_id": len(test), "ood_sets": {one: len(rows) for one, rows in ood_sets.items()}}
    return StressResult(found, {**sizes, "left_out": left_out}, alarms=alarms)


def _made(name: str, train: ModelOutputs) -> Detector:
    return default_detector(train.names, head=train.head is not None) if name == DEFAULT else make_detector(name)


def _methods(name: str, detector: Detector) -> list[Method]:
    """A detector in its main setting and, where its statistics run, as fitted too."""
    setting, title = main_setting(detector), "Default" if name == DEFAULT else detector.about.title
    own = [Method(name, detector, setting, title)]
    return own + [Method(name + AS_FITTED, detector, Setting.FROZEN, title)] * (setting is Setting.STREAM)
