"""The commands with many files: the same bytes with every engine, and sentences where something is amiss."""

from __future__ import annotations

import csv
import importlib
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from jobs.parts import bytes_of, logits_of, scores_of, write_folder, write_logits
from normscale.cli import app
from normscale.jobs import local_engine
from normscale.jobs.running import Engine


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, local: Engine) -> Any:
    """A command with engines that are there already: starting one costs seconds."""
    monkeypatch.setattr(local, "close", lambda: None)
    monkeypatch.setattr(local_engine, "LocalEngine", lambda workers: local)
    if "ray_engine" in request.fixturenames:
        ray = request.getfixturevalue("ray_engine")
        monkeypatch.setattr(ray, "close", lambda: None)
        monkeypatch.setattr("normscale.jobs.ray_engine.RayEngine", lambda address, workers: ray)

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
        run("fit", *files, "-o", saved, "-d", "norm_scaling", "--engine", name, "--piece-rows", 200)
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


@pytest.mark.parametrize("labelled", [True, False])
def test_many_files_that_show_some_of_the_classes_are_noted_as_one_table_is(
    tmp_path: Path, run: Any, labelled: bool
) -> None:
    (tmp_path / "in").mkdir()
    rows = logits_of(300)
    rows[:, 2:] = 0.3 * rows[:, 2:] - 100.0
    labels: dict[str, Any] = {"label": np.arange(300) % 2} if labelled else {}
    for name, part in (("a", slice(0, 200)), ("b", slice(200, 300))):
        more: dict[str, Any] = {key: value[part] for key, value in labels.items()}
        write_logits(tmp_path / "in" / f"{name}.parquet", rows[part], **more)
    write_logits(tmp_path / "one.parquet", rows, **labels)
    saved = ("-o", tmp_path / "a.safetensors", "-d", "norm_scaling")
    many, one = (run("fit", tmp_path / table, *saved).stderr for table in ("in", "one.parquet"))
    notes = [next(line for line in said.splitlines() if "the rows show" in line) for said in (many, one)]
    assert notes[0] == notes[1]
    assert f"show {'2 of 5 classes (labels)' if labelled else '2 of 5 classes (predicted classes)'}" in notes[0]


def test_a_dry_run_tells_pieces_bytes_and_memory_and_does_nothing(tmp_path: Path, run: Any) -> None:
    write_folder(tmp_path / "in")
    said = run("fit", tmp_path / "in", "-o", tmp_path / "a.safetensors", "--dry-run", "--piece-rows", 200).output
    assert "3 files, and 1 without rows" in said
    assert "1,151 rows in 6 pieces" in said
    assert "MB of memory per worker" in said
    assert not (tmp_path / "a.safetensors").exists()


@pytest.mark.parametrize("detector", ["energy", "auto"])
def test_eval_on_an_engine_is_eval(tmp_path: Path, run: Any, detector: str) -> None:
    write_folder(tmp_path / "in")
    files = sorted((tmp_path / "in").glob("*.parquet"))
    options = ("eval", "--id", files[0], "--ood", f"other={files[3]}", "--train", files[0], "-d", detector, "-f", "csv")
    here = run(*options).stdout.splitlines()
    there = run(*options, "--engine", "local").stdout.splitlines()
    header = here[0].split(",")
    plain = [row for row in here[1:] if ",frozen," in row]
    for name in ("method", "auroc", "fpr95_out", "fpr95_in", "n_id", "n_ood"):
        place = header.index(name)
        assert plain[0].split(",")[place] == there[1].split(",")[place], name
    with pytest.raises(ns.InvalidInput, match="in pieces, say which detectors to compare"):
        raise run("eval", "--id", files[0], "--ood", files[3], "--engine", "local", ok=False).exception


def test_a_pipe_is_not_read_in_pieces(tmp_path: Path, run: Any) -> None:
    ns.Energy().fit(logits_of(20)).save(tmp_path / "a.safetensors")
    np.save(tmp_path / "rows.npy", logits_of(20))
    for command in (("score", tmp_path / "a.safetensors"), ("fit", "-d", "energy")):
        pipe = tmp_path / f"pipe-{command[0]}"  # its own: bytes for one that is still open elsewhere may go there
        os.mkfifo(pipe)
        data = (tmp_path / "rows.npy").read_bytes()
        writer = threading.Thread(target=pipe.write_bytes, args=(data,), daemon=True)
        writer.start()
        output = tmp_path / ("out" if command[0] == "score" else "b.safetensors")
        with pytest.raises(ns.InvalidInput, match="cannot be read in pieces"):
            raise run(*command, pipe, "--engine", "local", "-o", output, ok=False).exception
        writer.join(60)


def test_eval_of_several_files_with_bad_rows(tmp_path: Path, run: Any) -> None:
    rows = write_folder(tmp_path / "in")
    (tmp_path / "ood").mkdir()
    strange = logits_of(200, 7)
    strange[[3, 150], 0] = np.nan
    write_logits(tmp_path / "ood" / "0.parquet", strange, label=np.zeros(200, int))
    files = [tmp_path / "in" / f"{number}.parquet" for number in (0, 3)]
    options = ["eval", "--id", files[0], "--id", files[1], "--ood", f"far={tmp_path}/ood/*.parquet", "-d", "energy"]
    options += ["--engine", "local", "-f", "csv", "--on-invalid", "skip"]
    said = run(*options)
    energy = ns.Energy()
    good = energy.score(np.delete(strange, [3, 150], axis=0))
    (line,) = csv.DictReader(said.stdout.splitlines())
    assert (line["ood_set"], line["n_id"], line["n_ood"]) == ("far", "1150", "198")
    assert float(line["auroc"]) == ns.evaluate(energy.score(np.delete(rows, 450, axis=0)), good).auroc
    assert "2 rows with NaN or infinity were skipped" in said.stderr
    assert f"{tmp_path / 'ood' / '0.parquet'}: rows 3, 150" in said.stderr
    with pytest.raises(ns.InvalidInput, match="row 3 holds NaN"):
        raise run(*options[:-2], ok=False).exception


def test_eval_and_stress_read_several_files_as_one_table(
    tmp_path: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_folder(tmp_path / "in")
    files = sorted((tmp_path / "in").glob("*.parquet"))
    given = [part for file in files for part in ("--id", file)]
    given += ["--train", files[0], "--train", files[3], "--ood", f"far={tmp_path}/in/[03].parquet"]
    seen: list[Any] = []

    def keep_train(train: Any) -> dict[str, Any]:
        seen.append(train)
        return {}

    def keep(*arguments: Any, **options: Any) -> None:
        seen.extend([options["train"]] if "train" in options else [])
        seen.extend(arguments[:2])
        raise ns.InvalidInput("that is enough.")

    for command, function in {
        "eval": "bench.experiments.comparison.compare_each",
        "stress": "cli.stress.stress",
    }.items():
        seen.clear()
        monkeypatch.setattr(f"normscale.{function}", keep)
        monkeypatch.setattr("normscale.cli.stress.own_methods", keep_train)
        with pytest.raises(ns.InvalidInput, match="that is enough"):
            raise run(command, *given, ok=False).exception
        train, id_test, ood_sets = seen
        np.testing.assert_array_equal(train.logits, np.delete(rows, 450, axis=0))
        np.testing.assert_array_equal(id_test.logits, rows)
        assert {name: len(outputs) for name, outputs in ood_sets.items()} == {"far": 1150}


def test_many_files_are_looked_at(tmp_path: Path, run: Any) -> None:
    write_folder(tmp_path / "in")
    saved = tmp_path / "a.safetensors"
    assert "fitted RobustNormScaling" in run("fit", tmp_path / "in", "-o", saved).stderr
    exponentials = np.exp(logits_of(100))
    shares = exponentials / exponentials.sum(axis=1, keepdims=True)
    for name, rows in {"shares": shares, "per_cent": 100.0 * shares}.items():
        (tmp_path / name).mkdir()
        write_logits(tmp_path / name / "0.parquet", logits_of(0))
        write_logits(tmp_path / name / "1.parquet", rows)
        score = ("score", saved, tmp_path / name, "-o", tmp_path / "out")
        for command in (("fit", tmp_path / name, "-o", saved), score):
            with pytest.raises(ns.InvalidInput, match=r"1\.parquet holds (probabilities|percentages), not logits"):
                raise run(*command, ok=False).exception
    assert not (tmp_path / "out").exists()


def test_scores_of_many_files_on_standard_output(tmp_path: Path, run: Any) -> None:
    rows = write_folder(tmp_path / "in")
    saved = tmp_path / "a.safetensors"
    ns.Energy().fit(rows).save(saved)
    found = list(csv.DictReader(run("score", saved, tmp_path / "in").stdout.splitlines()))
    assert list(found[0]) == ["file", "score", "predicted"]
    assert [row["file"] for row in found] == ["0.parquet"] * 450 + ["1.parquet"] + ["3.parquet"] * 700
    np.testing.assert_allclose([float(row["score"]) for row in found], ns.Energy().score(rows), rtol=1e-12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("score", "{saved}", "{folder}", "--engine", "local"), "into a folder, one file a piece; add --output FOLDER"),
        (("score", "{saved}", "{folder}/0.parquet", "--address", "auto", "-o", "{folder}/out"), "of a Ray cluster"),
        (("fit", "{folder}", "-o", "{saved}", "-d", "react+energy", "--memory", "1kB"), "reads features"),
        (("fit", "{folder}", "-o", "{saved}", "--memory", "1kB"), "robust_norm_scaling reads the rows more than once"),
        (("fit", "{folder}", "-o", "{saved}", "--memory", "much"), "such as 500MB or 8GiB; got 'much'"),
        (("eval", "--id", "{folder}", "--ood", "{folder}", "-d", "msp", "--address", "auto"), "of a Ray cluster"),
        (("eval", "--id", "{folder}", "--ood", "{folder}", "--piece-rows", "9"), "say which detectors to compare"),
        (("eval", "--id", "{folder}", "--ood", "{folder}", "-d", "auto", "--engine", "local"), "give --train"),
        (("eval", "--id", "{folder}", "--ood", "{folder}", "-d", "msp", "--memory", "1kB"), "pieces: --engine local"),
        (
            ("eval", "--id", "{folder}", "--ood", "{folder}", "--ood", "in={folder}", "--engine", "local"),
            "another table is called 'in'",
        ),
        (
            ("eval", "--id", "{folder}", "--ood", "{folder}", "-d", "norm_scaling", "--engine", "local"),
            "norm_scaling must be fitted; add --train",
        ),
        (
            ("stress", "--train", "sample:train", "--train", "{folder}", "--id", "-", "--ood", "-"),
            "together with other",
        ),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, run: Any, arguments: tuple[str, ...], sentence: str) -> None:
    write_folder(tmp_path / "in")
    saved = tmp_path / "a.safetensors"
    ns.NormScaling().fit(np.eye(5)).save(saved)
    given = [part.format(saved=saved, folder=tmp_path / "in") for part in arguments]
    with pytest.raises(ns.InvalidInput, match=sentence):
        raise run(*given, ok=False).exception


@pytest.mark.parametrize(
    ("hidden", "sentence"),
    [
        ("ray", "[ray] many files on a Ray cluster: not installed: pip install 'normscale[ray]'"),
        ("aiohttp", ", but without aiohttp: pip install 'normscale[ray]'"),
        ("", "[ray] many files on a Ray cluster: ray 9.9"),
    ],
)
def test_the_doctor_tells_about_ray(hidden: str, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = importlib.import_module("normscale.cli.doctor")
    monkeypatch.setattr(doctor.util, "find_spec", lambda name: None if name == hidden else "there")
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "9.9")
    monkeypatch.setattr(doctor, "self_checks", dict)
    (line,) = [line for line in CliRunner().invoke(app, ["doctor"]).stdout.splitlines() if "[ray] " in line]
    assert line.strip().endswith(sentence)
