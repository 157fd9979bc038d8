"""Somebody else's detectors, in a package of their own, go everywhere that ours go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from needed_extras import SERVER, need

sys.path.insert(0, str(Path(__file__).parents[1] / "guard" / "server"))
from running import INFER, Server, tensors  # type: ignore[import-not-found]

PACKAGE = Path(__file__).parent / "neighbours"
THEIRS = ("their_knn", "their_vim")
SAMPLE = ns.load_sample()
NEAR = SAMPLE.ood["unseen_digits"]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Where the package is installed as any other is: found by its entry point alone."""
    need("hatchling")
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    options = ["--no-deps", "--no-build-isolation", "--target", str(folder), str(PACKAGE)]
    subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=600)
    others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    path = os.pathsep.join([str(folder), *others])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NORMSCALE_KERNELS": "numpy"}  # soon loaded


def run(environment: dict[str, str], *arguments: str, given: str | None = None) -> str:
    result = subprocess.run(
        [sys.executable, *arguments], env=environment, input=given, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def command(environment: dict[str, str], *arguments: str, given: str | None = None) -> str:
    return run(environment, "-m", "normscale", *arguments, given=given)


@pytest.fixture(scope="module")
def files(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both detectors, fitted by the command."""
    folder = tmp_path_factory.mktemp("fitted")
    found = {}
    for name in THEIRS:
        found[name] = folder / f"{name}.safetensors"
        options = ("--threshold-on", "sample:validation", "-d", name)
        command(environment, "fit", "sample:train", "-o", str(found[name]), *options)
    return found


def test_python_finds_them_and_the_suite_passes(environment: dict[str, str], files: dict[str, Path]) -> None:
    code = (
        "import sys, normscale as ns\n"
        "from normscale.conformance import check_detector\n"
        "assert 'neighbours' not in sys.modules\n"
        "for name in sys.argv[1::2]:\n"
        "    assert name in ns.list_detectors()\n"
        "    print(name, len(check_detector(lambda: ns.make_detector(name))))\n"
        "for path in sys.argv[2::2]:\n"
        "    print(ns.load_detector(path).predict(ns.load_sample().ood['unseen_digits']).mean() > 0.3)\n"
    )
    arguments = [item for name in THEIRS for item in (name, str(files[name]))]
    lines = run(environment, "-c", code, *arguments).split("\n")
    assert lines[2:4] == ["True", "True"]
    assert {line.split()[0] for line in lines[:2]} == set(THEIRS)


def test_without_the_package_the_file_says_what_it_is(files: dict[str, Path]) -> None:
    with pytest.raises(ns.FileFormatError, match="this version does not know: unknown detector 'their_knn'"):
        ns.load_detector(files["their_knn"])


def test_scores_and_comparisons(environment: dict[str, str], files: dict[str, Path], tmp_path: Path) -> None:
    command(environment, "score", str(files["their_knn"]), "sample:unseen_digits", "-o", str(tmp_path / "s.npz"))
    scores = np.load(tmp_path / "s.npz")["score"]
    bank, rows = (
        array / np.linalg.norm(array, axis=1, keepdims=True)
        for array in (SAMPLE.train.features.astype(np.float64), NEAR.features.astype(np.float64))
    )
    expected = np.sort(np.linalg.norm(rows[:, None] - bank[None], axis=2), axis=1)[:, 9]  # all pairs, the slow way
    np.testing.assert_allclose(scores, expected, atol=1e-7)
    options = ["--train", "sample:train", "--id", "sample:test", "--ood", "sample:uniform_noise", "-f", "json"]
    chosen = ["-d", "their_vim", "-d", "energy", "--saved", str(files["their_knn"])]
    table = [json.loads(line) for line in command(environment, "eval", *options, *chosen).splitlines()]
    found = {row["method"]: row["auroc"] for row in table}
    assert set(found) == {"their_knn", "their_vim", "energy"}
    assert found["their_vim"] > 0.98 > found["energy"]  # noise lies outside the space of the classes
    everything = command(environment, "eval", *options)
    assert all(f'"{name}"' in everything for name in THEIRS)


def test_a_pipe_and_a_server(environment: dict[str, str], files: dict[str, Path], tmp_path: Path) -> None:
    need(*SERVER)
    rows = {"logits": NEAR.logits[:5].tolist(), "features": NEAR.features[:5].tolist()}
    lines = "".join(json.dumps({name: array[i] for name, array in rows.items()}) + "\n" for i in range(5))
    answers = command(environment, "watch", str(files["their_vim"]), given=lines)
    watched = [json.loads(line) for line in answers.splitlines()]
    with Server(files["their_vim"], tmp_path / "log", "--store", ":memory:", environment=environment) as server:
        served = server.client().score(rows).answer
        lacking = server.client().score(rows["logits"])
    assert [line["score"] for line in watched] == pytest.approx(served["ood_score"])
    assert [line["is_ood"] for line in watched] == served["is_ood"]
    assert lacking.status == 422
    assert b"features" in lacking.body


def test_a_benchmark_and_its_report(environment: dict[str, str], tmp_path: Path) -> None:
    need("torch", "PIL", "matplotlib")
    size, chosen = ["--seeds", "1", "--epochs", "1", "--width", "4"], ["--ood", "uniform", "--ood", "fashion"]
    methods = [item for name in (*THEIRS, "energy", "react+energy") for item in ("-m", name)]
    without = ["--no-stress", "--no-report"]
    command(environment, "bench", "--preset", "digits", "-o", str(tmp_path), *size, *chosen, *without, *methods)
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    aurocs = {row["method"] for row in results if "auroc" in row.get("metrics", ())}
    assert aurocs == {*THEIRS, "energy", "react+energy"}
    command(environment, "report", str(tmp_path))
    page = (tmp_path / "report.html").read_text()
    assert "Their KNN" in page
    assert "Their ViM" in page


def test_their_store_keeps_a_guard_as_ours_does(environment: dict[str, str], tmp_path: Path) -> None:
    """The same requests to two servers, one on each store, a kill in between."""
    for package in SERVER:
        need(package)
    detector = tmp_path / "guard.safetensors"
    ns.NormScaling().fit(SAMPLE.train).set_threshold(SAMPLE.validation).save(detector)
    stores = [str(tmp_path / "ours.sqlite"), f"onefile://{tmp_path / 'theirs.db'}"]

    def answers(ask: list[tuple[str, str, Any]]) -> list[list[Any]]:
        found = []
        for number, store in enumerate(stores):
            options = ("--store", store, "--on-drift", "ignore")
            with Server(detector, tmp_path / f"log{number}", *options, environment=environment) as server:
                client = server.client()
                replies = [client.ask(*one) for one in ask]
                state = client.state()
                server.kill()  # without a word of warning
            kept = ("rows", "scored", "kept_out", "mode", "entry", "classes", "threshold")
            found.append([*((reply.status, reply.json) for reply in replies), {name: state[name] for name in kept}])
        return found

    score = ("POST", INFER, tensors(SAMPLE.test.logits[:20]))
    once = ("POST", INFER, tensors(SAMPLE.test.logits[:20], idempotency_key="once"))
    first: list[tuple[str, str, Any]] = [score, once, ("POST", "/v1/freeze", {}), score]
    ours, theirs = answers(first)
    assert ours == theirs
    second: list[tuple[str, str, Any]]
    second = [once, ("POST", "/v1/thaw", {}), ("PUT", "/v1/threshold", {"value": 0.5}), score]
    ours, theirs = answers(second)
    assert ours == theirs
    assert (ours[-1]["rows"], ours[-1]["kept_out"]) == (60, 20)
