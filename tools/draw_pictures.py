"""Draw docs/images/*.svg from the embedded sample, the tutorial and the records: python tools/draw_pictures.py"""

from __future__ import annotations

import csv
import doctest
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import normscale as ns

IMAGES = Path(__file__).parent.parent / "docs" / "images"
RESULTS = IMAGES.parent / "results"
STREAMS = ("50 % OoD", "10 % OoD", "2 % OoD", "Bursts", "One class 80 %")
COLOURS = ("#0072b2", "#e69f00", "#009e73")
GREY, OOD = "#777777", "#d55e00"
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "svg.fonttype": "path",
    "svg.hashsalt": "normscale",  # the same picture is the same file
}


def three_classes() -> dict[str, Figure]:
    """The logits of three classes over all training rows, before and after norm-scaling, and those of one OoD input.

    Beside each other in one picture, and as two, which a phone shows below each other.
    """
    both, axes = plt.subplots(1, 2, figsize=(9.5, 4.3), layout="constrained")
    _before_and_after(*axes)
    both.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    apart = [plt.subplots(figsize=(4.75, 4.5), layout="constrained") for _ in range(2)]
    _before_and_after(*(one for _, one in apart))
    for figure, one in apart:
        figure.legend(*one.get_legend_handles_labels(), loc="outside lower center", frameon=False)
    return {"three-classes": both, "three-classes-before": apart[0][0], "three-classes-after": apart[1][0]}


def _before_and_after(before: Axes, after: Axes) -> None:
    sample = ns.load_sample()
    classes = (1, 4, 7)
    detector = ns.NormScaling().fit(sample.train)
    strange = sample.ood["unseen_digits"]
    order = np.argsort(detector.score(strange))
    row = strange.logits[order[len(order) // 2]]
    _strips(before, sample.train.logits, row, classes)
    before.set_title("logits as they come: every class has its own scale")
    before.set_xlabel("logit")
    _strips(after, detector.scale(sample.train.logits), detector.scale(row[None])[0], classes)
    after.set_title("after norm-scaling: one scale for all")
    after.set_xlabel("deviations from that class's mean")


def _strips(axes: Axes, logits: np.ndarray, row: np.ndarray, classes: tuple[int, ...]) -> None:
    low, high = logits[:, classes].min(), logits[:, classes].max()
    bins = np.linspace(low, high, 61)
    for place, (cls, colour) in enumerate(zip(classes, COLOURS, strict=True)):
        floor = len(classes) - 1 - place
        counts = np.histogram(logits[:, cls], bins)[0]
        axes.fill_between(
            (bins[1:] + bins[:-1]) / 2,
            floor,
            floor + 0.75 * counts / counts.max(),
            step="mid",
            color=colour,
            alpha=0.45,
        )
        mean, std = logits[:, cls].mean(), logits[:, cls].std()
        first = place == 0
        axes.plot(
            [mean - std, mean + std],
            [floor - 0.06] * 2,
            color=colour,
            lw=3,
            label="mean ± one deviation" if first else None,
        )
        axes.plot(mean, floor - 0.06, "o", color=colour, ms=6)
        axes.plot(
            row[cls],
            floor - 0.06,
            "D",
            color=OOD,
            ms=7,
            mec="white",
            label="one input it was not trained for" if first else None,
        )
    axes.set_yticks(
        [len(classes) - 1 - place + 0.25 for place in range(len(classes))], [f"class {cls}" for cls in classes]
    )
    axes.set_ylim(-0.25, len(classes) - 0.15)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def two_groups() -> Figure:
    """Recent rows called one class: a convincing stream, and one where a second group hides under the name."""
    sample = ns.load_sample()
    strange = sample.ood["unseen_digits"]
    cls = int(np.bincount(strange.predicted).argmax())
    training = -ns.msp_score(sample.train.logits[sample.train.predicted == cls])
    median = float(np.median(training))
    known = -ns.msp_score(sample.test.logits[sample.test.predicted == cls])
    second = -ns.msp_score(strange.logits[strange.predicted == cls])[: len(known) - len(known) // 4]
    figure, axes = plt.subplots(1, 2, figsize=(9.5, 4.0), layout="constrained", sharex=True, sharey=True)
    low, high = min(training.min(), second.min()), max(training.max(), known.max())
    bins = np.linspace(low, high, 25)
    for panel, groups, title in (
        (axes[0], [known], "all convincing: the class is simply frequent"),
        (axes[1], [known[: len(known) // 4], second], "most unconvincing: a second group"),
    ):
        rows = np.concatenate(groups)
        share = float((rows > median).mean())
        panel.hist(groups, bins, stacked=True, color=[COLOURS[0], OOD][: len(groups)], alpha=0.75,
                   label=["rows of the class", "rows that are only called so"][: len(groups)])  # fmt: skip
        panel.axvline(median, color="black", lw=1.2, ls="--")
        panel.set_title(title)
        panel.set_xlabel("confidence, log-odds")
        panel.text(
            0.03, 0.96, f"{share:.0%} above the training median:\nthe ID share is about {min(1.0, share / 0.5):.0%}",
            transform=panel.transAxes, va="top", fontsize=10,
        )  # fmt: skip
    axes[0].set_ylabel(f'recent rows called "{cls}"')
    axes[0].set_ylim(0, axes[0].get_ylim()[1] * 1.3)
    axes[0].text(median, axes[0].get_ylim()[1] * 0.72, " median\n in training", fontsize=9, color=GREY)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def tutorial() -> dict[str, Figure]:
    """Scores of the tutorial's classifiers, from the variables that its own examples leave behind."""
    page = (IMAGES.parent / "tutorial.md").read_text()
    left: dict[str, Any] = {}
    found = {}
    for example in doctest.DocTestParser().get_examples(page):
        exec(compile(example.source, "tutorial.md", "single"), left)
    of_text = left["reader"].decision_function
    for name, detector, inputs, known, strange in (
        (
            "tutorial-digits",
            left["network_detector"],
            (left["test"], left["unseen"]),
            "digits 0 to 7",
            "digits 8 and 9",
        ),
        ("tutorial-text", left["detector"], map(of_text, (left["new"], left["other"])), "known topics", "computers"),
    ):
        inside, outside = map(detector.score, inputs)
        figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
        bins = np.linspace(*np.quantile(np.concatenate([inside, outside]), [0.0, 0.995]), 45)
        axes.hist(inside, bins, color=COLOURS[0], alpha=0.7, label=known)
        axes.hist(outside, bins, color=OOD, alpha=0.6, label=strange)
        axes.axvline(detector.threshold_.value, color="black", lw=1.2, ls="--", label="threshold")
        axes.set_xlabel("score: higher = more out-of-distribution")
        axes.set_ylabel("inputs")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        found[name] = figure
    return found


def share_of_ood() -> Figure:
    """Mean AUROC of the ResNet-20 by the share of OoD rows in a shuffled stream, from its audit."""
    claims = json.loads((RESULTS / "audit-resnet20.json").read_text())["claims"]
    rows = next(one["details"] for one in claims if one["point"] == 2 and "n_id" in one["details"][0])
    shares = sorted({row["share"] for row in rows})
    figure, axes = plt.subplots(figsize=(7.0, 3.6), layout="constrained")
    looks = {"running": (OOD, "-"), "frozen": (COLOURS[0], "-"), "energy": (GREY, "--")}
    for way, (colour, line) in looks.items():
        means = [fmean(row[way] for row in rows if row["share"] == share) for share in shares]
        axes.plot(
            shares, means, line, marker="o", color=colour, label={"energy": "Energy"}.get(way, f"{way} norm-scaling")
        )
    axes.set_xscale("log")
    axes.set_xticks(shares, [f"{100 * share:g} %" for share in shares])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("share of OoD rows in the stream")
    axes.set_ylabel("mean AUROC over eight OoD sets")
    axes.legend(frameon=False)
    return figure


def five_streams() -> Figure:
    """Mean AUROC over the networks of the leaderboard in its five kinds of streams."""
    tables = [
        list(csv.DictReader(path.read_text().splitlines()))
        for path in sorted((RESULTS / "leaderboard").glob("network_*"))
    ]
    shown = {"Norm-Scaling": OOD, "OODD": COLOURS[1], "Energy": GREY, "Default": COLOURS[0]}
    figure, axes = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
    for number, (name, colour) in enumerate(shown.items()):
        every = [row for table in tables for row in table if row["Method"] == name]
        found = [row for row in every if all(row[f"{stream} ↑"] for stream in STREAMS)]
        means = [fmean(float(row[f"{stream} ↑"]) for row in found) for stream in STREAMS]
        axes.plot(range(len(STREAMS)), means, "Dsvo"[number], color=colour, label=name, markersize=8)
    axes.set_xticks(range(len(STREAMS)), STREAMS)
    axes.set_ylabel("mean AUROC over the networks")
    axes.grid(axis="y", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def main(folder: Path = IMAGES) -> None:
    with mpl.rc_context(STYLE):
        recorded = {"share-of-ood": share_of_ood(), "five-streams": five_streams()}
        for name, figure in {**three_classes(), "two-groups": two_groups(), **tutorial(), **recorded}.items():
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)


if __name__ == "__main__":
    main()
