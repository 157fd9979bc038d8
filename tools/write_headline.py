"""Write the README's headline table from the committed results of the CIFAR-10 benchmark, beside the paper's numbers.

    python tools/write_headline.py

`make docs` runs it, and a test compares it with the README.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

from normscale.experiments.methods import title_of
from normscale.experiments.paper import paper_value

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "docs" / "results" / "cifar10-small" / "results.jsonl"
BEGIN, END = "<!-- headline: make docs -->\n", "<!-- end of headline -->\n"
SHARED = {  # sets that the paper has too
    "svhn": "SVHN",
    "tinyimagenet": "Tiny-ImageNet",
    "textures": "Textures",
    "gaussian": "Gaussian",
    "uniform": "uniform",
}
OWN = {"cifar100": "CIFAR-100", "places-mini": "Places (mini)", "scenes": "Scenes"}


def table() -> str:
    """AUROC, means over the networks; the means over sets are of the sets both have."""
    values: dict[str, dict[str, list[float]]] = {}
    for line in RESULTS.read_text().splitlines():
        row = json.loads(line)
        if row["metric"] == "auroc":
            values.setdefault(row["method"], {}).setdefault(row["ood_set"], []).append(row["value"])
    means = {method: {name: fmean(found) for name, found in sets.items()} for method, sets in values.items()}
    shared = {method: fmean(sets[name] for name in SHARED) for method, sets in means.items()}
    paper = {method: paper_mean(method) for method in means}
    n_networks = max(len(found) for sets in values.values() for found in sets.values())
    heads = [
        f"AUROC, mean of {n_networks} networks",
        *OWN.values(),
        *SHARED.values(),
        "**mean of the last five**",
        "the paper's",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for method in sorted(means, key=lambda name: -shared[name]):
        numbers = [f"{means[method][name]:.3f}" for name in (*OWN, *SHARED)]
        printed = "" if paper[method] is None else f"{paper[method]:.3f}"
        lines.append(f"| {title_of(method)} | {' | '.join(numbers)} | **{shared[method]:.3f}** | {printed} |")
    return "\n".join(lines) + "\n"


def paper_mean(method: str) -> float | None:
    """The paper's mean over the same sets, if it has the method."""
    found = [paper_value("cifar10", name, method, "auroc") for name in SHARED]
    return None if None in found else fmean(value.mean for value in found if value is not None)


def with_table(readme: str) -> str:
    """The README with the table as it must be."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table() + END + after


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
