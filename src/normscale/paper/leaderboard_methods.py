"""What a leaderboard compares: every detector, and a few of them made stream-aware."""

from __future__ import annotations

from normscale.detectors.registry import JOIN, list_detectors
from normscale.errors import InvalidInput
from normscale.experiments.network_outputs import is_extracted
from normscale.experiments.plan import Plan

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


def with_detectors(plan: Plan, names: str) -> Plan:
    """A plan with further methods.

    Parameters
    ----------
    plan : Plan
    names : str
        Methods separated by commas, or ``all``: every one whose arrays the plan's own methods have extracted anyway.

    Examples
    --------
    >>> plan = Plan("mine", "digits", {"gaussian": "gaussian"}, methods=("energy",))
    >>> with_detectors(plan, "knn,vim").further
    ('knn', 'vim')
    >>> "odin" in with_detectors(plan, "all").further  # nobody else reads perturbed logits
    False
    """
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen or (EVERY in chosen and len(chosen) > 1):
        raise InvalidInput(f"detectors are {EVERY!r}, or names separated by commas; got {names!r}.")
    if chosen == [EVERY]:
        chosen = [name for name in every_method() if is_extracted(plan, name)]
    return plan._replace(further=tuple(name for name in chosen if name not in plan.methods))
