"""Cells from outputs that are there: a failing detector ends nothing, nothing is done or read twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.bench.experiments.bench import measure_outputs
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.presets import PRESETS, every_method, with_detectors
from normscale.detectors.registry import unregister
from normscale.errors import InvalidInput

SAMPLE = ns.load_sample()
OUTPUTS: dict[str, Any] = {
    "train": lambda: SAMPLE.train,
    "test": lambda: SAMPLE.test,
    **{name: partial(SAMPLE.ood.__getitem__, name) for name in list(SAMPLE.ood)[:2]},
}
PLAN = Plan(
    "mine", "digits", {}, seeds=(0,), methods=("msp",), further=("broken", "kl_matching", "odin", "norm_scaling")
)


class Broken(ns.Detector):
    """Fails in a way that nobody foresaw."""

    name, title, paper, reads, needs_fit = "broken", "Broken", "an example", ("logits",), False
    works = False

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> Any:
        if not type(self).works:
            raise ZeroDivisionError("nobody foresaw this")
        return np.arange(float(len(outputs)))


@pytest.fixture(autouse=True)
def broken() -> Any:
    Broken.works = False
    ns.register(Broken)
    yield
    unregister("broken")


def test_a_detector_that_fails_is_said_and_the_others_go_on(tmp_path: Path) -> None:
    said: list[str] = []
    run = measure_outputs(tmp_path / "run", PLAN, OUTPUTS, say=said.append)
    assert {cell.method for cell in run.cells(run.plan.measured)} == {"msp", "norm_scaling"}
    failed = RunFolder.open(run.path).failures(0)
    assert set(failed) == {"broken", "kl_matching", "odin"}
    assert failed["broken"] == "ZeroDivisionError: nobody foresaw this"
    assert "validation outputs" in failed["kl_matching"]
    assert "perturbed_logits" in failed["odin"]
    assert len(said) == 3
    expected = ns.evaluate(ns.MSP().score(SAMPLE.test), ns.MSP().score(OUTPUTS[next(iter(run.plan.ood))]())).auroc
    assert run.cells()[0].auroc == pytest.approx(expected, abs=1e-12)
    Broken.works = True  # mended: only this one is computed
    before = {path: path.stat().st_mtime_ns for path in run.path.glob("cells/*/*/*")}
    again = measure_outputs(tmp_path / "run", PLAN, OUTPUTS)
    assert set(again.failures(0)) == {"kl_matching", "odin"}
    after = {path: path.stat().st_mtime_ns for path in run.path.glob("cells/*/*/*")}
    assert {path.stem for path in set(after) - set(before)} == {"broken"}
    assert {path: after[path] for path in before} == before


def test_every_set_is_read_once_for_all_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = RunFolder.outputs

    def counted(self: RunFolder, seed: int, name: str) -> ns.ModelOutputs:
        read.append(name)
        return real(self, seed, name)

    monkeypatch.setattr(RunFolder, "outputs", counted)
    measure_outputs(tmp_path / "run", PLAN._replace(further=("mahalanobis", "norm_scaling", "energy")), OUTPUTS)
    assert sorted(read) == sorted(["train", "test", *list(SAMPLE.ood)[:2]])


def test_what_is_added_stays_out_of_the_results_that_reports_read(tmp_path: Path) -> None:
    run = measure_outputs(tmp_path / "run", PLAN._replace(further=("energy",)), OUTPUTS)
    assert '"energy"' not in run.results.read_text()
    assert '"energy"' in run.further_results.read_text()
    assert RunFolder.open(run.path).plan == run.plan


@pytest.mark.parametrize("preset", PRESETS)
def test_all_detectors_join_every_preset(preset: str) -> None:
    plan = with_detectors(PRESETS[preset], ["all"])
    not_extracted = {"adascale"}  # the presets extract layers and perturbed logits, but no perturbed features
    assert set(every_method()) - {"broken"} - not_extracted <= set(plan.measured)
    assert plan.methods == PRESETS[preset].methods
    assert not set(plan.methods) & set(plan.further)
    streamed = [name for name in plan.further if find_method(name).setting == "stream"]
    assert sum(name.startswith("stream_aware+") for name in streamed) == 7


@pytest.mark.parametrize("names", [[], ["all", "knn"]])
def test_wrong_lists_are_explained(names: list[str]) -> None:
    with pytest.raises(InvalidInput, match="detectors are 'all' alone, or one or more others"):
        with_detectors(PRESETS["digits"], names)


def test_outputs_without_a_test_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="test set"):
        measure_outputs(tmp_path / "run", PLAN, {"train": OUTPUTS["train"]})


def test_noise_far_outside_of_training_is_measured_without_a_warning(tmp_path: Path) -> None:
    far = SAMPLE.test.replace(logits=100.0 * SAMPLE.test.logits)
    with pytest.warns(ns.NumericalWarning, match="far outside"):
        ns.make_detector("norm_scaling").fit(SAMPLE.train).score(far.only("logits"))
    plan = PLAN._replace(methods=("norm_scaling_frozen", "norm_scaling"), further=())
    run = measure_outputs(tmp_path / "run", plan, {**OUTPUTS, "far": lambda: far})
    assert {cell.ood_set for cell in run.cells()} >= {"far"}, "warnings are errors here"
    assert not run.every_failure()
