"""The table at the head of the README: a benchmark's AUROC, beside the paper's on the sets that both have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from normscale.encoding.json_text import read_json
from normscale.experiments.methods import title_of
from normscale.paper.published import paper_value

IN_SET = "cifar10"
SHARED = {  # sets that the paper has too
    "svhn": "SVHN",
    "tinyimagenet": "Tiny-ImageNet",
    "textures": "Textures",
    "gaussian": "Gaussian",
    "uniform": "uniform",
}
OWN = {"cifar100": "CIFAR-100", "places-mini": "Places (mini)", "scenes": "Scenes"}


def headline_table(results: str | os.PathLike[str]) -> str:
    """AUROC by method and OoD set as Markdown, means over the networks; the last means are of the sets both have.

    Parameters
    ----------
    results : path
        ``results.jsonl`` of a benchmark.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for line in Path(results).read_text(encoding="utf-8").splitlines():
        row = read_json(line)
        if row["metric"] == "auroc":
            values.setdefault(row["method"], {}).setdefault(row["ood_set"], []).append(row["value"])
    means = {method: {name: fmean(found) for name, found in sets.items()} for method, sets in values.items()}
    shared = {method: fmean(sets[name] for name in SHARED) for method, sets in means.items()}
    n_networks = max(len(found) for sets in values.values() for found in sets.values())
    heads = [
        f"AUROC, mean of {n_networks} networks",
        *OWN.values(),
        *SHARED.values(),
        "**mean of the last five**",
        "the paper's",
    ]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    lines += [_line(method, means[method], shared[method]) for method in sorted(means, key=lambda one: -shared[one])]
    return "\n".join(lines) + "\n"


def _line(method: str, means: Mapping[str, float], shared: float) -> str:
    numbers = [f"{means[name]:.3f}" for name in (*OWN, *SHARED)]
    paper = paper_mean(method)
    printed = "" if paper is None else f"{paper:.3f}"
    return f"| {title_of(method)} | {' | '.join(numbers)} | **{shared:.3f}** | {printed} |"


def paper_mean(method: str) -> float | None:
    """The paper's mean over the shared sets, if it has the method.

    Examples
    --------
    >>> round(paper_mean("norm_scaling"), 3), paper_mean("max_logit")
    (0.946, None)
    """
    found = [paper_value(IN_SET, name, method, "auroc") for name in SHARED]
    return None if None in found else fmean(value.mean for value in found if value is not None)
