"""The tables of the documentation: one benchmark's AUROC, and that of several, beside the paper's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from normscale.experiments.methods import title_of
from normscale.experiments.results_file import read_results
from normscale.paper.joint_additions import joint_additions
from normscale.paper.published import paper_value
from normscale.report.joint_report import read_joint
from normscale.report.joint_tables import first_of_each_set, methods_of
from normscale.report.scoreboard import Average
from normscale.report.tables import count

IN_SET = "cifar10"
SHARED = {  # sets that the paper has too
    "svhn": "SVHN",
    "tinyimagenet": "Tiny-ImageNet",
    "textures": "Textures",
    "gaussian": "Gaussian",
    "uniform": "uniform",
}
OWN = {"cifar100": "CIFAR-100", "places-mini": "Places (mini)", "scenes": "Scenes"}


_NOTE = (
    "Multi-Threshold is a ranking for each predicted class, averaged. Nothing was tuned on OoD inputs: ODIN's step is "
    "chosen on validation inputs, and the layers of Mahalanobis count alike."
)


def headline_table(results: str | os.PathLike[str]) -> str:
    """AUROC by method and OoD set as Markdown, means over the networks; the last means are of the sets both have.

    Parameters
    ----------
    results : path
        ``results.jsonl`` of a benchmark.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for cell in read_results(Path(results)).cells:
        values.setdefault(cell.method, {}).setdefault(cell.ood_set, []).append(cell.auroc)
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


def joint_headline(folders: Sequence[str | os.PathLike[str]]) -> str:
    """AUROC by method and in-distribution set as Markdown, each beside the paper's over the same OoD sets.

    Parameters
    ----------
    folders : paths
        Of runs on the paper's in-distribution sets, or of what was kept of them.
    """
    joint = read_joint(folders, joint_additions())
    runs = first_of_each_set(joint.runs)
    heads = ["mean AUROC over the OoD sets shared with the paper"]
    for one in runs:
        networks = count(len(one.board.block.seeds), "network")
        printed = one.beside.reference.accuracy
        heads.append(f"{one.title}: {networks}, {100 * fmean(one.accuracies.values()):.1f} % right")
        heads.append("the paper's" if printed is None else f"the paper's: {100 * printed.mean:.1f} % right")
    heads += ["**mean**", "the paper's"]
    lines: list[tuple[float, str]] = []
    for method in methods_of(runs):
        ours = [_number(one.average("auroc", method)) for one in runs]
        theirs = [one.published("auroc", method) for one in runs]
        cells = [_three(number) for pair in zip(ours, theirs, strict=True) for number in pair]
        mean = _mean_of(ours)
        cells += [f"**{_three(mean)}**" if mean is not None else "", _three(_mean_of(theirs))]
        lines.append((mean or 0.0, f"| {title_of(method)} | {' | '.join(cells)} |"))
    table = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    table += [line for _, line in sorted(lines, key=lambda one: -one[0])]
    sets = [f"{one.title} {', '.join(one.shared)}" for one in runs]
    return "\n".join(table) + f"\n\nOoD sets: {'; '.join(sets)}. {_NOTE}\n"


def joint_findings(folders: Sequence[str | os.PathLike[str]]) -> str:
    """What runs on the paper's sets show of its claims, as a list in Markdown."""
    return "".join(f"* {text}\n" for text in read_joint(folders, joint_additions()).sentences)


def _number(average: Average | None) -> float | None:
    return None if average is None else average.mean


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _three(number: float | None) -> str:
    return "" if number is None else f"{number:.3f}"
