"""``fit``, ``score`` and ``doctor`` in the corners: what is saved, tables without logits, kernels that are wrong."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from normscale.detectors import Detector
from program import normscale, python


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return normscale(*arguments, cwd=None, stdin=None, **{"COLUMNS": "200", **environment})


def saved(path: Path, detector: Detector, keep: float | None = None, **options: bool) -> Path:
    sample = ns.load_sample()
    detector.fit(sample.train)
    if keep is not None:
        detector.set_threshold(sample.validation, keep, **options)
    detector.save(path)
    return path


def rows_of(result: subprocess.CompletedProcess[str]) -> list[dict[str, str]]:
    assert result.returncode == 0, result.stderr
    return list(csv.DictReader(result.stdout.splitlines()))


# ---------------------------------------------------------------- score --save


def test_saving_needs_a_stream(tmp_path: Path) -> None:
    path, copy = saved(tmp_path / "detector.safetensors", ns.NormScaling()), tmp_path / "copy.safetensors"
    refused = run("score", path, "sample:test", "--save", copy)
    assert refused.returncode == 1
    assert "--save keeps the statistics that --stream moves" in refused.stderr
    assert refused.stdout == ""
    still = saved(tmp_path / "still.safetensors", ns.Energy())
    refused = run("score", still, "sample:test", "--stream", "--save", copy)
    assert refused.returncode == 1
    assert "Energy(temperature=1.0) has none" in refused.stderr
    refused = run("score", path, "sample:test", "--stream", "--save", tmp_path / "copy.npz")
    assert refused.returncode == 1
    assert "must end in .safetensors" in refused.stderr
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["detector.safetensors", "still.safetensors"]


def test_a_threshold_for_once_is_not_saved(tmp_path: Path) -> None:
    path = saved(tmp_path / "detector.safetensors", ns.NormScaling(), keep=0.9)
    moved = tmp_path / "moved.safetensors"
    rows = rows_of(run("score", path, "sample:test", "--stream", "--threshold", "-1e9", "--save", moved))
    assert all(row["is_ood"] == "true" for row in rows)
    before, after = ns.load_detector(path), ns.load_detector(moved)
    assert after.threshold_ == before.threshold_
    assert isinstance(after, ns.NormScaling)
    assert after.n_streamed_ == len(rows)
    bare = saved(tmp_path / "bare.safetensors", ns.NormScaling())
    rows_of(run("score", bare, "sample:test", "--stream", "--threshold", "0", "--save", moved))
    assert ns.load_detector(moved).threshold_ is None


# ---------------------------------------------------------------- tables without logits, steps, parameters


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".parquet"])
def test_features_alone_are_fitted_and_scored(tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    sample = ns.load_sample()
    train, test = tmp_path / f"train{suffix}", tmp_path / f"test{suffix}"
    ns.write_table(train, sample.train.only("features"))
    ns.write_table(test, sample.test.only("features"))
    path = tmp_path / "detector.safetensors"
    fitted = run("fit", train, "-o", path, "-d", "mahalanobis:shrinkage=oas", "--threshold-on", test)
    assert fitted.returncode == 0, fitted.stderr
    rows = rows_of(run("score", path, test))
    assert list(rows[0]) == ["score", "is_ood"]
    detector = ns.load_detector(path)
    np.testing.assert_allclose([float(row["score"]) for row in rows], detector.score(sample.test), rtol=1e-9)
    assert [row["is_ood"] == "true" for row in rows] == detector.predict(sample.test).tolist()
    logits = saved(tmp_path / "energy.safetensors", ns.Energy())
    refused = run("score", logits, test)
    assert refused.returncode == 1
    assert "has no logits; it has features" in refused.stderr


def test_a_threshold_per_class_needs_logits(tmp_path: Path) -> None:
    table = tmp_path / "features.npz"
    ns.write_table(table, ns.load_sample().test.only("features"))
    path = saved(tmp_path / "detector.safetensors", ns.Mahalanobis(shrinkage="oas"), keep=0.95, per_class=True)
    refused = run("score", path, table)
    assert refused.returncode == 1
    assert "one threshold for each predicted class" in refused.stderr
    assert len(rows_of(run("score", path, table, "--threshold", "3"))) == 362


def test_steps_and_parameters_by_name(tmp_path: Path) -> None:
    path = tmp_path / "detector.safetensors"
    fitted = run("fit", "sample:train", "-o", path, "-d", "norm_scaling:prior_weight=inf+energy")
    assert fitted.returncode == 0, fitted.stderr
    detector = ns.load_detector(path)
    assert (detector.name, detector.get_params()["prior_weight"]) == ("norm_scaling+energy", float("inf"))
    assert detector.threshold_ is None
    assert "add --threshold-on VALIDATION" in fitted.stderr
    layers = run("fit", "sample:train", "-o", path, "-d", "mahalanobis:layers=features,logits")
    assert layers.returncode == 0, layers.stderr
    assert ns.load_detector(path).reads == ("features", "logits")


@pytest.mark.parametrize("option", (("--keep", "0.9"), ("--conformal",), ("--per-class",)))
def test_options_of_a_threshold_that_is_not_set_are_refused(tmp_path: Path, option: tuple[str, ...]) -> None:
    refused = run("fit", "sample:train", "-o", tmp_path / "detector.safetensors", *option)
    assert refused.returncode == 1
    assert "add --threshold-on TABLE" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_infinite_thresholds_survive_the_file(tmp_path: Path) -> None:
    path = tmp_path / "detector.safetensors"
    detector = ns.Energy().fit(np.eye(3))
    detector.threshold_ = ns.Threshold(float("inf"), per_class=(1.0, float("-inf"), float("inf")))
    detector.class_names = ("NaN", "Infinity", "\\-Infinity")
    detector.save(path)
    loaded = ns.load_detector(path)
    assert loaded.threshold_ == detector.threshold_
    assert loaded.class_names == detector.class_names
    length = int.from_bytes(path.read_bytes()[:8], "little")
    document = json.loads(path.read_bytes()[8 : 8 + length])["__metadata__"]["normscale"]

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    assert json.loads(document, parse_constant=refuse)["threshold"]["value"] == "Infinity"


# ---------------------------------------------------------------- doctor


def doctor(setup: str) -> subprocess.CompletedProcess[str]:
    code = f"{setup}\nfrom normscale.cli import app; app(['doctor'])"
    return python(code, NORMSCALE_KERNELS=None)


def test_doctor_says_that_there_was_nothing_to_compare() -> None:
    result = doctor("import sys; sys.modules['numba'] = None")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "--   compiled kernels were not checked: numba cannot be imported" in result.stdout
    assert "compiled kernels equal" not in result.stdout
    assert "ok   numpy kernels equal the formulas written out" in result.stdout


def test_doctor_looks_at_every_kernel() -> None:
    pytest.importorskip("numba")
    result = doctor("")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ok   compiled kernels equal numpy's" in result.stdout


@pytest.mark.parametrize(
    ("module", "function", "sentence"),
    (
        ("mixture_compiled", "stream", "compiled kernels"),
        ("compiled", "frozen_scores", "compiled kernels"),
        ("reference", "stream_scores", "numpy kernels"),
    ),
)
def test_doctor_notices_a_kernel_that_is_wrong(module: str, function: str, sentence: str) -> None:
    pytest.importorskip("numba")
    result = doctor(
        f"from normscale._kernels import {module} as kernels\n"
        f"true = kernels.{function}\n"
        "def wrong(*a):\n    done = true(*a)\n    a[-1][:] += 1e-6\n    return done\n"
        f"kernels.{function} = wrong"
    )
    assert result.returncode == 1
    assert f"FAIL {sentence} equal" in result.stdout
    assert "please report" in result.stderr
