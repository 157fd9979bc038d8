"""What a leaderboard compares: every detector, and a few of them made stream-aware."""

from __future__ import annotations

from collections.abc import Sequence

from normscale.bench.experiments.network_outputs import is_extracted
from normscale.bench.experiments.plan import Plan
from normscale.detectors.registry import JOIN, list_detectors
from normscale.errors import InvalidInput

EVERY = "all"
"""Stands for every detector on the command line."""
_WRAPPER = "stream_aware"
_WRAPPED = ("centred", "msp", "knn", "vim", "relative_mahalanobis", "fdbd", "ensemble")
"""One detector of every family, and their sum."""


def every_method() -> tuple[str, ...]:
    """Every registered detector in its main setting, and the stream-aware forms.

    Examples
    --------
    >>> methods = every_method()
    >>> "knn" in methods, "stream_aware+knn" in methods, "stream_aware" in methods
    (True, True, False)
    """
    single = [name for name in list_detectors() if name != _WRAPPER]
    return (*single, *(f"{_WRAPPER}{JOIN}{name}" for name in _WRAPPED))


def with_detectors(plan: Plan, names: Sequence[str]) -> Plan:
    """A plan with further methods.

    Parameters
    ----------
    plan : Plan
    names : sequence of str
        Detectors as they are spelled, or ``all`` alone: every one whose arrays the plan's own methods have extracted
        anyway.

    Examples
    --------
    >>> plan = Plan("mine", "digits", {"gaussian": "gaussian"}, methods=("energy",))
    >>> with_detectors(plan, ["knn", "vim"]).further
    ('knn', 'vim')
    >>> "odin" in with_detectors(plan, ["all"]).further  # nobody else reads perturbed logits
    False
    """
    chosen = list(names)
    if not chosen or (EVERY in chosen and len(chosen) > 1):
        raise InvalidInput(f"detectors are {EVERY!r} alone, or one or more others; got {', '.join(chosen) or 'none'}.")
    if chosen == [EVERY]:
        chosen = [name for name in every_method() if is_extracted(plan, name)]
    return plan._replace(further=tuple(name for name in chosen if name not in plan.methods))
