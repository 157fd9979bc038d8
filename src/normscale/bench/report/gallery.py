"""Which figures a report has: the ranking of every run and, of a single one, per OoD set, calibration and training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure

from normscale._validate import IntArray, Rows
from normscale.bench.experiments.alarms import SETTLED
from normscale.bench.experiments.measurement import ScoredPair, score_shuffled
from normscale.bench.experiments.methods import title_of
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.report import tables
from normscale.bench.report.figures.curves import (
    BINS,
    TEMPERATURES,
    draw_ece,
    draw_reliability,
    draw_roc,
    draw_training,
)
from normscale.bench.report.figures.dots import Ranked, draw_alarms, draw_ranking
from normscale.bench.report.figures.histograms import draw_confidences, draw_densities, draw_scores
from normscale.bench.report.figures.stress_map import draw_stress
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.scoreboard import Scoreboard
from normscale.metrics.temperature import EceCurve, ece_curve
from normscale.moments import RunningMoments
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scaling import norm_scale, norm_scale_stream
from normscale.scores import msp_score

_SHOWN_AT = {"raw": (0.5, 1.0, 2.0, 4.0), "norm-scaled": (0.25, 0.5, 1.0, 2.0)}
"""Temperatures of reliability diagrams by kind of logits."""
_MOST_METHODS = 12
"""In the figures of one OoD set: the best of them by AUROC."""
_MOST_RANKED = 14
"""Methods of one setting in the opening picture: the best of them."""


class Drawn(NamedTuple):
    """A figure, what to call its file, what it shows, and where it belongs."""

    name: str
    caption: str
    figure: Figure
    group: str
    """``ranking``, ``calibration``, ``training``, ``stress``, ``alarms``, or ``ood:`` and an OoD set."""


def draw_all(runs: Sequence[ReportedRun], stress: StressResult | None, classes: Sequence[int]) -> Iterator[Drawn]:
    """Draw every figure for which the numbers are there; networks are shown by the first finished seed.

    ``classes`` are those of the densities of logits.
    """
    for one in runs:
        yield from _ranking(one, "ranking" if len(runs) == 1 else f"ranking_{tables.slug(one.title)}")
    run, board = runs[0].run, Scoreboard.of(runs[0].run)  # with its own seeds; a recorded run may have no scores
    if len(runs) > 1:
        networks = {one.title: one.networks[one.board.seeds[0]] for one in runs}
        curves = {title: found for title, (run, seed) in networks.items() if (found := _ece_curves(run, seed))}
        if len(curves) > 1:
            caption = (
                f"Expected calibration error against temperature ({BINS} bins) on every in-distribution set, one "
                "network of each. Dashed: raw logits (temperature scaling); solid: norm-scaled logits."
            )
            figure = draw_ece(curves, "Calibration error against temperature")
            yield Drawn("ece", caption, figure, "calibration")
    elif board.cells:
        names: dict[str, str] = {}
        for number, name in enumerate(board.ood_sets):
            short = tables.slug(name).replace("_", "-")
            names[name] = short if short and short not in names.values() else f"{short or 'set'}-{number}"
            yield from _of_set(run, board, name, names[name], classes)
        yield from _calibration(run, board.seeds[0])
        logs = {seed: log for seed in run.plan.seeds if (log := run.training(seed).get("log"))}
        if logs:
            caption = f"Accuracy on the validation part after every epoch of training on {run.plan.in_set}."
            yield Drawn("training", caption, draw_training(logs, run.plan.in_set), "training")
        if stress is not None and stress.means():
            caption = (
                "Left, what running statistics gain (blue) or lose (red) in AUROC against frozen ones; right, what "
                "AUROC they reach. A row for every class balance and order of the stream, a column for every share of "
                "OoD rows."
            )
            yield Drawn("stress_map", caption, draw_stress(stress), "stress")
        if stress is not None and (alarms := stress.alarms_of_best()):
            title = stress.titles[alarms[0].method]
            caption = (
                f"{title}: share of in-distribution rows flagged, frozen and streamed, when nothing is OoD. First the "
                f"test set in other orders and class balances, then changed inputs; the first {SETTLED} rows of a long "
                "stream do not count."
            )
            yield Drawn("alarms", caption, draw_alarms(alarms, title), "alarms")


def _ranking(one: ReportedRun, name: str) -> Iterator[Drawn]:
    """The opening picture of a run: static and streamed methods, each best first."""
    board, block, ends = one.board, one.board.block, {} if one.resampled is None else one.resampled.intervals
    groups: dict[str, list[Ranked]] = {}
    for method in block.methods:
        means = [fmean(board.value("auroc", method, name, seed) for name in block.ood_sets) for seed in block.seeds]
        ranked = Ranked(title_of(method), fmean(means), means, ends.get(method))
        groups.setdefault(board.settings[method], []).append(ranked)
    ordered = {
        tables.SETTINGS[setting]: sorted(groups[setting], key=lambda ranked: -ranked.mean)
        for setting in ("frozen", "stream")
        if setting in groups
    }
    n_left_out = sum(len(group[_MOST_RANKED:]) for group in ordered.values())
    caption = f"{one.title}: mean AUROC over {tables.count(len(block.ood_sets), 'OoD set')}."
    caption += " Bar: 95 % interval from resampled rows." if ends else ""
    caption += f" Tick: one of {len(block.seeds)} networks." if len(block.seeds) > 1 else ""
    caption += f" {n_left_out} more methods are in the table." if n_left_out else ""
    if ordered:
        best = {heading: group[:_MOST_RANKED] for heading, group in ordered.items()}
        yield Drawn(name, caption, draw_ranking(best, one.title), "ranking")


def _network(run: RunFolder, seed: int) -> str:
    """Which network a picture is of, as the end of its caption; nothing where the outputs are somebody's own."""
    return f"; network of seed {seed}" if run.plan.network else ""


def _of_set(run: RunFolder, board: Scoreboard, name: str, slug: str, classes: Sequence[int]) -> Iterator[Drawn]:
    seed = next(seed for seed in board.seeds if any((one, name, seed) in board.cells for one in board.methods))
    there = [method for method in board.methods if (method, name, seed) in board.cells]
    best = sorted(there, key=lambda method: -board.cells[method, name, seed].auroc)[:_MOST_METHODS]
    loaded = {method: run.load_cell(seed, name, method)[1] for method in there if method in best}
    pairs = {method: pair for method, pair in loaded.items() if pair.id_predicted is None}
    group, network = f"ood:{name}", _network(run, seed)
    whose = "every method" if len(best) == len(there) else f"the {len(pairs)} best of {len(there)} methods by AUROC"
    if pairs:
        caption = f"ROC curves of {whose} on {name}{network}."
        yield Drawn(f"roc_{slug}", caption, draw_roc(pairs, name, board.subject), group)
        caption = f"Scores of {whose} on {name}, each on a scale of its own{network}."
        yield Drawn(f"scores_{slug}", caption, draw_scores(pairs, name), group)
    test, ood = _outputs(run, seed, "test"), _outputs(run, seed, name)
    if test is None or ood is None:
        return
    which = "these classes" if classes else "three classes (those with the lowest, middle and highest mean)"
    caption = f"Largest logit of the inputs predicted as one of {which}, and of {name}: density (line) and histogram "
    caption += f"(steps){network}."
    yield Drawn(f"density_{slug}", caption, draw_densities(test, ood, name, classes), group)
    panels = {"raw logits": ScoredPair(msp_score(test.logits), msp_score(ood.logits))}
    caption = f"Softmax confidence on {name}{network}."
    if (train := _outputs(run, seed, "train")) is not None:
        first = RunningMoments(train.n_classes).update(train.logits).reweighted(1.0)  # as one row, like the paper
        panels["norm-scaled logits"] = score_shuffled(
            test.logits, ood.logits, lambda rows: msp_score(norm_scale_stream(rows, first)), seed
        )
        caption = f"Softmax confidence on {name} without and with norm-scaling, which runs along the stream{network}."
    yield Drawn(f"confidence_{slug}", caption, draw_confidences(panels, name), group)


def _outputs(run: RunFolder, seed: int, name: str) -> ModelOutputs | None:
    return run.outputs(seed, name).only(LOGITS) if run.has_outputs(seed, name, [LOGITS]) else None


def _labelled(run: RunFolder, seed: int) -> tuple[dict[str, Rows], IntArray] | None:
    """Logits of the test set by kind, raw and norm-scaled, and its labels; None without either."""
    test = _outputs(run, seed, "test")
    if test is None or test.labels is None or not (test.labels >= 0).any():
        return None
    test = test[test.labels >= 0]
    kinds: dict[str, Rows] = {"raw": test.logits}
    if (train := _outputs(run, seed, "train")) is not None:
        kinds["norm-scaled"] = norm_scale(test.logits, RunningMoments(train.n_classes).update(train.logits))
    assert test.labels is not None
    return kinds, test.labels


def _ece_curves(run: RunFolder, seed: int) -> dict[str, EceCurve]:
    """Calibration error against temperature by kind of logits; empty without labels."""
    labelled = _labelled(run, seed)
    kinds, labels = ({}, ()) if labelled is None else labelled
    titles = {"raw": "temperature scaling", "norm-scaled": "norm-scaling"}
    return {titles[kind]: ece_curve(logits, labels, TEMPERATURES, BINS) for kind, logits in kinds.items()}


def _calibration(run: RunFolder, seed: int) -> Iterator[Drawn]:
    labelled, curves, network = _labelled(run, seed), _ece_curves(run, seed), _network(run, seed)
    if labelled is None:
        return
    caption = f"Expected calibration error against temperature ({BINS} bins){network}."
    title = f"Calibration error against temperature, {run.plan.in_set}"
    yield Drawn("ece", caption, draw_ece({run.plan.in_set: curves}, title), "calibration")
    for kind, logits in labelled[0].items():
        title = f"{kind.capitalize()} logits"
        caption = f"{title}: accuracy by softmax confidence at four temperatures; dashed: perfect{network}."
        figure = draw_reliability(logits, labelled[1], _SHOWN_AT[kind], title)
        yield Drawn("reliability" if kind == "raw" else "reliability_scaled", caption, figure, "calibration")
