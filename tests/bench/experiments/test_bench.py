"""The benchmark: right numbers, nothing done twice, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.bench.experiments.bench import bench
from normscale.bench.experiments.comparison import compare
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress_result import load_stress
from normscale.bench.paper.presets import own_methods

pytest.importorskip("torch")

PLAN = Plan(
    "small",
    "digits",
    {"fashion": "fashion", "gaussian": "gaussian"},
    width=4,
    recipe="fast",
    epochs=2,
    seeds=(0, 1),
    methods=(
        *("msp", "multi_threshold", "odin", "mahalanobis", "energy", "norm_scaling", "norm_scaling_frozen"),
        "mahalanobis:layers=stem,stage4,features:shrinkage=oas",
    ),
)
N_CELLS = 2 * 2 * 8


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench") / "run"
    result = bench(folder, PLAN, command="normscale bench")
    assert (result.n_new, result.n_kept, result.missing) == (N_CELLS, 0, {})
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def values(folder: Path) -> dict[tuple[Any, ...], float]:
    return {
        (row["seed"], row["ood_set"], row["method"], metric): value
        for row in rows_of(folder)
        for metric, value in row.get("metrics", {}).items()
    }


def test_every_row_says_what_it_is(finished: Path) -> None:
    rows = rows_of(finished)
    assert len(rows) == 2 + N_CELLS
    for row in rows:
        assert {"seed", "in_set", "ood_set", "n_id", "seconds", "version", "commit"} <= set(row)
        if row["ood_set"] is None:
            assert 0.0 <= row["test_accuracy"] <= 1.0
        else:
            assert {"method", "setting", "parameters", "n_ood"} <= set(row)
            assert len(row["metrics"]) == 5
            assert all(0.0 <= value <= 1.0 for value in row["metrics"].values())
    odin = next(row for row in rows if row.get("method") == "odin")
    assert odin["parameters"]["temperature"] == 1000.0
    assert odin["parameters"]["epsilon"] >= 0.0
    assert (odin["n_id"], odin["n_ood"]) == (500, 1000)
    settings = json.loads((finished / "settings.json").read_text())
    assert settings["made_by"]["command"] == "normscale bench"


def test_the_numbers_are_those_of_compare_on_the_same_outputs(finished: Path) -> None:
    run, found = RunFolder.open(finished), values(finished)
    for seed in (0, 1):
        train, test = run.outputs(seed, "train"), run.outputs(seed, "test")
        sets = {name: run.outputs(seed, name) for name in PLAN.ood}
        expected = compare(test, sets, train=train, validation=run.outputs(seed, "validation"), seed=seed)
        names = {
            ("msp", "frozen"): "msp",
            ("multi_threshold", "per class"): "multi_threshold",
            ("mahalanobis", "frozen"): "mahalanobis",
            ("energy", "frozen"): "energy",
            ("norm_scaling", "stream"): "norm_scaling",
            ("norm_scaling", "frozen"): "norm_scaling_frozen",
        }
        compared = 0
        for row in expected:
            if (row.method, row.setting) in names:
                method = names[row.method, row.setting]
                for metric in ("auroc", "aupr_out", "aupr_in", "fpr95_out", "fpr95_in"):
                    assert found[seed, row.ood_set, method, metric] == pytest.approx(row.metrics[metric], abs=1e-12)
                    compared += 1
        assert compared == 6 * 2 * 5
        layered = ns.Mahalanobis(layers=("stem", "stage4", "features"), shrinkage="oas").fit(train)
        for name in PLAN.ood:
            odin = ns.evaluate(ns.ODIN().score(test), ns.ODIN().score(sets[name])).auroc
            assert found[seed, name, "odin", "auroc"] == pytest.approx(odin, abs=1e-12)
            assert not np.array_equal(sets[name].perturbed_logits, sets[name].logits)
            distances = ns.evaluate(layered.score(test), layered.score(sets[name])).auroc
            assert found[seed, name, PLAN.methods[-1], "auroc"] == pytest.approx(distances, abs=1e-12)
        assert set(test.names) == {"logits", "features", "perturbed_logits", "stem", "stage4"}
        assert set(train.names) == {"logits", "features", "stem", "stage4"}  # nothing is perturbed that nobody reads
        assert set(run.outputs(seed, "validation").names) == {"logits", "features"}


def test_a_cell_keeps_the_scores_its_numbers_come_from(finished: Path) -> None:
    cell, scores = RunFolder.open(finished).load_cell(1, "fashion", "norm_scaling")
    assert (len(scores.id_scores), len(scores.ood_scores)) == (500, 1000)
    assert ns.evaluate(scores.id_scores, scores.ood_scores).auroc == cell.metrics["auroc"]


def test_a_deleted_cell_is_made_again_and_nothing_else(run: Path) -> None:
    before = values(run)
    lost = RunFolder.open(run).cell_path(1, "gaussian", "norm_scaling")
    lost.unlink()
    times = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    result = bench(run, PLAN)
    assert (result.n_new, result.n_kept) == (1, N_CELLS - 1)
    assert lost.exists()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert values(run) == before


def test_deleted_outputs_are_read_out_again_without_training(run: Path) -> None:
    before = values(run)
    opened = RunFolder.open(run)
    opened.network(0).outputs("fashion").unlink()
    opened.cell_path(0, "fashion", "odin").unlink()
    log = (opened.network(0).path / "checkpoint.safetensors").stat().st_mtime_ns
    assert bench(run, PLAN).n_new == 1
    assert (opened.network(0).path / "checkpoint.safetensors").stat().st_mtime_ns == log
    assert values(run) == before


def test_more_may_be_asked_of_a_run(run: Path) -> None:
    more = PLAN._replace(seeds=(0,), ood={"uniform": "uniform"}, methods=("energy", "max_logit"))
    result = bench(run, more)
    assert (result.n_new, result.n_kept) == (2, 0)
    opened = RunFolder.open(run)
    assert set(opened.plan.ood) == {"fashion", "gaussian", "uniform"}
    assert len(opened.cells()) == N_CELLS + 2


def test_arrays_that_another_method_reads_are_added_to_the_outputs(run: Path) -> None:
    before = RunFolder.open(run).outputs(0, "gaussian")
    assert before.get("stage1") is None
    methods = ("mahalanobis:layers=stage1:shrinkage=oas", "react+energy")
    assert bench(run, PLAN._replace(seeds=(0,), ood={"gaussian": "gaussian"}, methods=methods)).n_new == 2
    assert RunFolder.open(run).outputs(0, "train").head is not None  # ReAct needs it
    after = RunFolder.open(run).outputs(0, "gaussian")
    assert after.stage1.shape == (500, 4)
    for name in before.names:
        np.testing.assert_array_equal(after.array(name), before.array(name))


def test_the_set_keeps_its_name_when_its_source_is_another() -> None:
    plan = PLAN._replace(data="npz:packs/digits", trained_on="digits")
    assert plan.in_set == "digits"
    assert Plan.from_dict(plan._asdict()) == plan


@pytest.mark.filterwarnings("ignore:.*far outside:normscale.NumericalWarning")  # one epoch: any noise may be far
def test_pictures_are_made_the_size_of_the_plan(tmp_path: Path) -> None:
    from normscale.bench.data import load
    from normscale.bench.train.network_file import load_network

    plan = PLAN._replace(seeds=(0,), epochs=1, methods=("energy",), image_size=(6, 5))
    assert Plan.from_dict(json.loads(json.dumps(plan._asdict()))) == plan
    result = bench(tmp_path / "run", plan)
    assert (result.n_new, result.missing) == (2, {})
    info = load_network(result.run.network(0).network)[1]
    pixels = load("digits", "train").resized(6, 5, 1).images / 255.0
    assert info.image_size == (6, 5)
    assert info.mean == pytest.approx((pixels.mean(),))
    assert info.std == pytest.approx((pixels.std(),))
    with pytest.raises(ns.InvalidInput, match=r"holds a run with image_size \(6, 5\)"):
        bench(tmp_path / "run", plan._replace(image_size=None))
    result.run.network(0).result.unlink()
    (tmp_path / "run" / "settings.json").unlink()
    with pytest.raises(ns.InvalidInput, match="other settings \\(image_size differ"):
        bench(tmp_path / "run", plan._replace(image_size=None))


def test_a_set_that_cannot_be_had_is_left_out_and_named(run: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "wrong.npz", pictures=np.zeros(3))
    sets = {**PLAN.ood, "absent": f"npz:{tmp_path}/none.npz", "wrong": f"npz:{tmp_path}/wrong.npz"}
    result = bench(run, PLAN._replace(ood=sets))
    assert (result.n_new, result.n_kept) == (0, N_CELLS)
    assert set(result.missing) == {"absent", "wrong"}
    assert "none.npz" in result.missing["absent"]
    assert "images" in result.missing["wrong"]
    pictures = np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), dtype=np.uint8)  # other size and channels
    np.savez(tmp_path / "none.npz", images=pictures, labels=np.full(40, -1))
    result = bench(run, PLAN._replace(ood=sets))
    assert set(result.missing) == {"wrong"}
    assert result.n_new == 2 * 8


def test_the_stress_grid_is_run_once_on_the_first_network(run: Path) -> None:
    small = PLAN._replace(seeds=(0,), ood={"gaussian": "gaussian"})
    bench(run, small, stress=own_methods)
    result = load_stress(run / "stress.json")
    assert result.ood_sets == ["gaussian"]
    assert result.settings["n_id"] == 500
    before = (run / "stress.json").stat().st_mtime_ns
    bench(run, small, stress=own_methods)
    assert (run / "stress.json").stat().st_mtime_ns == before


def test_another_source_under_the_name_of_a_set_is_refused(run: Path) -> None:
    """Otherwise scores of two data sets would stand in one column."""
    name = next(iter(PLAN.ood))
    with pytest.raises(ns.InvalidInput, match=rf"has an OoD set '{name}' from .* Give it another name"):
        bench(run, PLAN._replace(ood={name: "folder:elsewhere"}))


def test_other_networks_in_the_same_folder_are_refused(run: Path) -> None:
    with pytest.raises(ns.InvalidInput, match=r"holds a run with width 4.*another folder"):
        bench(run, PLAN._replace(width=5))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"seeds": ()}, "at least one seed"),
        ({"methods": ("energi",)}, "Did you mean 'energy'"),
        ({"methods": ("energy_frozen",)}, "no running statistics"),
        ({"methods": ("energy", "mahalanobis:layers=nolayer")}, "nolayer"),
    ],
)
def test_wrong_plans_are_said_before_any_work(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    with pytest.raises(ns.NormscaleError, match=match):
        bench(tmp_path / "run", PLAN._replace(**change))
    assert not (tmp_path / "run" / "networks").exists()


def test_a_damaged_cell_and_a_newer_folder_are_explained(run: Path) -> None:
    path = RunFolder.open(run).cell_path(0, "fashion", "msp")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ns.FileFormatError, match="delete it and run"):
        RunFolder.open(run).cells()
    settings = json.loads((run / "settings.json").read_text())
    (run / "settings.json").write_text(json.dumps({**settings, "format": 99}))
    with pytest.raises(ns.FileFormatError, match=r"format 99.*Upgrade"):
        bench(run, PLAN)
    (run / "settings.json").write_text("{")
    with pytest.raises(ns.FileFormatError, match="damaged"):
        bench(run, PLAN)
    with pytest.raises(ns.FileFormatError, match="not the folder of a benchmark"):
        RunFolder.open(run / "cells")


PROGRAM = """
import sys
from test_bench import PLAN
from normscale.bench.experiments.bench import bench
import resource
if sys.argv[3] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
    import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
bench(sys.argv[1], PLAN._replace(seeds=PLAN.seeds[: int(sys.argv[4])]), workers=int(sys.argv[2]))
"""


def start(folder: Path, workers: int = 1, largest_file: int = 0, seeds: int = 2) -> subprocess.Popen[str]:
    places = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    arguments = [sys.executable, "-c", PROGRAM, str(folder), str(workers), str(largest_file), str(seeds)]
    return subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("phase", "workers"),
    [
        ("networks/seed0/checkpoint.safetensors", 2),
        ("networks/seed0/outputs/test.safetensors", 1),
        ("cells/seed0/gaussian/msp.safetensors", 1),
    ],
)
def test_killed_in_any_phase_it_goes_on(finished: Path, tmp_path: Path, phase: str, workers: int) -> None:
    folder = tmp_path / "run"
    process = start(folder, workers)
    try:
        end = time.monotonic() + 120
        while not (folder / phase).exists() and time.monotonic() < end:
            assert process.poll() is None, process.communicate(timeout=60)[1]
            time.sleep(0.01)
        with pytest.raises(ns.FolderInUse, match=f"id {process.pid}"):
            bench(folder, PLAN)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)  # orphaned workers keep standard error open until they end themselves
    assert (folder / phase).exists()
    end = time.monotonic() + 30
    while True:
        try:
            result = bench(folder, PLAN, workers=workers)
            break
        except ns.FolderInUse:
            assert time.monotonic() < end
            time.sleep(0.1)
    assert result.n_new + result.n_kept == N_CELLS
    assert values(folder) == values(finished)


def test_a_full_disk_is_said_and_loses_nothing(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, largest_file=60_000, seeds=1)  # enough for settings, not for a network
    assert "File too large" in process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert not list(folder.rglob("*.tmp*"))
    bench(folder, PLAN._replace(seeds=(0,)))
    assert values(folder) == {cell: value for cell, value in values(finished).items() if cell[0] == 0}
