"""The audit: what the paper claims, recomputed from its own tables and on a network's outputs.

>>> from normscale.bench.paper.audit import audit, summary
>>> findings = audit()                       # on the embedded sample
>>> sorted({finding.point for finding in findings})
[1, 2, 3, 4, 5, 6, 7, 8]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from normscale.bench.paper.audit.findings import DIFFERS, HOLDS, POINTS, UNCHECKED, VERDICTS, Finding, summary
from normscale.bench.paper.audit.outputs import STEPS, audit_outputs
from normscale.bench.paper.audit.tables import audit_tables
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.sample import load_sample

__all__ = [
    "DIFFERS",
    "HOLDS",
    "POINTS",
    "STEPS",
    "UNCHECKED",
    "VERDICTS",
    "Finding",
    "audit",
    "audit_outputs",
    "audit_tables",
    "summary",
]


def audit(
    train: ModelOutputs | None = None,
    test: ModelOutputs | None = None,
    ood_sets: Mapping[str, ModelOutputs] | None = None,
    *,
    in_set: str | None = None,
    seed: int = 0,
    tick: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """All eight points, in order: what the tables imply, and what the outputs show.

    Parameters
    ----------
    train, test, ood_sets : outputs, optional
        See :func:`audit_outputs`; all three or none. None: the embedded sample.
    in_set, seed, tick
        See :func:`audit_outputs`.
    """
    if train is None and test is None and ood_sets is None:
        sample = load_sample()
        train, test, ood_sets = sample.train, sample.test, sample.ood
    if train is None or test is None or ood_sets is None:
        raise InvalidInput("train, test and ood_sets go together; pass all three, or none for the embedded sample.")
    found = audit_tables() + audit_outputs(train, test, ood_sets, in_set=in_set, seed=seed, tick=tick)
    return sorted(found, key=lambda finding: finding.point)  # a stable sort: within a point, the tables first
