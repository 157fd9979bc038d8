"""The audit: what the paper claims, recomputed from its own tables and on a network's outputs."""

from __future__ import annotations

from collections.abc import Mapping

from normscale.bench.paper.audit.outputs import audit_outputs
from normscale.bench.paper.audit.tables import audit_tables
from normscale.bench.paper.claim import DIFFERS, HOLDS, POINTS, UNCHECKED, VERDICTS, Claim, summary
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.sample import load_sample

__all__ = ["DIFFERS", "HOLDS", "POINTS", "UNCHECKED", "VERDICTS", "Claim", "audit", "audit_outputs", "audit_tables"]
__all__ += ["summary"]


def audit(
    train: ModelOutputs | None = None,
    test: ModelOutputs | None = None,
    ood_sets: Mapping[str, ModelOutputs] | None = None,
    *,
    in_set: str | None = None,
    seed: int = 0,
) -> list[Claim]:
    """All eight points, in order; see :func:`audit_outputs`. Without outputs: on the embedded sample.

    Examples
    --------
    >>> sorted({claim.point for claim in audit()})
    [1, 2, 3, 4, 5, 6, 7, 8]
    """
    if train is None and test is None and ood_sets is None:
        sample = load_sample()
        train, test, ood_sets = sample.train, sample.test, sample.ood
    if train is None or test is None or ood_sets is None:
        raise InvalidInput("train, test and ood_sets go together; pass all three, or none for the embedded sample.")
    claims = audit_tables() + audit_outputs(train, test, ood_sets, in_set=in_set, seed=seed)
    return sorted(claims, key=lambda claim: claim.point)  # a stable sort: within a point, the tables first
