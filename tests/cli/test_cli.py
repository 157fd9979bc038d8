"""The commands, run as a person runs them: real processes, real files, real pipes."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from needed_extras import need
from program import normscale, python


@pytest.fixture(name="detector", scope="module")
def _detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("detector") / "detector.safetensors"
    logits = ("--arrays", "logits")  # the tables of these tests hold nothing else
    options = ("--threshold-on", "sample:validation", "--keep", "0.9")
    result = normscale("fit", "sample:train", "-o", path, *logits, *options)
    assert result.returncode == 0, result.stderr
    assert "keeps 90.0% of" in result.stderr
    assert result.stdout == ""
    return path


def test_fit_writes_the_detector_the_library_would(detector: Path) -> None:
    sample = ns.load_sample()
    loaded = ns.load_detector(detector)
    assert loaded.class_names == tuple(sample.class_names)
    mine = ns.RobustNormScaling().fit(sample.train).set_threshold(sample.validation, keep=0.9)
    np.testing.assert_allclose(loaded.score(sample.test), mine.score(sample.test), rtol=1e-9)
    assert loaded.threshold_ == pytest.approx(mine.threshold_)


@pytest.mark.parametrize("suffix", (".npz", ".npy", ".safetensors", ".parquet", ".csv"))
def test_score_reads_and_writes_every_format(detector: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        need("pyarrow")
    outputs = ns.load_sample().ood["unseen_digits"]
    table, scores = tmp_path / f"logits{suffix}", tmp_path / f"scores{suffix}"
    ns.write_table(table, ns.ModelOutputs(outputs.logits))
    result = normscale("score", detector, table, "-o", scores)
    assert result.returncode == 0, result.stderr
    assert f"{len(outputs)} rows scored" in result.stderr
    expected = ns.load_detector(detector).score(outputs)
    if suffix == ".npy":
        got = np.load(scores)
    elif suffix == ".npz":
        got = np.load(scores)["score"]
    elif suffix == ".safetensors":
        from safetensors.numpy import load_file

        got = load_file(scores)["score"]
    elif suffix == ".parquet":
        import pyarrow.parquet

        got = pyarrow.parquet.read_table(scores)["score"].to_numpy()
    else:
        with scores.open() as file:
            got = np.array([float(row["score"]) for row in csv.DictReader(file)])
    np.testing.assert_allclose(got, expected, rtol=1e-9)


def test_score_in_a_pipe_says_yes_or_no(detector: Path, tmp_path: Path) -> None:
    table = tmp_path / "logits.npy"
    logits = ns.load_sample().ood["uniform_noise"].logits
    np.save(table, logits)
    result = normscale("score", detector, "-", stdin=table.read_bytes())
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines()))
    loaded = ns.load_detector(detector)
    assert [row["is_ood"] == "true" for row in rows] == loaded.predict(logits).tolist()
    assert "are out-of-distribution" in result.stderr
    stricter = normscale("score", detector, table, "--threshold", "-1e9")
    assert all(row["is_ood"] == "true" for row in csv.DictReader(stricter.stdout.splitlines()))


def test_a_stream_in_two_commands_equals_one(detector: Path, tmp_path: Path) -> None:
    logits = ns.load_sample().test.logits
    parts = [tmp_path / "a.npy", tmp_path / "b.npy", tmp_path / "whole.npy"]
    for path, rows in zip(parts, (logits[:100], logits[100:], logits), strict=True):
        np.save(path, rows)
    moved, before = tmp_path / "moved.safetensors", detector.read_bytes()
    outs = [tmp_path / f"{name}.scores.npy" for name in "abw"]
    assert normscale("score", detector, parts[0], "--stream", "--save", moved, "-o", outs[0]).returncode == 0
    assert normscale("score", moved, parts[1], "--stream", "-o", outs[1]).returncode == 0
    assert normscale("score", detector, parts[2], "--stream", "-o", outs[2]).returncode == 0
    both = np.concatenate([np.load(outs[0]), np.load(outs[1])])
    np.testing.assert_allclose(both, np.load(outs[2]), rtol=1e-11, atol=1e-11)
    assert detector.read_bytes() == before, "only --save may write a detector"


def test_a_closed_pipe_is_no_error(detector: Path) -> None:
    command = f'{sys.executable} -m normscale score "{detector}" sample:train | head -2'
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 2
    assert "Traceback" not in result.stderr


def test_invalid_rows_are_named_or_skipped(detector: Path, tmp_path: Path) -> None:
    logits = ns.load_sample().test.logits.copy()
    logits[17, 3] = np.nan
    table = tmp_path / "bad.npy"
    np.save(table, logits)
    refused = normscale("score", detector, table, "-o", tmp_path / "out.csv")
    assert refused.returncode == 1
    assert "row 17 holds NaN in column 3" in refused.stderr
    assert "Drop the row or pass --on-invalid skip." in refused.stderr
    assert not (tmp_path / "out.csv").exists()
    skipped = normscale("score", detector, table, "--on-invalid", "skip")
    assert skipped.returncode == 0
    rows = list(csv.DictReader(skipped.stdout.splitlines()))
    assert rows[17]["score"] == "nan"
    assert [i for i, row in enumerate(rows) if row["predicted"] == "-1"] == [17]
    assert rows[17]["is_ood"] == "true"


def test_eval_prints_what_the_library_computes(tmp_path: Path) -> None:
    arguments = ["eval", "--train", "sample:train", "--id", "sample:test", "--ood", "near=sample:unseen_digits"]
    result = normscale(*arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    rows = {(row["method"], row["setting"]): row for row in map(json.loads, result.stdout.splitlines())}
    sample = ns.load_sample()
    near = sample.ood["unseen_digits"]
    expected = ns.evaluate(ns.msp_score(sample.test.logits), ns.msp_score(near.logits))
    row = rows["msp", "frozen"]
    for metric in ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in", "n_id", "n_ood"):
        assert row[metric] == pytest.approx(getattr(expected, metric), abs=1e-12)
    assert row["positive"] == "OoD for *_out, in-distribution for *_in"
    assert row["ood_set"] == "near"
    assert {("norm_scaling", "stream"), ("norm_scaling", "frozen"), ("mahalanobis", "frozen")} <= set(rows)
    assert rows["norm_scaling", "stream"]["seed"] == 0
    assert "Traceback" not in result.stderr

    table = normscale(*arguments)
    assert "OoD inputs are the positive class" in " ".join(table.stdout.split())
    text = normscale(*arguments, "-d", "msp", "-f", "csv").stdout
    assert float(next(csv.DictReader(text.splitlines()))["auroc"]) == pytest.approx(expected.auroc)


def test_eval_of_a_saved_detector(detector: Path) -> None:
    result = normscale(
        "eval", "--id", "sample:test", "--ood", "sample:photo_patches", "--saved", detector, "-f", "json"
    )
    assert result.returncode == 0, result.stderr
    assert {json.loads(line)["method"] for line in result.stdout.splitlines()} == {"robust_norm_scaling"}


def test_doctor_finds_nothing_wrong_here() -> None:
    result = normscale("doctor")
    assert result.returncode == 0, result.stdout
    assert "kernels numpy" in result.stdout
    assert result.stdout.count("ok  ") == 2
    assert "FAIL" not in result.stdout
    assert "compiled kernels were not checked: NORMSCALE_KERNELS=numpy" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    (
        (("fit", "nowhere.npz", "-o", "g.safetensors"), 1, "no such file: nowhere.npz"),
        (("fit", "sample:train", "-o", "g.pkl"), 1, "must end in .safetensors; got 'g.pkl'"),
        (("fit", "sample:train", "-o", "no/such/folder/g.safetensors"), 1, "no/such/folder"),
        (("fit", "sample:tarin", "-o", "g.safetensors"), 1, "it has sample:train"),
        (("fit", "sample:train", "-o", "g.safetensors", "-d", "energi"), 1, "Did you mean 'energy'?"),
        (
            ("fit", "sample:train", "-o", "g.safetensors", "--class-names", "a,b"),
            1,
            "class_names: name 8 classes; got 2",
        ),
        (
            ("fit", "sample:train", "-o", "g.safetensors", "--threshold-on", "sample:test", "--keep", "95"),
            1,
            "write 0.95",
        ),
        (("fit",), 2, "Missing argument"),
        (("score", "nowhere.safetensors", "x.npz"), 1, "no detector file at 'nowhere.safetensors'"),
        (("eval", "--id", "sample:test", "--ood", "sample:test", "-d", "norm_scaling"), 1, "needs training outputs"),
        (("frobnicate",), 2, "No such command"),
    ),
)
def test_mistakes_are_answered_with_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = normscale(*arguments, cwd=tmp_path)
    assert result.returncode == code
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ("fit", "score", "eval", "doctor"))
def test_every_command_has_help_with_an_example(command: str) -> None:
    result = normscale(command, "--help")
    assert result.returncode == 0
    assert f"normscale {command}" in " ".join(re.split("Examples?:", result.stdout)[1].split())


def test_version() -> None:
    assert normscale("--version").stdout.strip() == f"normscale {ns.__version__}"


def test_a_command_is_imported_only_when_it_is_asked_for() -> None:
    code = (
        "import sys; from normscale.cli import app; app(['token', '--help'], standalone_mode=False); "
        "print(sorted(name for name in sys.modules if name.startswith('normscale.cli.') and '._' not in name))"
    )
    assert python(code).stdout.splitlines()[-1] == "['normscale.cli.token']"
