"""Cells from outputs that are there: a failing detector ends nothing, nothing is done or read twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.bench.experiments.bench import compute_cells
from normscale.bench.experiments.methods import find_method
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.detectors.registry import unregister
from normscale.rows import write_table

SAMPLE = ns.load_sample()
OOD = dict(list(SAMPLE.ood.items())[:2])
METHODS = ("msp", "broken", "kl_matching", "odin", "norm_scaling")


def measured(path: Path, *methods: str, say: Any = lambda _: None, **more: ns.ModelOutputs) -> RunFolder:
    """A run with the sample's outputs, and the cells of these methods."""
    sets = {**OOD, **more}
    run = RunFolder.create(path, Plan("mine", "digits", {name: name for name in sets}, seeds=(0,), methods=methods))
    run.network(0).make()
    for name, outputs in {"train": SAMPLE.train, "test": SAMPLE.test, **sets}.items():
        write_table(run.network(0).outputs(name), outputs)
    compute_cells(run, 0, [find_method(name) for name in methods], list(sets), say)
    run.write_results()
    return run


class Broken(ns.Detector):
    """Fails in a way that nobody foresaw."""

    name, about, reads, reads_in_fit = "broken", ns.About("Broken", "an example"), ("logits",), None
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
    run = measured(tmp_path / "run", *METHODS, say=said.append)
    assert {cell.method for cell in run.cells()} == {"msp", "norm_scaling"}
    failed = RunFolder.open(run.path).failures(0)
    assert set(failed) == {"broken", "kl_matching", "odin"}
    assert failed["broken"] == "ZeroDivisionError: nobody foresaw this"
    assert "validation outputs" in failed["kl_matching"]
    assert "perturbed_logits" in failed["odin"]
    assert len(said) == 3
    expected = ns.evaluate(ns.MSP().score(SAMPLE.test), ns.MSP().score(OOD[next(iter(run.plan.ood))])).auroc
    assert run.cells()[0].auroc == pytest.approx(expected, abs=1e-12)
    Broken.works = True  # mended: only this one is computed
    before = {path: path.stat().st_mtime_ns for path in run.path.glob("cells/*/*/*")}
    again = measured(tmp_path / "run", *METHODS)
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
    measured(tmp_path / "run", "msp", "mahalanobis", "norm_scaling", "energy")
    assert sorted(read) == sorted(["train", "test", *OOD])


def test_noise_far_outside_of_training_is_measured_without_a_warning(tmp_path: Path) -> None:
    far = SAMPLE.test.replace(logits=100.0 * SAMPLE.test.logits)
    with pytest.warns(ns.NumericalWarning, match="far outside"):
        ns.make_detector("norm_scaling").fit(SAMPLE.train).score(far.only("logits"))
    run = measured(tmp_path / "run", "norm_scaling_frozen", "norm_scaling", far=far)
    assert {cell.ood_set for cell in run.cells()} >= {"far"}, "warnings are errors here"
    assert not any(run.failures(seed) for seed in run.plan.seeds)
