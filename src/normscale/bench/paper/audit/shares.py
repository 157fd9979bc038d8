"""Point 2: how much of the gain comes from the OoD inputs in the stream itself."""

from __future__ import annotations

import math
import statistics
from typing import Any

from normscale.bench.experiments.stress import Grid, stress
from normscale.bench.paper.audit.findings import UNCHECKED, Finding, verdict_of
from normscale.bench.paper.audit.given import Given
from normscale.detectors.energy import Energy
from normscale.detectors.norm_scaling import NormScaling

SHARES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
KEPT = 0.8
"""Share of the gain at the largest share of OoD that must be left at the smallest for the gain to be the method's."""


CLAIM = "The gain is norm-scaling's, whatever the stream holds."


def check_shares(given: Given) -> Finding:
    """AUROC of running and frozen norm-scaling and of energy by the share of OoD inputs in a shuffled stream."""
    methods = {
        "running": NormScaling().fit(given.train),
        "frozen": NormScaling(prior_weight=math.inf).fit(given.train),
        "energy": Energy().fit(given.train),
    }
    grid = Grid(SHARES, ("shuffled",), ("balanced",))
    result = stress(given.test, given.ood, methods, grid=grid, seed=given.seed)
    rows = [(row.stream.share, row) for row in result.rows if row.stream is not None and not row.skipped]
    details: list[dict[str, Any]] = []
    for share, row in rows:
        if row.method == "running":
            details.append({"ood_set": row.ood_set, "share": share, "n_id": row.n_id, "n_ood": row.n_ood})
        details[-1][row.method] = round(row.auroc, 4)
    shares = [s for s in SHARES if len({row.ood_set for share, row in rows if share == s}) == len(given.ood)]
    if len(shares) < 2:
        return Finding(2, CLAIM, "Too few rows for streams of two shares.", UNCHECKED, "More rows are needed.", details)
    table = {
        share: {name: statistics.fmean(d[name] for d in details if d["share"] == share) for name in methods}
        for share in shares
    }
    gain = {share: means["running"] - means["frozen"] for share, means in table.items()}
    rare, common = shares[0], shares[-1]
    words = ", ".join(f"{100 * share:g} % {means['running']:.3f}" for share, means in table.items())
    low = table[rare]
    ahead = "ahead of" if low["running"] > low["energy"] else "behind"
    return Finding(
        2,
        CLAIM,
        f"Mean AUROC of running norm-scaling by share of OoD inputs: {words}; frozen {table[common]['frozen']:.3f}, "
        f"energy {table[common]['energy']:.3f} at {100 * common:g} %.",
        verdict_of(gain[common] <= 0.0 or gain[rare] >= KEPT * gain[common]),
        f"Against frozen statistics it gains {gain[common]:+.3f} at {100 * common:g} % and {gain[rare]:+.3f} at "
        f"{100 * rare:g} %, where it is {abs(low['running'] - low['energy']):.3f} {ahead} energy.",
        details,
    )
