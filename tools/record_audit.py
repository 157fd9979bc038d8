"""Write an audit to docs/results/ with what made it: command, commit and versions.

    python tools/record_audit.py docs/results/NAME.json -- --train T --id I --ood O ...

Everything behind ``--`` goes to ``normscale audit``; paths are recorded by their last two parts only.
"""

from __future__ import annotations

import json
import platform
import sys
from datetime import date
from pathlib import Path

import numpy
from record_comparison import commit, output_of, short

import normscale


def main(target: str, arguments: list[str]) -> None:
    lines = output_of(sys.executable, "-m", "normscale", "audit", *arguments, "--format", "json").splitlines()
    findings = [json.loads(line) for line in lines]
    head = {
        "command": " ".join(["normscale", "audit", *map(short, arguments)]),
        "commit": commit(),
        "date": date.today().isoformat(),
        "version": normscale.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }
    parts = []
    for finding in findings:  # a line for each row of numbers, so that a change is one line in a diff
        details = ",\n    ".join(json.dumps(row, ensure_ascii=False) for row in finding.pop("details"))
        finding.pop("version")
        text = json.dumps(finding, ensure_ascii=False, indent=1).replace("\n", "\n  ").removesuffix("\n  }")
        parts.append(f'{text},\n   "details": [' + (f"\n    {details}\n   ]" if details else "]") + "\n  }")
    text = json.dumps(head, indent=1).removesuffix("\n}")
    Path(target).write_text(text + ',\n "findings": [\n  ' + ",\n  ".join(parts) + "\n ]\n}\n")


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[2] != "--":
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[3:])
