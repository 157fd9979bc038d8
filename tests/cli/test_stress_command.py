"""``normscale stress``, run as a person runs it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import normscale as ns
from needed_extras import need
from normscale.bench.experiments.alarms import changed_outputs
from normscale.bench.experiments.stress import stress
from normscale.bench.experiments.stress_result import load_stress, summarise
from normscale.bench.paper.presets import PREFERRED, RUNNING, STATICS, own_methods
from program import normscale as program


def outputs(n: int, seed: int, shift: float) -> ns.ModelOutputs:
    labels = np.arange(n) % 3
    logits = np.random.default_rng(seed).normal(size=(n, 3)) + shift * np.eye(3)[labels]
    return ns.ModelOutputs(logits, labels=labels)


TABLES = {"train": outputs(150, 0, 3.0), "test": outputs(60, 1, 3.0), "odd": outputs(60, 2, 1.0)}


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    for name, table in TABLES.items():
        ns.write_table(folder / f"{name}.npz", table)
    return folder


def normscale(*arguments: object, cwd: Path | None = None) -> CompletedProcess[str]:
    """Run a command with the compiled kernels: a grid of streams takes the others six times as long."""
    return program(*arguments, cwd=cwd, NORMSCALE_KERNELS=None)


ARGUMENTS = ("stress", "--train", "train.npz", "--id", "test.npz", "--ood", "strange=odd.npz")


def test_one_run_prints_verdicts_saves_and_draws(folder: Path) -> None:
    need("matplotlib")
    run = normscale(*ARGUMENTS, "-o", "rows.json", "--picture", "map.svg", "--seed", 3, "--threads", 2, cwd=folder)
    assert run.returncode == 0, run.stderr
    odd = {"strange": TABLES["odd"]}
    changed = dict(changed_outputs(TABLES["test"], 3))
    methods, notes = own_methods(TABLES["train"]), {"preferred": PREFERRED, "n_train": 150}
    expected = stress(TABLES["test"], odd, methods, changed=changed, notes=notes, seed=3)
    saved = load_stress(folder / "rows.json")
    assert saved.settings == expected.settings
    assert [(r.method, r.stream, r.skipped) for r in saved.rows] == [
        (r.method, r.stream, r.skipped) for r in expected.rows
    ]
    np.testing.assert_allclose([r.auroc for r in saved.rows], [r.auroc for r in expected.rows], rtol=1e-9)
    assert [one[:2] for one in saved.alarms] == [one[:2] for one in expected.alarms]
    np.testing.assert_allclose([one[2:4] for one in saved.alarms], [one[2:4] for one in expected.alarms], rtol=1e-9)
    assert "<svg" in (folder / "map.svg").read_text()
    assert run.stderr.splitlines() == ["written: rows.json", "written: map.svg"]

    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 110
    assert len(lines) < 60, "a page, not a list of rows"
    one = next(one for one in summarise(expected, STATICS) if one.method == RUNNING)
    line = next(line for line in lines if line.split()[:1] == [RUNNING])
    numbers = f"{one.mean_auroc:.3f}", f"{one.mean_fpr95_out:.3f}", f"{one.worst:+.3f}"
    assert line.removeprefix(RUNNING).split()[:4] == [*numbers, f"{100 * one.worst_kind.share:g}"]
    text = " ".join(run.stdout.split())
    assert sum(line.rstrip().endswith("use this") for line in lines) == 1
    assert "Use this: the safe method with the highest mean" in text


def test_verdicts_weigh_stream_aware_detectors_and_ones_own(folder: Path) -> None:
    """On the sample, whose tables have features and a head, and with detectors that were named."""
    tables = ("--train", "sample:train", "--id", "sample:test", "--ood", "sample:uniform_noise")
    fitted = ns.make_detector("react+energy").fit(ns.load_sample().train)
    fitted.save(folder / "mine.safetensors")
    run = normscale("stress", *tables, "-d", "gen", "-d", "mine.safetensors", "-o", "own.json", cwd=folder)
    assert run.returncode == 0, run.stderr
    saved = load_stress(folder / "own.json")
    known = {"robust_norm_scaling", "stream_aware+energy", "stream_aware+ensemble", "gen", "mine.safetensors"}
    assert known <= set(saved.methods)
    assert known <= set(run.stdout.split())
    means = {
        name: np.mean([numbers[name].auroc for numbers in saved.means().values()])
        for name in saved.in_setting("stream")
    }
    assert max(means, key=lambda name: means[name]).startswith(("stream_aware", "robust"))
    (advised,) = [line for line in run.stdout.splitlines() if line.rstrip().endswith("use this")]
    assert advised.startswith(("stream_aware", "robust")), advised
    unknown = normscale("stress", *tables, "-d", "gne", cwd=folder)
    assert unknown.returncode == 1
    assert "Did you mean 'gen'" in " ".join(unknown.stderr.split())


def test_rows_as_csv_and_json(folder: Path) -> None:
    as_csv = normscale(*ARGUMENTS, "-f", "csv", cwd=folder)
    as_json = normscale(*ARGUMENTS, "-f", "json", cwd=folder)
    assert as_csv.returncode == as_json.returncode == 0, as_csv.stderr + as_json.stderr
    table = list(csv.DictReader(as_csv.stdout.splitlines()))
    records = [json.loads(line) for line in as_json.stdout.splitlines()]
    assert len(table) == len(records) == 60 * 8
    for row, record in zip(table, records, strict=True):
        assert (row["method"], row["order"], float(row["share"])) == (
            record["method"],
            record["order"],
            record["share"],
        )
        assert json.loads(row["parameters"]) == record["parameters"]
        assert record["positive"] == "OoD for *_out, in-distribution for *_in"
        if record["skipped"]:
            assert record["auroc"] is None
        else:
            assert float(row["auroc"]) == record["auroc"]
    assert {record["parameters"].get("prior_weight") for record in records} == {1.0, 5.0, 1000.0, "Infinity", None}


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (("--id", "test.npz"), "--train, --id and --ood go together; give all three, or none"),
        (("--train", "train.npz", "--id", "test.npz", "--ood", "nowhere.npz"), "no such file: nowhere.npz"),
        (("--train", "train.npz", "--id", "flat.npy", "--ood", "odd.npz"), "flat.npy"),
        (("--train", "train.npz", "--id", "wrong.npz", "--ood", "odd.npz"), "labels[5] is 7"),
        (("--train", "train.npz", "--id", "test.npz", "--ood", "wide.npz"), "wide has 5 classes and the ID set has 3"),
        (("--train", "wide.npz", "--id", "test.npz", "--ood", "odd.npz"), "logits must have 5 columns, as in fit"),
        (("--train", "train.npz", "--id", "test.npz", "--ood", "odd.npz", "--ood", "odd.npz"), "odd"),
        (("--picture", "map.gif"), "a picture's name must end in .png, .svg, .pdf; got 'map.gif'"),
        (("--output", "rows.txt"), "--output must end in .json; got 'rows.txt'"),
        (("--output", "no/where/rows.json"), "there is no folder 'no/where'"),
    ),
)
def test_mistakes_are_answered_with_a_sentence(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    if "--picture" in arguments:
        need("matplotlib")
    np.save(folder / "flat.npy", np.zeros(12))
    np.savez(folder / "wrong.npz", logits=np.zeros((40, 3)), labels=np.r_[np.zeros(5), 7, np.zeros(34)].astype(int))
    ns.write_table(folder / "wide.npz", ns.ModelOutputs(np.random.default_rng(0).normal(size=(50, 5))))
    before = sorted(folder.iterdir())
    run = normscale("stress", *arguments, cwd=folder)
    assert run.returncode == 1
    assert message in " ".join(run.stderr.split())
    assert "Traceback" not in run.stderr
    assert run.stdout == ""
    assert sorted(folder.iterdir()) == before


def test_help_has_an_example() -> None:
    run = normscale("stress", "--help")
    assert run.returncode == 0
    assert "normscale stress" in " ".join(run.stdout.split("Examples:")[1].split())
