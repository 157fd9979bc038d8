"""A claim of the paper beside what comes out: the row of every table of claims."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    """The numbers behind it: rows of one small table, all with the same keys, ready for JSON."""


def verdict_of(holds: bool) -> str:
    """The word for a claim that could be checked."""
    return HOLDS if holds else DIFFERS


def has_size(gain: float, claimed: float) -> bool:
    """Whether a gain has the claimed sign and at least ``SIZE`` of the claimed size.

    Examples
    --------
    >>> has_size(-0.17, -0.33), has_size(-0.27, -0.33), has_size(0.5, -0.33)
    (False, True, False)
    """
    return gain / claimed >= SIZE


def summary(claims: Sequence[Claim]) -> str:
    """One sentence: how many claims hold, differ, and cannot be checked.

    Examples
    --------
    >>> summary([Claim(7, "a", verdict=HOLDS), Claim(7, "b", verdict=DIFFERS)])
    'Of 2 claims checked, 1 holds and 1 differs.'
    """
    count = Counter(one.verdict for one in claims)
    checked, more = len(claims) - count[UNCHECKED], count[UNCHECKED]
    text = f"Of {checked} claim{'s' * (checked != 1)} checked, {count[HOLDS]} hold{'s' * (count[HOLDS] == 1)} and "
    text += f"{count[DIFFERS]} differ{'s' * (count[DIFFERS] == 1)}"
    return f"{text}; {more} more cannot be checked on these outputs." if more else f"{text}."


def percent(share: float, digits: int = 2, sign: str = "+") -> str:
    """A share in percent, with its sign.

    Examples
    --------
    >>> percent(0.0978), percent(float("inf"))
    ('+9.78 %', 'infinitely more')
    """
    return "infinitely more" if share == math.inf else f"{100 * share:{sign}.{digits}f} %"
