"""Make the records in docs/results/ anew, with today's code: `make results`, or for some of them

    python tools/record.py [--runs FOLDER] [--resnet20 FOLDER] [--work FOLDER] [TARGET ...]

--runs has runs of `normscale bench` with their outputs (default: runs/). --resnet20 has tables of a CIFAR-10
ResNet-20: cifar10_train, cifar10_test, last_layer, and a table for each OoD set. --work keeps what is finished, by
the commit of src/: started again, only what is missing is made. --rows bounds the OoD sets of the leaderboard, five
times as many the test and training sets; --networks names some of its networks. A record whose inputs are not there is
skipped, and said. Every record has its command, commit, date and versions; paths are given by their last two parts.

Not made here: guard-*.json (tests/soak/), speed.json (`make bench`), engines-5m.json (tools/compare_engines.py). The
rows of any other comparison, such as one that needs a model, are recorded by

    python tools/record.py rows docs/results/NAME.json compare ARGUMENTS
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from normscale import read_table
from normscale._provenance import environment
from normscale.bench.experiments.bench import bench
from normscale.bench.experiments.network_outputs import Job
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress_result import load_stress, summarise
from normscale.bench.network_folder import OWN_SETS
from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.presets import STATICS
from normscale.bench.report.figures.stress_map import save_stress_map
from normscale.bench.report.runs import read_runs
from normscale.rows import write_table

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "docs" / "results"
RUNS = ("cifar10-small", "cifar100-small", "svhn-small", "tinyimagenet-small", "cifar10-wide")
RESNET20 = "resnet20"
NETWORKS = (*RUNS, RESNET20)
ROBUST = "robust_norm_scaling"
SWEEP = {"memory": (12, 25, 100, 200), "prior_weight": (1, 2.5, 10, 20), "tolerance": (0.6, 0.7, 0.9, 1)}
"""Other values of the parameters of stream-aware detectors."""


class Skip(Exception):
    """A record cannot be made here; the text says why."""


class Place(NamedTuple):
    """Where inputs are, and where finished work is kept."""

    runs: Path
    resnet20: Path | None
    work: Path
    rows: int = 2000
    """At most so many rows of each OoD set on the leaderboard."""
    networks: Sequence[str] = NETWORKS
    """Those of the leaderboard."""

    def tables(self, name: str) -> tuple[list[str], list[str]]:
        """Options --train and --id, and --ood, of a network's outputs."""
        run = self.run(name)
        own, seed = run.network(run.plan.seeds[0]), run.plan.seeds[0]
        sets = [one for one in run.plan.ood if run.has_outputs(seed, one)]
        known = ["--train", str(own.outputs("train")), "--id", str(own.outputs("test"))]
        return known, [text for one in sets for text in ("--ood", f"{one}={own.outputs(one)}")]

    def run(self, name: str) -> RunFolder:
        """The folder of a network's run, with outputs; made once of the ResNet-20's tables."""
        if name == RESNET20:
            return self._resnet20()
        source = self.runs / name
        if not (source / "settings.json").exists():
            raise Skip(f"{source} is not there: copy docs/results/{name}/networks to it and run its settings' command")
        run = RunFolder.open(source)
        seeds = tuple(seed for seed in run.plan.seeds if Job(str(source), run.plan, seed).is_done)
        if not seeds:
            raise Skip(f"{source} has no network with all outputs yet")
        return RunFolder(source, run.plan._replace(seeds=seeds), run.made_by)

    def _resnet20(self) -> RunFolder:
        if self.resnet20 is None or not self.resnet20.is_dir():
            raise Skip("--resnet20 names no folder of tables")
        tables = {path.stem: path for path in sorted(self.resnet20.glob("*.npz"))}
        with np.load(tables.pop("last_layer")) as layer:
            head = layer["weight"], layer["bias"]
        own = {name: tables.pop(f"cifar10_{name}") for name in OWN_SETS if f"cifar10_{name}" in tables}
        plan = Plan(RESNET20, "cifar10", {one: one for one in tables}, RESNET20, 0, "its own", seeds=(0,))
        run = RunFolder.create(self.work / RESNET20, plan)
        run.network(0).make()
        for name, path in {**own, **tables}.items():
            if not run.has_outputs(0, name):
                write_table(run.network(0).outputs(name), read_table(path).replace(head=head))
        return run


def commit() -> str:
    """The last commit that changed the code."""
    return _printed("git", "-C", str(ROOT), "log", "-1", "--format=%H", "--", "src")


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def short(argument: str) -> str:
    """A path by its last two parts, so that a record says nothing about the machine."""
    name, equals, path = argument.rpartition("=")
    return f"{name}{equals}{'/'.join(path.split('/')[-2:])}"


def rounded(value: Any) -> Any:
    """Numbers with four digits, also inside of lists and mappings; one that is not there is null."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 4)


def head(command: list[str]) -> dict[str, Any]:
    """The command, the commit, the date and the versions."""
    words = " ".join(["normscale", *map(short, command)])
    return {"command": words, "commit": commit(), "date": date.today().isoformat(), "made_with": environment()}


def write(target: Path, record: dict[str, Any], **lists: list[Any]) -> None:
    """Write a record with a line for each row of its lists, so that a change is one line in a diff."""
    text = json.dumps(record, indent=1, ensure_ascii=False).removesuffix("\n}")
    for name, rows in lists.items():
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        text += f',\n "{name}": [\n  {lines}\n ]'
    target.write_text(text + "\n}\n", encoding="utf-8")


def normscale(*arguments: str, folder: Path | None = None) -> None:
    """Run a command, in a folder if pictures are named from there; what it prints goes to standard error."""
    subprocess.run([sys.executable, "-m", "normscale", *arguments], check=True, stdout=sys.stderr, cwd=folder)


def audit(target: Path, place: Place) -> None:
    """The findings of the audit, and the numbers behind them."""
    place.run(RESNET20)  # or it is skipped
    folder = Path(str(place.resnet20))
    own = ("cifar10_train", "cifar10_test", "last_layer")
    sets = [path for path in sorted(folder.glob("*.npz")) if path.stem not in own]
    arguments = ["audit", "--train", f"{folder}/{own[0]}.npz", "--id", f"{folder}/{own[1]}.npz"]
    arguments += [text for path in sets for text in ("--ood", str(path))] + ["--in-set", "cifar10"]
    file = place.work / target.name
    if not file.exists():
        file.write_text(_printed(sys.executable, "-m", "normscale", *arguments, "--format", "json"))
    write(target, head(arguments), claims=[json.loads(line) for line in file.read_text().splitlines()])


def stress(target: Path, place: Place, name: str, *options: str) -> None:
    """Means over OoD sets, verdicts, and the shares flagged of in-distribution streams."""
    known, ood = place.tables(name)
    arguments = ["stress", *known, *ood, *options]
    file = place.work / target.name
    if not file.exists():
        normscale(*arguments, "-o", str(file))
    result = load_stress(file)
    save_stress_map(result, target.with_suffix(".png"))
    record = {
        **head(arguments),
        "settings": result.settings,
        "note": "cells: [AUROC, FPR95] by method, OoD positive, averaged over the OoD sets",
    }
    write(
        target,
        record,
        summary=[
            rounded(one._asdict() | {"worst_kind": one.worst_kind._asdict()}) for one in summarise(result, STATICS)
        ],
        alarms=[rounded(one._asdict()) for one in result.alarms],
        cells=[{**kind._asdict(), **rounded(dict(found))} for kind, found in result.means().items()],
    )


def benchmark(target: Path, place: Place, name: str) -> None:
    """Measure every method on a run's outputs; keep settings, results, comparisons and networks."""
    source = place.run(name)
    if (target / "settings.json").exists():
        kept = RunFolder.open(target).plan
        lacks = [f"seed {seed}" for seed in kept.seeds if seed not in source.plan.seeds]
        lacks += [name for name in kept.methods if name not in source.plan.methods]
        if lacks:
            raise Skip(f"{source.path} lacks what the record has: {', '.join(lacks)}")
    folder = place.work / name
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "networks").exists():
        (folder / "networks").symlink_to((source.path / "networks").resolve())
    run = bench(folder, source.plan, command=str(source.made_by.get("command") or "")).run
    read_runs([folder], paper_additions())  # writes comparisons.json
    target.mkdir(parents=True, exist_ok=True)
    for file in ("settings.json", "results.jsonl", "failures.json", "comparisons.json"):
        (target / file).unlink(missing_ok=True)
        if (run.path / file).exists():
            shutil.copyfile(run.path / file, target / file)
    for seed in run.plan.seeds:
        into = target / "networks" / f"seed{seed}"
        into.mkdir(parents=True, exist_ok=True)
        for file in ("network.safetensors", "result.json", "perturbation.json"):
            shutil.copyfile(run.network(seed).path / file, into / file)


def leaderboard(target: Path, place: Place, names: Sequence[str] | None = None, *detectors: str) -> None:
    """Every detector on the networks that are there, as fitted and in five kinds of streams."""
    found, missing = [], []
    for name in names or place.networks:
        try:
            found.append(str(place.run(name).path))
        except Skip as why:
            missing.append(f"{name}: {why}")
    if not found:
        raise Skip("; ".join(missing))
    arguments = ["leaderboard", *found, f"--rows={place.rows}", f"--train-rows={5 * place.rows}"]
    arguments += [text for one in detectors for text in ("-d", one)]
    normscale(*arguments, "-o", str(place.work / target.name), folder=place.runs if place.runs.is_dir() else None)
    target.mkdir(parents=True, exist_ok=True)
    for old in target.iterdir():
        old.unlink()
    for file in sorted((place.work / target.name / "tables").glob("*.csv")):
        shutil.copyfile(file, target / file.name)
    (target / "record.json").write_text(json.dumps({**head(arguments), "missing": missing}, indent=1) + "\n")


def sweep(target: Path, place: Place) -> None:
    """Robust norm-scaling with other parameters."""
    spelled = [f"{ROBUST}:{name}={value}" for name, values in SWEEP.items() for value in values]
    leaderboard(target, place, [RESNET20], ROBUST, *spelled)


RECORDS: dict[str, Callable[[Path, Place], None]] = {
    **{name: partial(benchmark, name=name) for name in RUNS},
    "leaderboard": leaderboard,
    "resnet20-stress.json": partial(stress, name=RESNET20),
    "resnet20-sweep": sweep,
    "audit-resnet20.json": audit,
}
"""What makes each record."""


def rows(target: Path, arguments: list[str]) -> None:
    """The rows that `normscale eval` or `compare` prints."""
    printed = _printed(sys.executable, "-m", "normscale", *arguments, "--format", "json")
    write(target, head(arguments), rows=[json.loads(line) for line in printed.splitlines()])


def main() -> None:
    """Make the records one after the other, and say which could not be made."""
    if sys.argv[1:2] == ["rows"]:
        rows(Path(sys.argv[2]), sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"one of: {', '.join(RECORDS)}")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--resnet20", type=Path)
    parser.add_argument("--work", type=Path, default=Path("run/records"))
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--networks", nargs="+", default=NETWORKS, choices=NETWORKS)
    asked = parser.parse_args()
    if unknown := [name for name in asked.targets if name not in RECORDS]:
        parser.error(f"no record is called {', '.join(unknown)}; known: {', '.join(RECORDS)}")
    work = asked.work.resolve() / commit()[:10]
    work.mkdir(parents=True, exist_ok=True)
    place = Place(asked.runs.resolve(), asked.resnet20 and asked.resnet20.resolve(), work, asked.rows, asked.networks)
    for name in asked.targets or RECORDS:
        started = time.monotonic()
        try:
            RECORDS[name](RESULTS / name, place)
        except Skip as why:
            print(f"{name}: skipped: {why}")
        else:
            print(f"{name}: made in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
