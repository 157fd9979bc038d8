"""Detectors on streams of many kinds: the stress grid says which to use, the leaderboard ranks all of them.

Every kind of stream (:mod:`normscale.bench.experiments.streams`) is a share of OoD rows, an order, and a class balance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normscale._progress import bar
from normscale._provenance import environment
from normscale.bench.experiments.alarms import Alarms, changed_outputs, changed_pictures, false_alarms
from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.bench.experiments.measuring import measure
from normscale.bench.experiments.methods import (
    DEFAULT,
    FROZEN_SUFFIX,
    Method,
    fit_on,
    main_setting,
    make_for,
    title_of,
    why_failed,
)
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.streams import Streams, all_kinds, streams_of
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.network_folder import OWN_SETS, TEST, TRAIN, VALIDATION
from normscale.detectors.base import Detector, Setting
from normscale.errors import InvalidInput, NormscaleError
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

GRID = all_kinds(shares=(0.01, 0.05, 0.10, 0.25, 0.50))
"""Kinds of streams that give advice within a minute."""
KINDS = {
    "50 % OoD": StreamKind(0.5, "shuffled", "balanced"),
    "10 % OoD": StreamKind(0.1, "shuffled", "balanced"),
    "2 % OoD": StreamKind(0.02, "shuffled", "balanced"),
    "Bursts": StreamKind(0.1, "bursts", "balanced"),
    "One class 80 %": StreamKind(0.1, "shuffled", "one class 80 %"),
}
"""The kinds of streams of the leaderboard by the title of their column; in the last two a tenth of the rows is OoD."""


def stress(
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    methods: Mapping[str, Detector],
    *,
    kinds: Sequence[StreamKind] = GRID,
    changed: Mapping[str, ModelOutputs] | None = None,
    notes: Mapping[str, Any] | None = None,
    seed: int = 0,
    threads: int = 1,
) -> StressResult:
    """Measure fitted detectors, by name, on every kind of stream; none of them is changed.

    There is a row for every OoD set, kind of stream and method. A stream that the sets have too few rows for has rows
    without numbers and with the reason. With ``changed``, outputs on inputs that have changed, the false alarms of the
    methods that run are counted too. ``notes`` are kept in the result's settings.

    Examples
    --------
    >>> import normscale as ns
    >>> sample = ns.load_sample()
    >>> result = stress(sample.test, {"noise": sample.ood["uniform_noise"]}, {"energy": ns.Energy()})
    >>> round(result.means()[StreamKind(0.5, "shuffled", "balanced")]["energy"].auroc, 2)
    0.89
    """
    named = [Method(name, one, main_setting(one), title_of(name)) for name, one in methods.items()]
    streams = streams_of(kinds, id_test, seed)
    measured = measure(named, id_test, ood_sets, streams=streams, seed=seed, threads=threads, quiet=True)
    rows = [one.record._replace(version="", commit=None) for one in measured]  # the file says it once
    settings = {
        "seed": seed,
        "n_id": len(id_test),
        "ood_sets": {name: len(ood) for name, ood in ood_sets.items()},
        "id_classes": "predicted" if id_test.labels is None else "labels",
        **(notes or {}),
    }
    running = {one.name: one.detector for one in named if one.setting is Setting.STREAM}
    alarms = () if changed is None else tuple(false_alarms(running, id_test, changed, seed=seed))
    return StressResult(rows, settings, alarms=alarms)


def rank(
    detectors: Sequence[str],
    train: ModelOutputs,
    validation: ModelOutputs | None,
    test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    changed: Mapping[str, ModelOutputs] | None = None,
) -> StressResult:
    """Fit and measure detectors one after the other: on all rows, and in every one of ``KINDS``.

    Rows of the result without a stream are of all rows of both sets. A detector that cannot be fitted or measured is
    named in ``settings["left_out"]`` with the reason. The false alarms of the default are counted too, on inputs
    that have ``changed`` among others.
    """
    streams = [Streams(len(test)), *streams_of(list(KINDS.values()), test)]
    rows: list[Measurement] = []
    alarms: list[Alarms] = []
    left_out: dict[str, str] = {}
    with bar("detectors", len(detectors)) as line:
        for name in detectors:
            line.advance(0, name)
            try:
                detector = fit_on(make_for(name, train), train, validation)
                measured = list(measure(_methods(name, detector), test, ood_sets, streams=streams, quiet=True))
                rows += [one.record._replace(version="", commit=None) for one in measured]
                if name == DEFAULT:
                    alarms += false_alarms({name: detector}, test, changed or {})
            except Exception as error:  # whatever a detector does must not take the others with it
                left_out[name] = why_failed(error)
            line.advance()
    sizes = {"n_train": len(train), "n_id": len(test), "ood_sets": {one: len(ood) for one, ood in ood_sets.items()}}
    return StressResult(rows, {**sizes, "left_out": left_out}, alarms=alarms)


def _methods(name: str, detector: Detector) -> list[Method]:
    """A detector in its main setting and, where its statistics run, as fitted too."""
    setting, title = main_setting(detector), "Default" if name == DEFAULT else detector.about.title
    own = [Method(name, detector, setting, title)]
    return own + [Method(name + FROZEN_SUFFIX, detector, Setting.FROZEN, title)] * (setting is Setting.STREAM)


def rank_run(
    run: RunFolder,
    detectors: Sequence[str],
    *,
    rows: int | None = None,
    train_rows: int | None = None,
) -> StressResult:
    """:func:`rank` detectors on the outputs of a run's first network.

    ``rows`` bounds each OoD set, five times as many the test set, whose classes are drawn apart, and ``train_rows`` the
    training set; they are drawn once, with seed 0. Inputs that have changed are corrupted test pictures where the
    network and its pictures are at hand, otherwise scaled and noised outputs; ``settings["changed"]`` says which.
    """
    seed = run.plan.seeds[0]
    names = [name for name in (*OWN_SETS, *run.plan.ood) if run.has_outputs(seed, name)]
    most = {TRAIN: train_rows, TEST: None if rows is None else 5 * rows}
    outputs = {name: _some_rows(run.outputs(seed, name), most.get(name, rows)) for name in names}
    sets = {name: outputs[name] for name in run.plan.ood if name in outputs}
    if TEST not in outputs or TRAIN not in outputs or not sets:
        raise InvalidInput(
            f"{run.path} has no outputs of a training set, a test set and an OoD set. "
            "Run `normscale bench` on it: it extracts them."
        )
    train, test, files = outputs[TRAIN], outputs[TEST], run.network(seed)
    try:
        changed, how = dict(changed_pictures(files.path, run.plan.data)) if files.network.exists() else {}, "pictures"
    except NormscaleError:  # the pictures are elsewhere
        changed = {}
    if not changed:
        changed, how = dict(changed_outputs(test.only(*(set(test.names) & {LOGITS, FEATURES})))), "outputs"
    result = rank(detectors, train, outputs.get(VALIDATION), test, sets, changed)
    about = {"network": run.plan.name, "in_set": run.plan.in_set, "seed": seed, "made_by": environment()}
    asked = {"detectors": list(detectors), "rows": rows, "train_rows": train_rows}
    return result._replace(settings={**about, **result.settings, "changed": how, "asked": asked})


def _some_rows(outputs: ModelOutputs, rows: int | None) -> ModelOutputs:
    if rows is None or len(outputs) <= rows:
        return outputs
    return outputs[np.sort(np.random.default_rng(0).permutation(len(outputs))[:rows])]
