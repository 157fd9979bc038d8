"""What a run found, in sentences; every one is read off its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from normscale.experiments.methods import title_of
from normscale.experiments.paper import ACCURACIES
from normscale.experiments.run_folder import RunFolder
from normscale.report.beside_paper import BesidePaper
from normscale.report.better_than import (
    ALL_SETS,
    BETTER,
    BETTER_NOT_ALL,
    SUBJECT,
    WORSE,
    WORSE_NOT_ALL,
    Comparison,
)
from normscale.report.scoreboard import Scoreboard
from normscale.report.tables import count

NOT_ONE_RANKING = "multi_threshold"
"""A mean over classes, which cannot be ranked with the others."""


def headline(
    run: RunFolder,
    board: Scoreboard,
    paper: BesidePaper,
    comparisons: Sequence[Comparison],
    accuracies: dict[int, float],
) -> list[str]:
    """Sentences for people; the first says who is best.

    Parameters
    ----------
    run, board, paper, comparisons, accuracies
        What the tables are made of.
    """
    rankings = [one for one in comparisons if one.rival != NOT_ONE_RANKING]
    sentences = [
        _ranking(run, board, "auroc"),
        _ranking(run, board, "fpr95_out"),
        _verdicts(rankings),
        _losses(rankings),
        _paper(paper),
        _gains(paper),
        _accuracy(run, accuracies),
        *_gaps(run, board),
    ]
    return [text for text in sentences if text]


def _ranking(run: RunFolder, board: Scoreboard, metric: str) -> str:
    """Who is best, by how much, and where norm-scaling stands."""
    falling = metric == "auroc"
    averages = {method: board.average(metric, method) for method in board.block.methods if method != NOT_ONE_RANKING}
    means = {method: average.mean for method, average in averages.items() if average is not None}
    order = sorted(means, key=lambda method: -means[method] if falling else means[method])
    if not order:
        return ""
    called = (
        "mean AUROC" if falling else "mean FPR95 (in-distribution inputs flagged when 95 % of OoD inputs are caught)"
    )
    n_sets = len(board.block.ood_sets)
    over = f"{n_sets} OoD sets" if n_sets > 1 else board.block.ood_sets[0]
    first = order[0]
    if len(order) == 1:
        return f"{title_of(first)} has a {called} of {means[first]:.3f} over {over}; no other method was measured."
    second = order[1]
    ahead = "ahead of" if falling else "below"
    start = f"For networks trained on {run.plan.in_set}, " if falling else ""
    extreme = "highest" if falling else "lowest"
    text = (
        f"{start}{title_of(first)} has the {extreme} {called} over {over}: {means[first]:.3f}, "
        f"{abs(means[first] - means[second]):.3f} {ahead} {title_of(second)} ({means[second]:.3f})"
    )
    if SUBJECT in means and first != SUBJECT:
        behind = abs(means[first] - means[SUBJECT])
        place = f"{_ordinal(order.index(SUBJECT) + 1)} of {len(order)}"
        text += f"; {title_of(SUBJECT)} is {place} with {means[SUBJECT]:.3f}, {behind:.3f} behind"
    return f"{text}."


def _verdicts(comparisons: Sequence[Comparison]) -> str:
    """How often norm-scaling is better, over the single sets."""
    verdicts = Counter(one.verdict for one in comparisons if one.ood_set != ALL_SETS)
    total = sum(verdicts.values())
    if not total:
        return ""
    better, worse = verdicts[BETTER], verdicts[WORSE]
    mixed = verdicts[BETTER_NOT_ALL] + verdicts[WORSE_NOT_ALL]
    text = (
        f"Set by set and rival by rival ({count(total, 'comparison')} on the same rows), {title_of(SUBJECT)} is better "
        f"in {better}, worse in {worse}, and in {total - better - worse - mixed} no difference is shown"
    )
    return f"{text}; in {mixed} the networks disagree." if mixed else f"{text}."


def _losses(comparisons: Sequence[Comparison]) -> str:
    """Where norm-scaling loses most, on each set."""
    worst: dict[str, Comparison] = {}
    for one in comparisons:
        known = worst.get(one.ood_set)
        if one.ood_set != ALL_SETS and one.verdict == WORSE and (known is None or one.difference < known.difference):
            worst[one.ood_set] = one
    if not worst:
        return f"On no OoD set is {title_of(SUBJECT)} shown to be worse than a rival." if comparisons else ""
    parts = [
        f"{name} (to {title_of(one.rival)}, {signed(one.difference)} [{signed(one.low)}, {signed(one.high)}])"
        for name, one in sorted(worst.items(), key=lambda item: item[1].difference)
    ]
    return f"{title_of(SUBJECT)} loses on {', '.join(parts)}."


def _paper(paper: BesidePaper) -> str:
    """How norm-scaling compares with the paper's, on the same sets."""
    side = paper.average("auroc", SUBJECT)
    if side is None:
        return ""
    return (
        f"On the {count(len(side.ood_sets), 'OoD set')} shared with the paper ({', '.join(side.ood_sets)}) "
        f"{title_of(SUBJECT)} has a mean AUROC of {side.ours:.3f} here and {side.paper:.3f} in the paper "
        f"({signed(side.difference)})."
    )


def _gains(paper: BesidePaper) -> str:
    """The gain over MSP, which depends less on the network than the numbers themselves."""
    subject, plain = paper.average("auroc", SUBJECT), paper.average("auroc", "msp")
    if subject is None or plain is None or subject.ood_sets != plain.ood_sets:
        return ""
    return (
        f"Its gain over MSP there is {signed(subject.ours - plain.ours)} AUROC here and "
        f"{signed(subject.paper - plain.paper)} in the paper."
    )


def _accuracy(run: RunFolder, accuracies: dict[int, float]) -> str:
    if not accuracies:
        return ""
    mean = fmean(accuracies.values())
    networks = "The network is" if len(accuracies) == 1 else f"The {len(accuracies)} networks are on average"
    text = f"{networks} right on {100 * mean:.2f} % of the test set"
    printed = ACCURACIES.get(run.plan.in_set)
    return f"{text} (paper: {100 * printed.mean:.2f} %)." if printed is not None else f"{text}."


def _gaps(run: RunFolder, board: Scoreboard) -> list[str]:
    """What is missing, and why."""
    missing = run.missing()
    gaps = [f"Missing: {name}. {_sentence(why)}" for name, why in missing.items() if name not in board.ood_sets]
    plan = run.plan
    wanted = [name for name in plan.ood if name in board.ood_sets or name not in missing]
    n_wanted = len(wanted) * len(plan.methods) * len(plan.seeds)
    if len(board.cells) < n_wanted:
        gaps.append(f"The run is not finished: {len(board.cells)} of {n_wanted} cells are there.")
    if len(board.seeds) == 1:
        gaps.append("There is one network, so nothing here says how much another training would change the numbers.")
    return gaps


def signed(number: float) -> str:
    """A difference for people.

    Examples
    --------
    >>> signed(-0.01234)
    '−0.012'
    """
    return f"{number:+.3f}".replace("-", "−")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _ordinal(number: int) -> str:
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    return names[number - 1] if number <= len(names) else f"number {number}"
