"""Copy what a benchmark came to into docs/results/: settings, results, comparisons, tables, report, the pictures of one
OoD set, and the trained networks.

    python tools/record_bench.py RUN docs/results/NAME [OOD_SET]

Outputs and cells stay where they are. With the networks copied into the folder of a new run, `normscale bench` with the
command in settings.json makes them again without training.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path


def main(run: Path, target: Path, ood_set: str | None) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in ("settings.json", "results.jsonl", "report.html"):
        shutil.copyfile(run / name, target / name)
    comparisons = "comparisons.json"  # written by `normscale report`; the report over several runs reads it
    if (run / comparisons).exists():
        shutil.copyfile(run / comparisons, target / comparisons)
    else:
        (target / comparisons).unlink(missing_ok=True)
    for folder, pattern in (("tables", "*.md"), ("figures", "*.svg")):
        shutil.rmtree(target / folder, ignore_errors=True)
        (target / folder).mkdir()
        for file in sorted((run / folder).glob(pattern)):
            if folder == "tables" or "_" not in file.stem or file.stem.endswith(f"_{ood_set}"):
                shutil.copyfile(file, target / folder / file.name)
    for network in sorted((run / "networks").glob("seed*")):
        into = target / "networks" / network.name
        into.mkdir(parents=True, exist_ok=True)
        for name in ("network.safetensors", "result.json", "perturbation.json"):
            shutil.copyfile(network / name, into / name)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) == 4 else None)
