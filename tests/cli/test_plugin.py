"""A detector of one's own from a file: in every command, in worker processes, and in a server."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from program import PLAIN, normscale

PLUGIN = '''
from typing import Any, NamedTuple
import numpy as np
from normscale.detectors import About, Detector, register

class Sums(NamedTuple):
    n: int
    total: Any

@register
class FarFromMean(Detector):
    """How far the logits are from their mean over all training rows."""

    name = "far_from_mean"
    about = About("Far from the mean", parameters={"power": "of the distance"})

    def __init__(self, power=1.0):
        self.power = power

    def _partial(self, rows, turn):
        return Sums(len(rows), np.asarray(rows.logits, float).sum(axis=0))

    class Fitted(NamedTuple):
        mean: np.ndarray

    def _finish(self, total, turn):
        return self.Fitted(total.total / total.n)

    def _score(self, outputs, threads):
        return (np.linalg.norm(outputs.logits - self.fitted_.mean, axis=1)) ** self.power
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "mydet.py"
    path.write_text(PLUGIN)
    return path


def test_it_is_fitted_scored_and_compared(tmp_path: Path, plugin: Path) -> None:
    saved = tmp_path / "a.safetensors"
    done = normscale(
        "--plugin",
        plugin,
        "fit",
        "sample:train",
        "-d",
        "far_from_mean:power=2",
        "-o",
        saved,
        "--threshold-on",
        "sample:test",
    )
    assert done.returncode == 0, done.stderr
    assert "fitted FarFromMean(power=2)" in done.stderr
    scored = normscale("--plugin", plugin, "score", saved, "sample:test")
    assert scored.stdout.startswith("score,predicted,is_ood\n"), scored.stderr
    compared = normscale(
        "--plugin", plugin, "eval", "--train", "sample:train", "--id", "sample:test", "--ood", "sample:uniform_noise",
        "-d", "far_from_mean", "--saved", saved, "-f", "json",
    )  # fmt: skip
    assert [json.loads(line)["method"] for line in compared.stdout.splitlines()] == ["a", "far_from_mean"], (
        compared.stderr
    )
    without = normscale("score", saved, "sample:test")
    assert without.returncode == 1
    assert "far_from_mean" in without.stderr


def test_workers_know_it_and_export_refuses_it_in_words(tmp_path: Path, plugin: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        rows = np.random.default_rng(number).normal(size=(50, 3))
        np.save(tmp_path / "in" / f"{number}.npy", rows)
    saved = tmp_path / "a.safetensors"
    given = ("-d", "far_from_mean", "-o", saved, "--engine", "local", "--workers", 1, "--piece-rows", 50)
    done = normscale("--plugin", plugin, "fit", tmp_path / "in", *given)
    assert done.returncode == 0, done.stderr
    again = normscale(
        "--plugin", plugin, "score", saved, tmp_path / "in", "-o", tmp_path / "out", "--engine", "local", "--workers", 1
    )
    assert "100 rows scored" in again.stderr
    pytest.importorskip("onnx")
    exported = normscale(
        "--plugin", plugin, "export", "--model", tmp_path / "no.onnx", "-d", saved, "-o", tmp_path / "b.onnx"
    )
    assert exported.returncode == 1
    assert "Traceback" not in exported.stderr


def test_a_server_knows_it(tmp_path: Path, plugin: Path) -> None:
    pytest.importorskip("uvicorn")
    saved = tmp_path / "a.safetensors"
    fitted = normscale(
        "--plugin", plugin, "fit", "sample:train", "-d", "far_from_mean", "-o", saved, "--threshold-on", "sample:test"
    )
    assert fitted.returncode == 0, fitted.stderr
    words = [sys.executable, "-m", "normscale", "--plugin", str(plugin), "serve", str(saved), "--port", "0"]
    import os

    server = subprocess.Popen(
        [*words, "--store", ":memory:"], stderr=subprocess.PIPE, text=True, env={**os.environ, **PLAIN}
    )
    assert server.stderr is not None
    said = []
    for line in server.stderr:
        said.append(line)
        if "http://" in line:
            break
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=60)
    server.stderr.close()
    assert any("http://" in line for line in said), said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "no such plugin"),
        ("import nowhere_at_all\n", "could not be loaded: ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_said(tmp_path: Path, text: str | None, sentence: str) -> None:
    path = tmp_path / "broken.py"
    if text is not None:
        path.write_text(text)
    done = normscale("--plugin", path, "detectors")
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
