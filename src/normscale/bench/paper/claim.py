"""A claim of the paper beside what comes out, and what claims on its tables and on our networks have in common."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

from normscale.bench.paper.published import GAINS_OVER_MSP, GAINS_OVER_RIVALS, TITLES

HOLDS, DIFFERS, UNCHECKED = VERDICTS = ("holds", "differs", "cannot be checked")
NOTHING = "–"
POINTS = {
    1: "The running update as printed",
    2: "The share of OoD inputs in the stream",
    3: "The softmax in float32",
    4: "Which class is positive",
    5: "What the ± is",
    6: "Averages and gains",
    7: "The lists of OoD sets",
    8: "Calibration at tau = 1",
}
"""The eight points at which the paper must be read with care."""
SIZE = 0.8
"""Share of a claimed gain that must be there for the claim to hold."""
COLUMNS = ("AUROC", "AUPR", "FPR95")
RIVALS = ("msp", "odin", "mahalanobis", "energy")
OURS = "norm_scaling"

Details = list[dict[str, Any]]
"""The numbers behind a claim: rows of one small table, all with the same keys, ready for JSON."""
Means = Callable[[str, str, str], float | None]
"""From an in-distribution set, a method and a column to the average over OoD sets."""


class Claim(NamedTuple):
    """What the paper says, what its own tables give, what was measured, and a verdict by a stated rule."""

    point: int
    """A key of ``POINTS``."""
    claim: str
    paper: str = NOTHING
    """The number or words of its text."""
    recomputed: str = NOTHING
    """From its own tables."""
    ours: str = NOTHING
    """On a network's outputs."""
    verdict: str = UNCHECKED
    rule: str = ""
    """When the claim holds."""
    details: Sequence[dict[str, Any]] = ()

    def judged(self, holds: bool, **fields: Any) -> Claim:
        """The claim with what was found."""
        return self._replace(verdict=HOLDS if holds else DIFFERS, **fields)


def summary(claims: Sequence[Claim]) -> str:
    """One sentence: how many claims hold, differ, and cannot be checked."""
    count = Counter(one.verdict for one in claims)
    checked, more = len(claims) - count[UNCHECKED], count[UNCHECKED]
    text = f"Of {checked} claim{'s' * (checked != 1)} checked, {count[HOLDS]} hold{'s' * (count[HOLDS] == 1)} and "
    text += f"{count[DIFFERS]} differ{'s' * (count[DIFFERS] == 1)}"
    return f"{text}; {more} more cannot be checked on these outputs." if more else f"{text}."


def percent(share: float, digits: int = 2, sign: str = "+") -> str:
    """A share in percent, with its sign."""
    return "infinitely more" if share == math.inf else f"{100 * share:{sign}.{digits}f} %"


def listed(items: Sequence[str]) -> str:
    """Words with commas and an "and" before the last."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def relative_change(ours: float, theirs: float) -> float:
    """How much more ``ours`` is than ``theirs``, as a share of it; more than nothing is infinitely more."""
    if theirs == 0:
        return math.inf if ours else 0.0
    return ours / theirs - 1.0


def gain_over(of: Callable[[str], float | None], rivals: Sequence[str], column: str) -> tuple[float, str] | None:
    """The relative gain of norm-scaling over the best rival, and which it is; None where numbers are missing."""
    ours, known = of(OURS), {rival: number for rival in rivals if (number := of(rival)) is not None}
    if ours is None or not known:
        return None
    best = (min if column == "FPR95" else max)(known, key=lambda rival: known[rival])
    return relative_change(ours, known[best]), best


def claim_over_rivals(column: str) -> Claim:
    """What the abstract says of a column."""
    claimed = list(GAINS_OVER_RIVALS.values())[COLUMNS.index(column)]
    word = "reduction" if claimed < 0 else "improvement"
    text = f"{percent(abs(claimed), sign='')} {word} in {column} over previous methods."
    return Claim(6, text, percent(claimed), rule="it is the change from the best rival's average, " + ROUNDING)


ROUNDING = "within the rounding to four digits"
OVER_MSP = Claim(
    6,
    f"{' / '.join(percent(gain, 0) for gain in GAINS_OVER_MSP.values())} in {' / '.join(COLUMNS)} over plain MSP.",
    " / ".join(percent(gain, 0) for gain in GAINS_OVER_MSP.values()),
    rule="they are the means of the four sets' ratios, in whole percent",
)
SHARE_CLAIM = "The gain is norm-scaling's, whatever the stream holds."
IN_ORDER = {
    "worse": Claim(
        6,
        "Better than plain MSP across the board, the only exception being AUROC on SVHN.",
        "1 cell worse",
        rule="no exception but the one it names",
    ),
    "in another order": Claim(
        6,
        "On every set but SVHN: plain MSP, then Multi-Threshold, then Norm-Scaling.",
        "no other order",
        rule="the order is the same in every cell",
    ),
}
"""Claims in words, by what an exception to them is called."""
EXCEPTIONS = {"worse": [("svhn", "AUROC")], "in another order": []}
"""Those that the claim itself names."""


def in_order(what: str, means: Means, in_sets: Sequence[str]) -> tuple[str, Details] | None:
    """Where methods are not in the order of a claim in words; None where numbers are missing."""
    methods = ("msp", OURS) if what == "worse" else ("msp", "multi_threshold", OURS)
    sets = [name for name in in_sets if what == "worse" or name != "svhn"]
    wrong: Details = []
    for column, in_set in product(COLUMNS, sets):
        by_method = {method: means(in_set, method, column) for method in methods}
        numbers = [-value if column == "FPR95" else value for value in by_method.values() if value is not None]
        if len(numbers) < len(methods):
            return None
        wrong_way = numbers[0] > numbers[1] if what == "worse" else not numbers[0] < numbers[1] < numbers[2]
        if wrong_way:
            wrong.append({"in_set": in_set, "column": column, **by_method})
    names = [f"{row['column']} on {TITLES[row['in_set']]}" for row in wrong]
    text = f"{len(wrong)} of {len(COLUMNS) * len(sets)} cells {what}" + (f": {', '.join(names)}" if names else "")
    return text, wrong
