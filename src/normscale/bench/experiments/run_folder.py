"""The folder of a benchmark: what was asked for, the networks with their outputs, and a file for every finished cell.

::

    settings.json                       the plan, and what made it
    networks/seed0/                     a network and its outputs, see :mod:`normscale.bench.network_folder`
    cells/seed0/OOD/METHOD.safetensors  scores of both sides and their metrics: a finished cell
    results.jsonl                       accuracies of the networks, and all cells, a line each
    failures.json                       methods that cannot take part, by seed, and why
    comparisons.json                    the subject of the plan against every other method, with intervals
    stress.json                         the stress grid on the first network's outputs
    report.html  tables/  figures/      what `normscale report` makes of it

A cell is a method on an OoD set with one network. Its file appears whole or not at all; deleted, it is made again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from normscale._atomic import atomic_path
from normscale._provenance import environment
from normscale.bench.experiments.measurement import Measurement, ScoredPair
from normscale.bench.experiments.plan import Plan
from normscale.bench.network_folder import OWN_SETS, SUFFIX, NetworkFolder, read_document, write_document
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.outputs import ModelOutputs
from normscale.rows import read_table
from normscale.state import Kind, load_header, load_state, save_state

FORMAT = 2
_SETTINGS = "settings.json"
CELL = Kind(
    "normscale.cell",
    "cell of a benchmark",
    "Run `normscale bench` on the folder.",
    "delete it and run `normscale bench` again: only this cell is made anew.",
)


class RunFolder:
    """A benchmark on disk, opened for reading or going on.

    Examples
    --------
    >>> import tempfile
    >>> plan = Plan("mine", "digits", {"gaussian": "gaussian"}, methods=("energy",))
    >>> run = RunFolder.create(tempfile.mkdtemp(), plan)
    >>> RunFolder.open(run.path).plan.data, run.cells()
    ('digits', [])
    """

    def __init__(self, path: Path, plan: Plan, made_by: dict[str, Any]) -> None:
        self.path, self.plan, self.made_by = path, plan, made_by
        self.results = path / "results.jsonl"
        self.stress, self.comparisons = path / "stress.json", path / "comparisons.json"
        self._failures = path / "failures.json"

    @classmethod
    def create(cls, path: str | os.PathLike[str], plan: Plan, command: str = "") -> RunFolder:
        """Open the run that is there, or begin one; more seeds, OoD sets or methods may be asked of an old one.

        A run of another in-distribution set or other networks is refused.
        """
        folder = Path(path)
        check_names(plan)
        made_by = {"command": command, **environment()}
        if (folder / _SETTINGS).exists():
            run = cls.open(folder)
            fixed = ("data", "image_size", "network", "width", "recipe", "epochs")
            changed = [name for name in fixed if getattr(run.plan, name) != getattr(plan, name)]
            if changed:
                was = ", ".join(f"{name} {getattr(run.plan, name)!r}" for name in changed)
                raise InvalidInput(
                    f"{folder} holds a run with {was}, which is not what was asked for. Use another folder, "
                    "or delete this one to start anew."
                )
            for name, source in plan.ood.items():
                if run.plan.ood.get(name, source) != source:
                    raise InvalidInput(
                        f"{folder} has an OoD set {name!r} from {run.plan.ood[name]!r}, and {source!r} was asked for. "
                        f"Give it another name: --ood OTHER={source}."
                    )
            more: Any = {
                name: tuple(dict.fromkeys((*getattr(run.plan, name), *getattr(plan, name))))
                for name in ("seeds", "methods")
            }
            plan = run.plan._replace(ood={**run.plan.ood, **plan.ood}, **more)
            check_names(plan)
        folder.mkdir(parents=True, exist_ok=True)
        write_document(folder / _SETTINGS, {"format": FORMAT, "plan": plan._asdict(), "made_by": made_by})
        return cls(folder, plan, made_by)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open a run that exists."""
        file = Path(path) / _SETTINGS
        try:
            document = read_json(file.read_text())
        except (FileNotFoundError, NotADirectoryError):
            why = "there is no such folder"
            if Path(path).exists():
                why = f"it has no {_SETTINGS}" if Path(path).is_dir() else "it is a file"
            raise FileFormatError(
                f"{os.fspath(path)!r} is not the folder of a benchmark ({why}). Make one with `normscale bench "
                "-o FOLDER`; for a report on outputs of your own: `normscale eval ... --report FOLDER`."
            ) from None
        except (OSError, ValueError) as error:
            raise FileFormatError(f"{file} is damaged ({error}). Delete it and run the benchmark again.") from error
        try:
            if document["format"] > FORMAT:
                raise FileFormatError(
                    f"{file} was written by normscale {document['made_by'].get('normscale', '?')} in format "
                    f"{document['format']}; this version reads up to format {FORMAT}. Upgrade normscale."
                )
            return cls(Path(path), Plan.from_dict(document["plan"]), document["made_by"])
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(f"{file} is not what this version writes ({error!r}). Use another folder.") from error

    def network(self, seed: int) -> NetworkFolder:
        """The folder of a seed's network."""
        return NetworkFolder(self.path / "networks" / f"seed{seed}")

    def has_outputs(self, seed: int, name: str, arrays: Iterable[str] = ()) -> bool:
        """Whether a network's outputs on a set are there, with all of these arrays."""
        path = self.network(seed).outputs(name)
        return path.exists() and set(arrays) <= set(array_names(path))

    def outputs(self, seed: int, name: str) -> ModelOutputs:
        """Read a network's outputs on a set."""
        return read_table(self.network(seed).outputs(name))

    def training(self, seed: int) -> dict[str, Any]:
        """What training a network came to: its test accuracy, its log, its settings; empty while it is not there."""
        return read_document(self.network(seed).result)

    def missing(self) -> dict[str, str]:
        """OoD sets that could not be had, and why."""
        every = (read_document(self.network(seed).missing) for seed in self.plan.seeds)
        return {name: why for missing in every for name, why in missing.items()}

    def cell_path(self, seed: int, ood_set: str, method: str) -> Path:
        """Where a cell is, or will be."""
        return self.path / "cells" / f"seed{seed}" / ood_set / f"{file_form(method)}{SUFFIX}"

    def save_cell(self, cell: Measurement, scores: ScoredPair) -> None:
        """Keep a finished cell."""
        path = self.cell_path(cell.seed or 0, cell.ood_set, cell.method)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: array for name, array in scores._asdict().items() if array is not None}
        save_state(path, {"cell": cell.as_json()}, arrays, CELL)

    def load_cell(self, seed: int, ood_set: str, method: str) -> tuple[Measurement, ScoredPair]:
        """Read a finished cell and its scores."""
        path = self.cell_path(seed, ood_set, method)
        return self._cell(path), ScoredPair(**load_state(path, CELL)[1])

    @staticmethod
    def _cell(path: Path) -> Measurement:
        header = load_header(path, CELL)
        try:
            return Measurement.from_json(header["cell"])
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} is not what this version writes ({error}); delete it.") from error

    def has_cell(self, seed: int, ood_set: str, method: str) -> bool:
        """Whether a cell is finished."""
        return self.cell_path(seed, ood_set, method).exists()

    def failures(self, seed: int) -> dict[str, str]:
        """Methods that could not take part with a network, and why."""
        return dict(read_document(self._failures).get(str(seed), {}))

    def save_failures(self, seed: int, failed: dict[str, str]) -> None:
        """Keep which methods could not take part with a network."""
        document = read_document(self._failures)
        others = {key: value for key, value in document.items() if key != str(seed)}
        changed = {**others, str(seed): failed} if failed else others
        if changed != document:
            write_document(self._failures, changed)

    def cells(self) -> list[Measurement]:
        """All finished cells of the plan's methods, in its order."""
        return [
            self._cell(self.cell_path(seed, ood_set, method))
            for seed in self.plan.seeds
            for ood_set in self.plan.ood
            for method in self.plan.methods
            if self.has_cell(seed, ood_set, method)
        ]

    def write_results(self) -> Path:
        """Write ``results.jsonl`` anew from the cells and the networks."""
        rows: list[dict[str, Any]] = []
        for seed in self.plan.seeds:
            if result := self.training(seed):
                row = {"seed": seed, "in_set": self.plan.in_set, "ood_set": None}
                row |= {name: result.get(name) for name in ("network", "width", "n_train")}
                row |= {"n_id": result.get("n_test"), "test_accuracy": result["test_accuracy"]}
                row |= {"seconds": sum(line["seconds"] for line in result["log"]), "version": result.get("version")}
                rows.append({**row, "commit": result.get("environment", {}).get("commit")})
        rows += [cell.as_json() for cell in self.cells()]
        with atomic_path(self.results) as temporary, open(temporary, "w") as file:
            file.writelines(write_json(row) + "\n" for row in rows)
        return self.results


class Results(NamedTuple):
    """The lines of a results file; accuracies by seed of the network."""

    cells: list[Measurement]
    accuracies: dict[int, float]


def read_results(path: Path) -> Results:
    """Read the cells and accuracies of a results file; one that is not there holds none."""
    found = Results([], {})
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, 1):
        try:
            row = read_json(line)
            if row["ood_set"] is None:
                found.accuracies[int(row["seed"])] = float(row["test_accuracy"])
            else:
                found.cells.append(Measurement.from_json(row))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{path} line {number} is not a line of results ({error!r}). Write the file again: `normscale bench` "
                "on the run's folder."
            ) from error
    return found


def file_form(method: str) -> str:
    """A method as its cells' files are called: it may have parameters in its name."""
    return re.sub(r"[^\w.+-]", "_", method)


def check_names(plan: Plan) -> None:
    """Refuse OoD sets and methods that have no place of their own in a folder."""
    for name, source in plan.ood.items():
        if name in OWN_SETS:
            raise InvalidInput(
                f"an OoD set cannot be called {name!r}, as a part of the in-distribution set is; name it: "
                f"OTHER={source}."
            )
        if "/" in name or "\\" in name:
            raise InvalidInput(f"the name of an OoD set is that of a folder and holds no slash; got {name!r}.")
    files: dict[str, str] = {}
    for method in plan.methods:
        if (other := files.setdefault(file_form(method), method)) != method:
            raise InvalidInput(f"the cells of {other!r} and {method!r} would be the same files; rename one of them.")


def array_names(path: Path) -> list[str]:
    """Names of the arrays in a file of outputs, without reading them."""
    try:
        with safe_open(path, framework="np") as file:
            return list(file.keys())
    except (SafetensorError, OSError) as error:
        raise FileFormatError(f"{path} is damaged ({error}); delete it and run the benchmark again.") from error
