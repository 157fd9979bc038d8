"""Write a comparison to docs/results/ with what made it: command, commit, versions, sizes and seed in every row.

    python tools/record_comparison.py docs/results/NAME.json -- --train T --id I --ood O ...

Everything behind ``--`` goes to ``normscale eval``; paths are recorded by their last two parts only.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy

import normscale


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """Of this checkout, wherever a tool is started."""
    return output_of("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")


def short(argument: str) -> str:
    return "/".join(argument.split("/")[-2:])


def main(target: str, arguments: list[str]) -> None:
    rows = output_of(sys.executable, "-m", "normscale", "eval", *arguments, "--format", "json").splitlines()
    record = {
        "command": " ".join(["normscale", "eval", *map(short, arguments)]),
        "commit": commit(),
        "date": date.today().isoformat(),
        "version": normscale.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "positive": "OoD for *_out, in-distribution for *_in",
    }
    lines = json.dumps(record, indent=1).removesuffix("\n}")
    Path(target).write_text(lines + ',\n "rows": [\n  ' + ",\n  ".join(rows) + "\n ]\n}\n")


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[3:])
