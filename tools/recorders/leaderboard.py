"""Write docs/results/leaderboard/: every detector on outputs that are there, of finished runs or in plain tables.

    python tools/record.py leaderboard OUT --work FOLDER [--rows N] [--train-rows N] [--networks N] SOURCE ...

A SOURCE is the folder of a run of `normscale bench`, or NAME:TRAINED_ON=FOLDER, where FOLDER holds a network's outputs:
TRAINED_ON_train, TRAINED_ON_test, perhaps TRAINED_ON_validation and last_layer (weight, bias); every other table is
an OoD set. Nothing is written to a source: outputs are copied to --work, at most --rows rows of every test and OoD set
and --train-rows of the training set, drawn once with seed 0; with --networks N of the first N networks of a run.
Started again, only missing cells are computed. --detectors takes names instead of all.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from normscale import ModelOutputs, read_table
from normscale.bench.experiments.bench import measure_outputs
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.network_folder import OWN_SETS, TRAIN
from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.presets import every_method, with_detectors
from normscale.bench.report.writing import report


class Source(NamedTuple):
    """Outputs of one network: where they come from, and the plan they are measured by."""

    plan: Plan
    files: dict[str, Path]
    head: Path | None = None
    network: Path | None = None
    """The folder with what training came to, and by how much pictures were perturbed."""


def run_sources(folder: Path, detectors: list[str], n_networks: int | None) -> list[Source]:
    """One source for every network of a run, or for its first ones."""
    run = RunFolder.open(folder)
    plan = with_detectors(run.plan, detectors)
    found = []
    for seed in plan.seeds[:n_networks]:
        files = {name: run.network(seed).outputs(name) for name in (*OWN_SETS, *plan.ood)}
        there = {name: path for name, path in files.items() if path.exists()}
        found.append(Source(plan._replace(seeds=(seed,)), there, network=run.network(seed).path))
    return found


def table_source(name: str, trained_on: str, folder: Path, detectors: list[str]) -> Source:
    """The outputs of a network in plain tables."""
    tables = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix in (".npz", ".safetensors")}
    head = tables.pop("last_layer", None)
    files = {one: tables.pop(f"{trained_on}_{one}") for one in OWN_SETS if f"{trained_on}_{one}" in tables}
    plan = Plan(name, trained_on, {one: one for one in tables}, network=name, width=0, recipe="its own", seeds=(0,))
    names = every_method() if detectors == ["all"] else tuple(detectors)
    return Source(plan._replace(further=names), {**files, **tables}, head)


def read(source: Source, name: str, rows: int | None) -> ModelOutputs:
    """A table, at most so many of its rows, with the network's head."""
    outputs = read_table(source.files[name])
    if source.head is not None:
        with np.load(source.head) as layer:
            outputs = outputs.replace(head=(layer["weight"], layer["bias"]))
    if rows is not None and len(outputs) > rows:
        outputs = outputs[np.sort(np.random.default_rng(0).permutation(len(outputs))[:rows])]
    return outputs


def measured(source: Source, work: Path, rows: int | None, train_rows: int | None, command: str) -> RunFolder:
    """The run folder of a source, with all cells."""
    seed = source.plan.seeds[0]
    target = work / source.plan.name
    readers: dict[str, Callable[[], ModelOutputs]] = {
        name: partial(read, source, name, train_rows if name == TRAIN else rows) for name in source.files
    }
    if source.network is not None:
        into = target / "networks" / source.network.name
        into.mkdir(parents=True, exist_ok=True)
        for name in ("result.json", "perturbation.json", "missing.json"):
            if (source.network / name).exists():
                shutil.copyfile(source.network / name, into / name)
    print(f"{source.plan.name}, seed {seed}", file=sys.stderr)
    return measure_outputs(target, source.plan, readers, command=command, say=lambda text: print(text, file=sys.stderr))


def main() -> None:
    """Take the sources, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--train-rows", type=int)
    parser.add_argument("--networks", type=int)
    parser.add_argument("--detectors", nargs="+", default=["all"])
    asked = parser.parse_args()
    command = " ".join(["python tools/record.py leaderboard", *map(_short, sys.argv[1:])])
    folders: dict[Path, None] = {}
    for text in asked.sources:
        named, equals, path = text.partition("=")
        name, _, trained_on = named.partition(":")
        many = (
            [table_source(name, trained_on, Path(path), asked.detectors)]
            if equals
            else run_sources(Path(text), asked.detectors, asked.networks)
        )
        for source in many:
            folders[measured(source, asked.work, asked.rows, asked.train_rows, command).path] = None
    page = report(list(folders), asked.out, leaderboard=True, figures=False, additions=paper_additions())
    page.unlink()  # the tables are kept; `make docs` and people make the page
    print(page.parent / "tables", file=sys.stderr)


def _short(argument: str) -> str:
    """An absolute path by its last part, so that the record says nothing about the machine."""
    name, equals, path = argument.rpartition("=")
    return f"{name}{equals}{Path(path).name}" if Path(path).is_absolute() else argument
