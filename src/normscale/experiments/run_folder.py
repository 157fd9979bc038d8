"""The folder of a benchmark: what was asked for, the networks' outputs, and one file for every finished cell.

::

    settings.json                            the plan, and what made it
    networks/seed0/                          a run of ``normscale train``: network, log, result.json
    networks/seed0/outputs/NAME.safetensors  logits and features: train, validation, test, and every OoD set
    networks/seed0/odin/NAME.safetensors     logits of perturbed images, and choice.json
    networks/seed0/missing.json              OoD sets that could not be had, and why
    cells/seed0/OOD/METHOD.safetensors       scores of both sides and their metrics: a finished cell
    results.jsonl                            all cells, one line per metric
    stress.json                              the stress grid on the first network's outputs

A cell is a method on an OoD set with one network. Its file appears whole or not at all; deleted, it is made again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from normscale._atomic import atomic_path
from normscale._provenance import environment
from normscale.encoding.json_text import read_json, write_json
from normscale.errors import FileFormatError, InvalidInput
from normscale.experiments.presets import Plan
from normscale.experiments.protocol import ScoredPair
from normscale.outputs import ModelOutputs
from normscale.state import Kind, load_header, load_state, save_state
from normscale.tables import read_table

FORMAT = 1
CELL = Kind(
    "normscale.cell",
    "cell of a benchmark",
    "Run `normscale bench` on the folder.",
    "delete it and run `normscale bench` again: only this cell is made anew.",
)


class Cell(NamedTuple):
    """A method on an OoD set with one network: what came out, and of what."""

    seed: int
    in_set: str
    ood_set: str
    method: str
    setting: str
    parameters: dict[str, Any]
    metrics: dict[str, float]
    """auroc, aupr_out, aupr_in, fpr95_out, fpr95_in; ``*_out``: OoD is positive, ``*_in``: in-distribution is."""
    n_id: int
    n_ood: int
    seconds: float
    version: str
    commit: str | None

    def rows(self) -> Iterator[dict[str, Any]]:
        """One record per metric, as in ``results.jsonl``."""
        values = self._asdict()
        for metric, value in values.pop("metrics").items():
            yield {**values, "metric": metric, "value": value}


class RunFolder:
    """A benchmark on disk, opened for reading or going on.

    Examples
    --------
    >>> import tempfile
    >>> from normscale.experiments.presets import find_preset
    >>> run = RunFolder.create(tempfile.mkdtemp(), find_preset("digits"))
    >>> RunFolder.open(run.path).plan.data
    'digits'
    >>> run.cells()
    []
    """

    def __init__(self, path: Path, plan: Plan, made_by: dict[str, Any]) -> None:
        """Use :meth:`create` or :meth:`open`."""
        self.path, self.plan, self.made_by = path, plan, made_by

    @classmethod
    def create(cls, path: str | os.PathLike[str], plan: Plan, command: str = "") -> RunFolder:
        """Open the run that is there, or begin one; more seeds, OoD sets or methods may be asked of an old one.

        A run of another in-distribution set or other networks is refused.
        """
        folder = Path(path)
        made_by = {"command": command, **environment()}
        if (folder / "settings.json").exists():
            run = cls.open(folder)
            fixed = ("data", "network", "width", "recipe", "epochs")
            changed = [name for name in fixed if getattr(run.plan, name) != getattr(plan, name)]
            if changed:
                was = ", ".join(f"{name} {getattr(run.plan, name)!r}" for name in changed)
                raise InvalidInput(
                    f"{folder} holds a run with {was}, which is not what was asked for. Use another folder, "
                    "or delete this one to start anew."
                )
            seeds = tuple(dict.fromkeys((*run.plan.seeds, *plan.seeds)))
            methods = tuple(dict.fromkeys((*run.plan.methods, *plan.methods)))
            plan = run.plan._replace(seeds=seeds, methods=methods, ood={**run.plan.ood, **plan.ood})
        folder.mkdir(parents=True, exist_ok=True)
        document = {"format": FORMAT, "plan": plan.to_dict(), "made_by": made_by}
        with atomic_path(folder / "settings.json") as temporary:
            Path(temporary).write_text(write_json(document, indent=1) + "\n")
        return cls(folder, plan, made_by)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunFolder:
        """Open a run that exists."""
        file = Path(path) / "settings.json"
        try:
            document = read_json(file.read_text())
        except FileNotFoundError:
            raise FileFormatError(
                f"{os.fspath(path)!r} is not the folder of a benchmark (it has no settings.json). "
                "Make one with `normscale bench -o FOLDER`."
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

    # -- networks ----------------------------------------------------------------------------------------------

    def network(self, seed: int) -> Path:
        """The folder of a seed's network."""
        return self.path / "networks" / f"seed{seed}"

    def outputs_path(self, seed: int, name: str, *, perturbed: bool = False) -> Path:
        """Where a network's outputs on a set are: ``train``, ``validation``, ``test``, or the name of an OoD set."""
        return self.network(seed) / ("odin" if perturbed else "outputs") / f"{name}.safetensors"

    def outputs(self, seed: int, name: str, *, perturbed: bool = False) -> ModelOutputs:
        """Read a network's outputs on a set."""
        return read_table(self.outputs_path(seed, name, perturbed=perturbed))

    def training(self, seed: int) -> dict[str, Any]:
        """``result.json`` of a network: its test accuracy, its log, its settings; empty while it is not there."""
        return _read_json(self.network(seed) / "result.json")

    def missing(self) -> dict[str, str]:
        """OoD sets that could not be had, and why."""
        return {name: why for seed in self.plan.seeds for name, why in _missing_of(self.network(seed)).items()}

    # -- cells -------------------------------------------------------------------------------------------------

    def cell_path(self, seed: int, ood_set: str, method: str) -> Path:
        """Where a cell is, or will be."""
        return self.path / "cells" / f"seed{seed}" / ood_set / f"{method}.safetensors"

    def save_cell(self, cell: Cell, scores: ScoredPair) -> None:
        """Keep a finished cell."""
        path = self.cell_path(cell.seed, cell.ood_set, cell.method)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: array for name, array in scores._asdict().items() if array is not None}
        save_state(path, {"cell": cell._asdict()}, arrays, CELL)

    def load_cell(self, seed: int, ood_set: str, method: str) -> tuple[Cell, ScoredPair]:
        """Read a finished cell and its scores."""
        path = self.cell_path(seed, ood_set, method)
        cell = self._cell(path)
        try:
            return cell, ScoredPair(**load_state(path, CELL)[1])
        except TypeError as error:
            raise _foreign_cell(path, error) from error

    @staticmethod
    def _cell(path: Path) -> Cell:
        """What a cell came to, without its scores."""
        header = load_header(path, CELL)
        try:
            return Cell(**header["cell"])
        except (KeyError, TypeError) as error:
            raise _foreign_cell(path, error) from error

    def has_cell(self, seed: int, ood_set: str, method: str) -> bool:
        """Whether a cell is finished."""
        return self.cell_path(seed, ood_set, method).exists()

    def cells(self) -> list[Cell]:
        """All finished cells of the plan, in its order."""
        return [
            self._cell(self.cell_path(seed, ood_set, method))
            for seed in self.plan.seeds
            for ood_set in self.plan.ood
            for method in self.plan.methods
            if self.has_cell(seed, ood_set, method)
        ]

    def write_results(self) -> Path:
        """Write ``results.jsonl`` anew from the cells and the networks."""
        path = self.path / "results.jsonl"
        with atomic_path(path) as temporary, open(temporary, "w") as file:
            for seed in self.plan.seeds:
                for row in self._accuracy_rows(seed):
                    file.write(write_json(row) + "\n")
            for cell in self.cells():
                for row in cell.rows():
                    file.write(write_json(row) + "\n")
        return path

    def _accuracy_rows(self, seed: int) -> Iterator[dict[str, Any]]:
        result = self.training(seed)
        if result:
            yield {
                "seed": seed,
                "in_set": self.plan.in_set,
                "ood_set": None,
                "method": "classifier",
                "parameters": {name: result.get(name) for name in ("network", "width", "n_train")},
                "metric": "test_accuracy",
                "value": result["test_accuracy"],
                "n_id": result.get("n_test"),
                "seconds": sum(line["seconds"] for line in result["log"]),
                "version": result.get("version"),
                "commit": result.get("environment", {}).get("commit"),
            }


def _foreign_cell(path: Path, error: Exception) -> FileFormatError:
    return FileFormatError(f"{path} is not what this version writes ({error}); delete it.")


def write_missing(network: Path, missing: dict[str, str]) -> None:
    """Keep which OoD sets a network could not be run on."""
    with atomic_path(network / "missing.json") as temporary:
        Path(temporary).write_text(write_json(missing, indent=1) + "\n")


def _missing_of(network: Path) -> dict[str, str]:
    return {str(name): str(why) for name, why in _read_json(network / "missing.json").items()}


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = read_json(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise FileFormatError(f"{path} is damaged ({error}); delete it and run the benchmark again.") from error
    return document if isinstance(document, dict) else {}
