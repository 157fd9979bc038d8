"""What a run found, in sentences; every one is read off its numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from normscale.experiments.methods import title_of
from normscale.experiments.run_folder import RunFolder
from normscale.report.better_than import (
    ALL_SETS,
    BETTER,
    BETTER_NOT_ALL,
    WORSE,
    WORSE_NOT_ALL,
    Comparison,
)
from normscale.report.gaps import failure_notes, n_to_come, sentence
from normscale.report.reference import BesideReference
from normscale.report.scoreboard import Scoreboard
from normscale.report.tables import count


def headline(
    run: RunFolder,
    board: Scoreboard,
    beside: BesideReference,
    comparisons: Sequence[Comparison],
    accuracies: dict[int, float],
    further: Sequence[str] = (),
) -> list[str]:
    """Sentences for people; the first says who is best.

    Parameters
    ----------
    run, board, beside, comparisons, accuracies
        What the tables are made of.
    further : sequence of str
        Sentences that follow the comparison with the reference.
    """
    rankings = [one for one in comparisons if one.rival not in board.per_class]
    sentences = [
        _ranking(run, board, "auroc"),
        _ranking(run, board, "fpr95_out"),
        _verdicts(board, rankings),
        _losses(board, rankings),
        _beside(board, beside),
        *further,
        _accuracy(beside, accuracies),
        *_gaps(run, board),
    ]
    return [text for text in sentences if text]


def _ranking(run: RunFolder, board: Scoreboard, metric: str) -> str:
    """Who is best, by how much, and where the subject stands."""
    falling = metric == "auroc"
    averages = {
        method: board.average(metric, method) for method in board.block.methods if method not in board.per_class
    }
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
    equal = [method for method in order if means[method] == means[first]]
    second = next((method for method in order if method not in equal), None)
    ahead = "ahead of" if falling else "below"
    whose = f"For networks trained on {run.plan.in_set}, " if run.plan.network else f"On {run.plan.in_set}, "
    start = whose if falling else ""
    extreme = "highest" if falling else "lowest"
    have = "has" if len(equal) == 1 else "share"
    text = f"{start}{' and '.join(map(title_of, equal))} {have} the {extreme} {called} over {over}: {means[first]:.3f}"
    if second is not None:
        text += f", {_apart(means[first], means[second])} {ahead} {title_of(second)} ({means[second]:.3f})"
    subject = board.subject
    if subject in means and subject not in (*equal, second):
        place = 1 + [means[method] for method in order].index(means[subject])  # equal numbers have equal places
        text += f"; {title_of(subject)} is {_place(board, place, len(order))} with {means[subject]:.3f}, "
        text += f"{_apart(means[first], means[subject])} behind"
    return f"{text}."


def _place(board: Scoreboard, place: int, n_places: int) -> str:
    """The place of a method in words, and which rows of the table are not among those counted."""
    not_counted = [title_of(one) for one in board.block.methods if one in board.per_class]
    rest = f" ({' and '.join(not_counted)} not counted)" if not_counted else ""
    return f"{_ordinal(place)} of {n_places}{rest}"


def _verdicts(board: Scoreboard, comparisons: Sequence[Comparison]) -> str:
    """How often the subject is better, over the single sets."""
    subject = title_of(board.subject or "")
    verdicts = Counter(one.verdict for one in comparisons if one.ood_set != ALL_SETS)
    total = sum(verdicts.values())
    if not total:
        return ""
    better, worse = verdicts[BETTER], verdicts[WORSE]
    mixed = verdicts[BETTER_NOT_ALL] + verdicts[WORSE_NOT_ALL]
    text = (
        f"Set by set and rival by rival ({count(total, 'comparison')} on the same rows), {subject} is better "
        f"in {better}, worse in {worse}, and in {total - better - worse - mixed} no difference is shown"
    )
    return f"{text}; in {mixed} the networks disagree." if mixed else f"{text}."


def _losses(board: Scoreboard, comparisons: Sequence[Comparison]) -> str:
    """Where the subject loses most, on each set."""
    subject = title_of(board.subject or "")
    worst: dict[str, Comparison] = {}
    for one in comparisons:
        known = worst.get(one.ood_set)
        if one.ood_set != ALL_SETS and one.verdict == WORSE and (known is None or one.difference < known.difference):
            worst[one.ood_set] = one
    if not worst:
        return f"On no OoD set is {subject} shown to be worse than a rival." if comparisons else ""
    losses: dict[str, list[str]] = {}
    for name, one in sorted(worst.items(), key=lambda item: item[1].difference):
        text = f"{name} ({signed(one.difference)} [{signed(one.low)}, {signed(one.high)}])"
        losses.setdefault(one.rival, []).append(text)
    parts = [f"to {title_of(rival)} on {', '.join(sets)}" for rival, sets in losses.items()]
    return f"{subject} loses most {'; '.join(parts)}."


def _beside(board: Scoreboard, beside: BesideReference) -> str:
    """How the subject compares with the reference's, on the same sets."""
    side = None if board.subject is None else beside.average("auroc", board.subject)
    if side is None or board.subject is None:
        return ""
    theirs = beside.reference.name
    return (
        f"On the {count(len(side.ood_sets), 'OoD set')} shared with the {theirs} ({', '.join(side.ood_sets)}) "
        f"{title_of(board.subject)} has a mean AUROC of {side.ours:.3f} here and {side.theirs:.3f} in the {theirs} "
        f"({signed(round(side.ours, 3) - round(side.theirs, 3))})."
    )


def _accuracy(beside: BesideReference, accuracies: dict[int, float]) -> str:
    if not accuracies:
        return ""
    mean = fmean(accuracies.values())
    networks = "The network is" if len(accuracies) == 1 else f"The {len(accuracies)} networks are on average"
    text = f"{networks} right on {100 * mean:.2f} % of the test set"
    printed = beside.reference.accuracy
    return f"{text} ({beside.reference.name}: {100 * printed.mean:.2f} %)." if printed is not None else f"{text}."


def _gaps(run: RunFolder, board: Scoreboard) -> list[str]:
    """What is missing, and why."""
    missing = run.missing()
    gaps = [f"Missing: {name}. {sentence(why)}" for name, why in missing.items() if name not in board.ood_sets]
    wanted = [name for name in run.plan.ood if name in board.ood_sets or name not in missing]
    if to_come := n_to_come(run, board, wanted):
        n_done = len(board.cells)
        gaps.append(f"The run is not finished: {n_done} of {n_done + to_come} cells are there.")
    gaps += failure_notes(run, board, wanted)
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


def _apart(a: float, b: float) -> str:
    """How far two numbers are apart, as a reader of their three digits would say."""
    apart = f"{abs(round(a, 3) - round(b, 3)):.3f}"
    return "less than 0.001" if a != b and float(apart) == 0 else apart


def _ordinal(number: int) -> str:
    names = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
    return names[number - 1] if number <= len(names) else f"number {number}"
