"""What an audit says: a claim, what came out when it was recomputed, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

HOLDS = "holds"
DIFFERS = "differs"
UNCHECKED = "cannot be checked"
VERDICTS = (HOLDS, DIFFERS, UNCHECKED)

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


class Finding(NamedTuple):
    """One claim of the paper, checked."""

    point: int
    """A key of ``POINTS``."""
    claim: str
    """What the paper says, prints or takes for granted."""
    recomputed: str
    """What came out, with numbers."""
    verdict: str
    """One of ``VERDICTS``."""
    reason: str
    """Why, in one sentence."""
    details: Sequence[dict[str, Any]] = ()
    """The numbers behind it: rows of one small table, all with the same keys, ready for JSON."""


def verdict_of(holds: bool) -> str:
    """The word for a claim that could be checked."""
    return HOLDS if holds else DIFFERS


def summary(findings: Sequence[Finding]) -> str:
    """One sentence: how many claims hold, differ, and cannot be checked.

    Examples
    --------
    >>> summary([Finding(7, "a", "b", HOLDS, "c"), Finding(7, "d", "e", DIFFERS, "f")])
    'Of 2 claims checked, 1 holds and 1 differs.'
    """
    count = Counter(finding.verdict for finding in findings)
    checked = len(findings) - count[UNCHECKED]
    sentence = (
        f"Of {checked} {_plural(checked, 'claim', 'claims')} checked, {count[HOLDS]} "
        f"{_plural(count[HOLDS], 'holds', 'hold')} and {count[DIFFERS]} {_plural(count[DIFFERS], 'differs', 'differ')}"
    )
    more = count[UNCHECKED]
    return f"{sentence}; {more} more cannot be checked on these outputs." if more else f"{sentence}."


def listed(items: Sequence[str]) -> str:
    """A list in a sentence.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _plural(n: int, one: str, many: str) -> str:
    return one if n == 1 else many
