"""Record a result in docs/results/ with what made it: command, commit, date and versions.

    python tools/record.py KIND ...

| kind | arguments | what is recorded |
|---|---|---|
| audit | TARGET.json -- ARGUMENTS of `normscale audit` | the findings, and the numbers behind them |
| eval | TARGET.json -- ARGUMENTS of `normscale eval` | the rows of a comparison |
| stress | TARGET.json -- ARGUMENTS of `normscale stress` | means over OoD sets, verdicts; the map as TARGET.png |
| bench | RUN TARGET | settings, results, comparisons and networks of a run of `normscale bench` |
| choice, robust, streams, layer_weights, leaderboard, engines | --help says which | see tools/recorders/ |

Paths are recorded by their last two parts only. `make docs` writes the tables of the pages anew from the records.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recorders.provenance import head, output_of, rounded

from normscale.bench.experiments.stress_result import load_stress, summarise
from normscale.bench.paper.stress_presets import STATICS

OTHERS = ("choice", "robust", "streams", "layer_weights", "leaderboard", "engines")


def written(target: Path, record: dict[str, Any], name: str, rows: list[Any]) -> None:
    """Write a record with a line for each row, so that a change is one line in a diff."""
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    begin = json.dumps(record, indent=1, ensure_ascii=False).removesuffix("\n}")
    target.write_text(f'{begin},\n "{name}": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


def of_command(command: str, name: str) -> Callable[[Path, list[str]], None]:
    """A recorder of what a command prints as JSON, a row a line."""

    def record(target: Path, arguments: list[str]) -> None:
        printed = output_of(sys.executable, "-m", "normscale", command, *arguments, "--format", "json")
        rows = [json.loads(line) for line in printed.splitlines()]
        written(target, head(["normscale", command, *arguments]), name, rows)

    return record


def stress(target: Path, arguments: list[str]) -> None:
    """Run a stress grid; keep means and verdicts, and draw the map."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "normscale", "stress", *arguments]
        subprocess.run([*command, "-o", file, "--picture", target.with_suffix(".png")], check=True, stdout=sys.stderr)
        result = load_stress(file)
    record = {
        **head(["normscale", "stress", *arguments]),
        "positive": "OoD",
        "settings": result.settings,
        "drawn_classes": {row.stream.balance: row.classes for row in result.rows if row.stream is not None},
        "summary": [
            rounded(one._asdict() | {"worst_kind": one.worst_kind._asdict()}) for one in summarise(result, STATICS)
        ],
        "note": "cells: [AUROC, FPR95] by method, averaged over the OoD sets",
    }
    means = result.means()
    written(target, record, "cells", [{**kind._asdict(), **rounded(dict(found))} for kind, found in means.items()])


def bench(run: Path, target: Path) -> None:
    """Copy what a benchmark came to; with its networks in the folder of a new run, its command trains nothing."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("settings.json", "results.jsonl", "further.jsonl", "failures.json", "comparisons.json"):
        (target / name).unlink(missing_ok=True)
        if (run / name).exists():
            shutil.copyfile(run / name, target / name)
    for network in sorted((run / "networks").glob("seed*")):
        into = target / "networks" / network.name
        into.mkdir(parents=True, exist_ok=True)
        for name in ("network.safetensors", "result.json", "perturbation.json"):
            shutil.copyfile(network / name, into / name)


COMMANDS = {"audit": of_command("audit", "claims"), "eval": of_command("eval", "rows"), "stress": stress}


def main(arguments: list[str]) -> None:
    """Find the recorder and hand it its arguments."""
    kind, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if kind in COMMANDS and len(rest) > 2 and rest[1] == "--":
        COMMANDS[kind](Path(rest[0]), rest[2:])
    elif kind == "bench" and len(rest) == 2:
        bench(Path(rest[0]), Path(rest[1]))
    elif kind in OTHERS:
        sys.argv = [f"tools/record.py {kind}", *rest]
        importlib.import_module(f"recorders.{kind}").main()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
