"""Every registered detector passes the conformance suite; names, files and their errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

import normscale as ns
from normscale import _kernels
from normscale._validate import FloatArray
from normscale.conformance import CHECKS, check_detector
from normscale.state import FORMAT, load_state, save_state
from our_detectors import OUR_DETECTORS

VARIANTS: dict[str, Callable[[], ns.Detector]] = {
    **{name: (lambda name=name: ns.make_detector(name)) for name in OUR_DETECTORS},  # type: ignore[misc]
    "weiper": lambda: ns.WeiPer(repeats=10),
    "norm_scaling max_logit": lambda: ns.NormScaling(score="max_logit"),
    "norm_scaling multi_threshold": lambda: ns.NormScaling(score=ns.MultiThreshold(keep=0.9)),
    "norm_scaling robust": lambda: ns.make_detector("norm_scaling+robust_norm_scaling"),
    "react norm_scaling": lambda: ns.make_detector("react+norm_scaling", percentile=99.5, prior_weight=3.0),
    "react temperature": lambda: ns.ReAct(score=ns.Energy(temperature=2.0)),
    "mahalanobis attacks": lambda: ns.Mahalanobis(layers=("early", "features"), weights="attacks"),
    "norm_scaling energy heavy": lambda: ns.NormScaling(score="energy", prior_weight=400.0, temperature=0.5),
    "norm_scaling as printed": lambda: ns.NormScaling(update="as_printed"),
    "norm_scaling frozen": lambda: ns.NormScaling(prior_weight=float("inf")),
    "mahalanobis oas": lambda: ns.Mahalanobis(shrinkage="oas"),
}


@pytest.mark.parametrize(  # tests/kernels compares numba's kernels and numpy's at every width
    ("kernels", "n_classes"), [("numba", 2), ("numba", 20), ("numpy", 5)], indirect=["kernels"]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_conformance(kernels: _kernels.Backend, variant: str, n_classes: int) -> None:
    checks = sorted(CHECKS)
    if variant in ("dart", "openmax") and n_classes == 20:
        checks.remove("scores_ood_higher")  # two prototypes for 20 classes, tails of twenty rows: they say little
    assert check_detector(VARIANTS[variant], n_classes=n_classes, checks=checks) == checks


class Upside(ns.MSP):
    """Higher for in-distribution inputs: the mistake everyone makes once."""

    name = "upside"

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> FloatArray:
        return -super()._score(outputs, threads)


class Forgetful(ns.MultiThreshold):
    """Loses its arrays when saved."""

    name = "forgetful"

    def _arrays(self, *, moving: bool = True) -> dict[str, NDArray[Any]]:
        return {**super()._arrays(moving=moving), "fitted.thresholds": np.zeros_like(self.fitted_.thresholds)}


class Leaky(ns.NormScaling):
    """Moves its statistics in ``score``."""

    name = "leaky"

    def _score(self, outputs: ns.ModelOutputs, threads: int) -> FloatArray:
        scores, self.state_ = self._step(self._current(), outputs, threads)
        return scores


@pytest.mark.parametrize(
    ("broken", "complaint"),
    (
        (Upside, "scores ood higher: no"),
        (Forgetful, "survives a file: no"),
        (Leaky, "scores purely: no"),
    ),
)
def test_the_suite_finds_broken_detectors(broken: Callable[[], ns.Detector], complaint: str) -> None:
    check = complaint.removesuffix(": no").replace(" ", "_")
    with pytest.raises(AssertionError, match=complaint):
        check_detector(broken, checks=[check])


def test_names() -> None:
    assert ns.list_detectors() == sorted(ns.list_detectors())
    assert {"norm_scaling", "msp", "energy", "odin", "mahalanobis", "max_logit"} <= set(ns.list_detectors())
    assert isinstance(ns.make_detector("Norm-Scaling", prior_weight=2), ns.NormScaling)
    sentence = r"unknown detector 'energi'\. Did you mean 'energy'\? ns.list_detectors\(\) names all \d+\.$"
    with pytest.raises(ns.UnknownDetector, match=sentence):
        ns.make_detector("energi")
    with pytest.raises(ns.InvalidInput, match="energy has no parameter 'temprature'; its parameters: temperature"):
        ns.make_detector("energy", temprature=1.0)
    assert str(ns.UnknownDetector("plain")) == "plain"


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "detector.safetensors"
    ns.NormScaling().fit(np.random.default_rng(0).normal(size=(20, 3))).save(path)
    return path


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = saved(tmp_path)
    data = path.read_bytes()
    for length in sorted({0, 1, 7, 8, 9, 50, len(data) // 2, len(data) - 1}):
        path.write_bytes(data[:length])
        with pytest.raises(ns.FileFormatError, match="damaged or of another kind"):
            ns.load_detector(path)


def test_foreign_and_newer_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    with pytest.raises(ns.FileFormatError, match="no detector file at"):
        ns.load_detector(path)
    save_file({"logits": np.zeros((2, 2))}, path)
    with pytest.raises(ns.FileFormatError, match="holds no normscale detector"):
        ns.load_detector(path)
    header = {"format": FORMAT + 1, "version": "99.0", "detector": "msp"}
    save_file({"x": np.zeros(1)}, path, metadata={"normscale": json.dumps(header)})
    with pytest.raises(ns.FileFormatError, match=r"written by normscale 99\.0 .* Upgrade normscale"):
        ns.load_detector(path)
    save_file({"x": np.zeros(1)}, path, metadata={"normscale": "{not json"})
    with pytest.raises(ns.FileFormatError, match=r"header of .* is damaged"):
        ns.load_detector(path)
    save_state(path, {"detector": "from_the_future"}, {})
    with pytest.raises(ns.FileFormatError, match="does not know"):
        ns.load_detector(path)


@pytest.mark.parametrize("missing", ("parameters", "widths", "threshold", "class_names"))
def test_a_header_with_a_hole_is_refused(tmp_path: Path, missing: str) -> None:
    path = saved(tmp_path)
    header, tensors = load_state(path)
    del header[missing]
    save_state(path, header, tensors)
    with pytest.raises(ns.FileFormatError, match="damaged"):
        ns.load_detector(path)


@pytest.mark.parametrize("poison", (np.nan, -1.0))
def test_impossible_statistics_are_refused(tmp_path: Path, poison: float) -> None:
    path = saved(tmp_path)
    header, tensors = load_state(path)
    tensors["state.moments.m2"][1] = poison
    save_state(path, header, tensors)
    with pytest.raises(ns.FileFormatError, match="damaged"):
        ns.load_detector(path)


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    data = path.read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        ns.NormScaling().fit(np.eye(3)).save(path)
    assert path.read_bytes() == data
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_state_spells_infinity(tmp_path: Path) -> None:
    path = tmp_path / "frozen.safetensors"
    ns.NormScaling(prior_weight=float("inf")).fit(np.eye(3)).save(path)
    loaded = ns.load_detector(path)
    assert loaded.get_params()["prior_weight"] == float("inf")


def test_the_suite_raises_also_without_asserts() -> None:
    """``python -O`` removes ``assert``; an upside-down detector must not pass for that."""
    code = (
        "import normscale as ns\n"
        "from normscale.conformance import check_detector\n"
        "class Upside(ns.MSP):\n"
        "    name = 'upside'\n"
        "    def _score(self, outputs, threads):\n"
        "        return -super()._score(outputs, threads)\n"
        "check_detector(Upside, checks=['scores_ood_higher'])\n"
    )
    quick = {**os.environ, "NORMSCALE_KERNELS": "numpy"}
    result = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, env=quick, timeout=600)
    assert result.returncode != 0
    assert "BrokenPromise: upside scores ood higher: no" in result.stderr


def test_two_detectors_cannot_have_one_name() -> None:
    class Impostor(ns.MSP):
        pass

    with pytest.raises(ns.InvalidInput, match="a detector named 'msp' is there already"):
        ns.register(Impostor)
    Impostor.name = "Not A Name"
    with pytest.raises(ns.InvalidInput, match="small letters, digits and underscores"):
        ns.register(Impostor)


def test_a_class_without_defaults_cannot_be_made_by_name() -> None:
    class Demanding(ns.MSP):
        name = "demanding"

        def __init__(self, k: int) -> None:
            self.k = k

    with pytest.raises(ns.InvalidInput, match=r"Demanding needs a default .* 'k' has none"):
        ns.register(Demanding)
    for name in ("x_frozen", "a:b", "my knn", "é"):
        Demanding.name = name
        with pytest.raises(ns.InvalidInput, match="a detector's name has small letters"):
            ns.register(Demanding)


@pytest.mark.parametrize("layers", (3.0, True, [3]))
def test_layers_that_are_no_names_are_explained(layers: Any) -> None:
    with pytest.raises(ns.InvalidInput, match="layers must be names of arrays"):
        ns.Mahalanobis(layers=layers)


def test_widths_that_are_no_numbers_are_damage(tmp_path: Path) -> None:
    path = saved(tmp_path)
    header, tensors = load_state(path)
    damages: tuple[Any, ...] = ({"": {"logits": "abc"}}, {"": {}}, {})
    for widths in damages:
        save_state(path, {**header, "widths": widths}, tensors)
        with pytest.raises(ns.FileFormatError, match="damaged"):
            ns.load_detector(path)
    save_state(path, header, {**tensors, "state.moments.weight": np.zeros(())})
    with pytest.raises(ns.FileFormatError, match="damaged"):
        ns.load_detector(path)
