"""The commands with many files: the same bytes with every engine, and sentences where something is amiss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from engines.parts import bytes_of, scores_of, write_folder
from normscale.cli import app
from normscale.engines import spreading
from normscale.engines.spreading import Engine


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, local: Engine) -> Any:
    """A command with engines that are there already: starting one costs seconds."""
    there: dict[str, Any] = {"local": local}
    if "ray_engine" in request.fixturenames:
        there["ray"] = request.getfixturevalue("ray_engine")
    for engine in there.values():
        monkeypatch.setattr(engine, "close", lambda: None)
    monkeypatch.setattr(spreading, "_start", lambda name, workers, address: there[name])

    def invoke(*arguments: object, ok: bool = True) -> Any:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if ok and result.exception is not None:
            raise result.exception
        assert (result.exception is None) == ok, result.output
        return result

    return invoke


def test_fit_and_score_give_the_same_bytes_with_every_engine(tmp_path: Path, run: Any, ray_engine: Engine) -> None:
    rows = write_folder(tmp_path / "in")
    files = sorted((tmp_path / "in").glob("*.parquet"))
    for name in ("local", "ray"):
        saved, out = tmp_path / f"{name}.safetensors", tmp_path / name
        run("fit", *files, "-o", saved, "--engine", name, "--piece-rows", 200)
        said = run("score", saved, tmp_path / "in", "-o", out, "--stream", "--engine", name, "--piece-rows", 200)
        assert f"1151 rows scored to {out} in 8 files" in said.output
    assert (tmp_path / "local.safetensors").read_bytes() == (tmp_path / "ray.safetensors").read_bytes()
    assert bytes_of(tmp_path / "local") == bytes_of(tmp_path / "ray")
    detector = ns.load_detector(tmp_path / "local.safetensors")
    assert detector.class_names == ("c0", "c1", "c2", "c3", "c4")
    np.testing.assert_allclose(scores_of(tmp_path / "ray"), detector.stream(rows), rtol=1e-9, atol=1e-12)


def test_a_folder_needs_no_engine_option(tmp_path: Path, run: Any) -> None:
    write_folder(tmp_path / "in")
    saved = tmp_path / "a.safetensors"
    run("fit", tmp_path / "in", "-o", saved, "--threshold-on", tmp_path / "in")
    said = run("score", saved, str(tmp_path / "in" / "[03].parquet"), "-o", tmp_path / "out")
    assert "1150 rows scored" in said.output
    assert "are out-of-distribution" in said.output
    again = run("score", saved, str(tmp_path / "in" / "[03].parquet"), "-o", tmp_path / "out")
    assert "2 of them were there already" in again.output


def test_a_dry_run_tells_pieces_bytes_and_memory_and_does_nothing(tmp_path: Path, run: Any) -> None:
    write_folder(tmp_path / "in")
    said = run("fit", tmp_path / "in", "-o", tmp_path / "a.safetensors", "--dry-run", "--piece-rows", 200).output
    assert "3 files, and 1 without rows" in said
    assert "1,151 rows in 8 pieces" in said
    assert "MB of memory per worker" in said
    assert not (tmp_path / "a.safetensors").exists()


def test_eval_on_an_engine_is_eval(tmp_path: Path, run: Any) -> None:
    write_folder(tmp_path / "in")
    files = sorted((tmp_path / "in").glob("*.parquet"))
    options = ("eval", "--id", files[0], "--ood", f"other={files[3]}", "--train", files[0], "-d", "energy", "-f", "csv")
    here = run(*options).stdout.splitlines()
    there = run(*options, "--engine", "local").stdout.splitlines()
    header = here[0].split(",")
    plain = [row for row in here[1:] if ",frozen," in row]
    for name in ("auroc", "fpr95_out", "fpr95_in", "n_id", "n_ood"):
        place = header.index(name)
        assert plain[0].split(",")[place] == there[1].split(",")[place], name
    with pytest.raises(ns.InvalidInput, match="say which detectors to compare"):
        raise run("eval", "--id", files[0], "--ood", files[3], "--engine", "local", ok=False).exception


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("score", "{saved}", "{folder}"), "go into a folder, one file a piece"),
        (("score", "{saved}", "-", "--engine", "local", "-o", "{folder}/out"), "- cannot be read in pieces"),
        (("score", "{saved}", "sample:test", "--engine", "local"), "sample:test cannot be read in pieces"),
        (("score", "{saved}", "{folder}/0.parquet", "--address", "auto"), "add --engine ray"),
        (("fit", "{folder}", "-o", "{saved}", "-d", "knn"), "knn cannot be fitted in parts"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, run: Any, arguments: tuple[str, ...], sentence: str) -> None:
    write_folder(tmp_path / "in")
    saved = tmp_path / "a.safetensors"
    ns.NormScaling().fit(np.eye(5)).save(saved)
    given = [part.format(saved=saved, folder=tmp_path / "in") for part in arguments]
    with pytest.raises(ns.InvalidInput, match=sentence):
        raise run(*given, ok=False).exception
