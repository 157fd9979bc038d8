"""Write a stress grid to docs/results/ with what made it: command, commit, versions; means over the OoD sets only.

    python tools/record_stress.py docs/results/NAME.json -- --train T --id I --ood O ...

Everything behind ``--`` goes to ``normscale stress``; paths are recorded by their last two parts only. The map is drawn
beside it, as NAME.png.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from record_comparison import short
from record_robust import rounded

from normscale._provenance import environment
from normscale.experiments.recommendation import recommend
from normscale.experiments.stress_result import load_stress
from normscale.experiments.stress_summary import summarise
from normscale.paper.stress_presets import GAIN, STATICS


def main(target: Path, arguments: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "normscale", "stress", *arguments]
        subprocess.run([*command, "-o", rows, "--picture", target.with_suffix(".png")], check=True, stdout=sys.stderr)
        result = load_stress(rows)
    drawn = {row.stream.balance: row.classes for row in result.rows}
    summaries = [
        one._asdict() | {"worst_kind": one.worst_kind._asdict()} for one in summarise(result, STATICS, gain=GAIN)
    ]
    record = {
        "command": " ".join(["normscale", "stress", *map(short, arguments)]),
        "date": date.today().isoformat(),
        "made_with": environment(),
        "positive": "OoD",
        "settings": result.settings,
        "drawn_classes": drawn,
        "advice": recommend(result),
        "summary": [{k: rounded(v) for k, v in one.items()} for one in summaries],
    }
    cells = [
        json.dumps(
            {**cell._asdict(), **{name: [round(number, 4) for number in found] for name, found in methods.items()}}
        )
        for cell, methods in result.means().items()
    ]
    head = json.dumps(record, indent=1).removesuffix("\n}")
    note = '"cells: [AUROC, FPR95] by method, averaged over the OoD sets"'
    target.write_text(f'{head},\n "note": {note},\n "cells": [\n  ' + ",\n  ".join(cells) + "\n ]\n}\n")


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[3:])
