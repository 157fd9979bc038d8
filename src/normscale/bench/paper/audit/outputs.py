"""Points 1, 2, 3, 4 and 8: what can be measured on a network's outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from normscale.bench.paper.audit.calibration import check_calibration
from normscale.bench.paper.audit.findings import Finding
from normscale.bench.paper.audit.given import Given, checked
from normscale.bench.paper.audit.positive import check_positive
from normscale.bench.paper.audit.recurrence import check_recurrence
from normscale.bench.paper.audit.saturation import check_saturation
from normscale.bench.paper.audit.shares import check_shares
from normscale.outputs import ModelOutputs

_CHECKS: dict[str, Callable[[Given], Finding | list[Finding]]] = {
    "the running update": check_recurrence,
    "the share of OoD inputs": check_shares,
    "float32": check_saturation,
    "the positive class": check_positive,
    "calibration": check_calibration,
}
STEPS = len(_CHECKS)
"""How often ``tick`` is called."""


def audit_outputs(
    train: ModelOutputs,
    test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    in_set: str | None = None,
    seed: int = 0,
    tick: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """Check the paper's claims on the outputs of one network.

    Parameters
    ----------
    train : ModelOutputs
        On the training set.
    test : ModelOutputs
        On in-distribution inputs the network was not trained on; with labels, calibration is checked too.
    ood_sets : mapping of name to ModelOutputs
    in_set : {"cifar10", "cifar100", "svhn", "tinyimagenet"}, optional
        Which of the paper's sets the network was trained on. OoD sets with the paper's names (``svhn``, ``lsun``, ...)
        are then set beside its figures.
    seed : int
        Order of the shuffled streams.
    tick : callable
        Told what was checked, ``STEPS`` times.

    Examples
    --------
    >>> from normscale.sample import load_sample
    >>> sample = load_sample()
    >>> findings = audit_outputs(sample.train, sample.test, sample.ood)
    >>> {finding.point for finding in findings}
    {1, 2, 3, 4, 8}
    """
    given = checked(train, test, ood_sets, in_set, seed)
    findings: list[Finding] = []
    for name, check in _CHECKS.items():
        found = check(given)
        findings += [found] if isinstance(found, Finding) else found
        tick(name)
    return findings
