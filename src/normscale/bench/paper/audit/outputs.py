"""Points 1, 2, 3, 4 and 8: what can be measured on a network's outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from normscale import _validate
from normscale._progress import bar
from normscale._validate import Rows
from normscale.bench.experiments.measurement import Measurement, require_one_network
from normscale.bench.experiments.measuring import measure
from normscale.bench.experiments.methods import Method, main_setting
from normscale.bench.experiments.streams import all_kinds
from normscale.bench.experiments.stress import stress
from normscale.bench.paper.claim import NOTHING, SHARE_CLAIM, SIZE, Claim, Details
from normscale.bench.paper.published import IN_SETS, paper_value
from normscale.detectors.base import Detector
from normscale.detectors.logit_scores import MSP, Energy
from normscale.detectors.norm_scaling import NormScaling
from normscale.errors import InvalidInput
from normscale.metrics.ranking import evaluate
from normscale.metrics.temperature import ece_curve
from normscale.outputs import LOGITS, ModelOutputs
from normscale.scores import confidence, msp_score

SAME = 0.01
"""A mean off by less than this share of a standard deviation, or an AUROC off by less, is the same."""
SHARES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)
FEW = 0.01
"""A smaller share of inputs with a probability of exactly 1 hardly matters."""
COPIES = (1, 2, 4, 8)
TEMPERATURES = 10.0 ** (np.arange(-80, 81) / 40)
"""From 0.01 to 100, forty to a decade; 1 is among them."""
NEAR = 1.25
"""A best temperature within this factor of 1 is near 1."""
SHARE_RULE = f"at least {100 * SIZE:g} % of the gain is left"


class Given(NamedTuple):
    """Outputs of one network, and which of the paper's sets it was trained on, if any."""

    train: ModelOutputs
    test: ModelOutputs
    ood: dict[str, ModelOutputs]
    in_set: str | None = None
    seed: int = 0

    def shuffled(self, detectors: Mapping[str, Detector]) -> dict[tuple[str, str], Measurement]:
        """Records by OoD set and name, each of one shuffled stream of it and the test set, as the paper does."""
        methods = [Method(name, one, main_setting(one), name) for name, one in detectors.items()]
        measured = measure(methods, self.test, self.ood, seed=self.seed, quiet=True)
        return {(one.record.ood_set, one.record.method): one.record for one in measured}


def audit_outputs(
    train: ModelOutputs,
    test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    in_set: str | None = None,
    seed: int = 0,
) -> list[Claim]:
    """Check the paper's claims on the outputs of one network.

    With labels of the test set, calibration is checked too. ``in_set`` says which of the paper's sets the network was
    trained on: its numbers are then beside OoD sets of its names.
    """
    if not ood_sets:
        raise InvalidInput("ood_sets is empty; at least one OoD set is needed to audit outputs.")
    if in_set is not None:
        _validate.one_of(in_set, "in_set", IN_SETS)
    require_one_network({"train": train, "test": test, **ood_sets})
    ood = {name: rows.only(LOGITS) for name, rows in ood_sets.items()}
    given = Given(train.only(LOGITS), test.only(LOGITS), ood, in_set, _validate.at_least(seed, "seed", 0))
    claims: list[Claim] = []
    with bar("auditing", len(_CHECKS)) as line:
        for name, check in _CHECKS.items():
            claims += check(given)
            line.advance(doing=f"checked {name}")
    return claims


def check_update(given: Given) -> list[Claim]:
    """The statistics that the printed update leaves, and its AUROC beside every other reading."""
    readings: dict[str, Detector] = {
        "as_printed": NormScaling(update="as_printed"),
        "running_mean": NormScaling(),
        "training_size": NormScaling(prior_weight=float(len(given.train))),
        "frozen": NormScaling(prior_weight=math.inf),
        "msp": MSP(),
    }
    for detector in readings.values():
        detector.fit(given.train)
    printed, running = NormScaling(update="as_printed").fit(given.train), NormScaling().fit(given.train)
    rows = given.test.logits[np.random.default_rng(given.seed).permutation(len(given.test))]
    for one in (printed, running):
        one.stream(rows)
    true, as_printed = running.running_, printed.running_
    spread = np.where(true.std > 0.0, true.std, 1.0)
    off, ratio = float(np.max(np.abs(as_printed.mean - true.mean) / spread)), float(np.median(as_printed.std / spread))
    both = {"mean": (true.mean, as_printed.mean), "deviation": (true.std, as_printed.std)}
    statistics: Details = [
        {"class": j} | {f"{way}_{name}": round(float(one[j]), digits) for name, pair in both.items()
                        for way, one, digits in zip(("running", "printed"), pair, (4, 6), strict=True)}
        for j in range(true.mean.size)
    ]  # fmt: skip
    aurocs: Details = []
    found = given.shuffled(readings)
    for name in given.ood:
        row: dict[str, Any] = {"ood_set": name}
        row |= {way: round(found[name, way].auroc, 4) for way in readings}
        if given.in_set is not None:
            value = paper_value(given.in_set, name, "norm_scaling", "auroc")
            row["paper"] = None if value is None else value.mean
        aurocs.append(row)
    means = {way: fmean(row[way] for row in aurocs) for way in readings}
    known = [row["paper"] for row in aurocs if row.get("paper") is not None]
    paper = f"mean AUROC {fmean(known):.3f} on {len(known)} of the sets" if known else NOTHING
    text = "mu_t = (mu_{t-1} + z)/(t + 1), and sigma alike, are a running mean and standard deviation."
    ranking = "Norm-scaling with that update detects OoD inputs as the tables say."
    return [
        Claim(1, text, "equations 4 to 7", rule=f"both within {100 * SAME:g} %").judged(
            off < SAME and abs(ratio - 1.0) < SAME,
            ours=f"after {len(rows)} rows the mean is {off:.2f} sigma off, sigma {ratio:.3f} of the true one",
            details=statistics,
        ),
        Claim(1, ranking, paper, rule=f"as printed at most {SAME:g} below the running mean").judged(
            means["as_printed"] > means["running_mean"] - SAME,
            ours=", ".join(f"{way.replace('_', ' ')} {mean:.3f}" for way, mean in means.items()),
            details=aurocs,
        ),
    ]


def check_shares(given: Given) -> list[Claim]:
    """AUROC of running and frozen norm-scaling and of Energy by the share of OoD inputs in a shuffled stream."""
    methods: dict[str, Detector] = {
        "running": NormScaling().fit(given.train),
        "frozen": NormScaling(prior_weight=math.inf).fit(given.train),
        "energy": Energy().fit(given.train),
    }
    kinds = all_kinds(SHARES, ("shuffled",), ("balanced",))
    result = stress(given.test, given.ood, methods, kinds=kinds, seed=given.seed)
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for row in result.rows:
        if row.stream is not None and not row.skipped:
            sizes = {"ood_set": row.ood_set, "share": row.stream.share, "n_id": row.n_id, "n_ood": row.n_ood}
            rows.setdefault((row.ood_set, row.stream.share), sizes)[row.method] = round(row.auroc, 4)
    details = list(rows.values())
    shares = [share for share in SHARES if all((name, share) in rows for name in given.ood)]
    claim = Claim(2, SHARE_CLAIM, rule=f"{SHARE_RULE} at the smallest share", details=details)
    if len(shares) < 2:
        return [claim._replace(ours="too few rows for streams of two shares", rule=SHARE_RULE)]
    gains = {
        share: fmean(row["running"] - row["frozen"] for row in details if row["share"] == share) for share in shares
    }
    text = ", ".join(f"{gain:+.3f} at {100 * share:g} % OoD" for share, gain in gains.items())
    rare, common = gains[shares[0]], gains[shares[-1]]
    return [claim.judged(common <= 0.0 or rare >= SIZE * common, ours=f"AUROC over frozen statistics: {text}")]


def float32_msp(logits: Rows, factor: float = 1.0) -> NDArray[np.float32]:
    """The maximum softmax probability as a network computes it, in float32; shape (n,)."""
    rows = logits.astype(np.float32) * np.float32(factor)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    top: NDArray[np.float32] = (powers / powers.sum(axis=1, keepdims=True)).max(axis=1)
    return top


def check_saturation(given: Given) -> list[Claim]:
    """Probabilities of exactly 1, with the logits as they are, and twice as large, as a longer training makes them."""
    claims = []
    for factor, claim in (
        (1.0, "Thresholding the maximum softmax probability ranks the inputs."),
        (2.0, "It still does when the logits are twice as large, as after longer training."),
    ):
        narrow, exact = float32_msp(given.test.logits, factor), msp_score(given.test.logits, 1.0 / factor)
        share = float((narrow == np.float32(1.0)).mean())
        details: Details = []
        for name, ood in given.ood.items():
            rounded = evaluate(-narrow, -float32_msp(ood.logits, factor))
            whole = evaluate(exact, msp_score(ood.logits, 1.0 / factor))
            row: dict[str, Any] = {"ood_set": name}
            for metric in ("auroc", "fpr95_out"):
                row[f"{metric}_float32"] = round(getattr(rounded, metric), 4)
                row[f"{metric}_log"] = round(getattr(whole, metric), 4)
            details.append(row)
        worst = max(details, key=lambda row: row["auroc_log"] - row["auroc_float32"])
        ours = (
            f"{100 * share:.1f} % are exactly 1; on {worst['ood_set']} AUROC {worst['auroc_float32']:.4f} for "
            f"{worst['auroc_log']:.4f}, FPR95 {worst['fpr95_out_float32']:.4f} for {worst['fpr95_out_log']:.4f}"
        )
        rule = f"less than {100 * FEW:g} % of the test inputs are exactly 1"
        claims.append(Claim(3, claim, rule=rule).judged(share < FEW, ours=ours, details=details))
    return claims


def check_positive(given: Given) -> list[Claim]:
    """What the size of the OoD set does to AUPR, and which FPR95 the paper's figures resemble."""
    id_scores = msp_score(given.test.logits)
    details: Details = []
    for name, ood in given.ood.items():
        scores = msp_score(ood.logits)
        for copies in COPIES:  # only the share of OoD inputs grows
            result = evaluate(id_scores, np.tile(scores, copies))
            numbers = {metric: round(getattr(result, metric), 6) for metric in ("auroc", "aupr_out", "aupr_in")}
            details.append({"ood_set": name, "copies": copies, **numbers})
    first, last = details[:: len(COPIES)], details[len(COPIES) - 1 :: len(COPIES)]
    so = [a["aupr_out"] <= b["aupr_out"] and a["aupr_in"] >= b["aupr_in"] for a, b in zip(first, last, strict=True)]
    text = "The sign by which the tables were read: a larger OoD set raises AUPR only if OoD is positive."
    ours = f"so on {sum(so)} of {len(so)} OoD sets, with every OoD row {COPIES[-1]} times"
    return [Claim(4, text, rule="so on every OoD set").judged(all(so), ours=ours, details=details), _fpr95(given)]


def _fpr95(given: Given) -> Claim:
    """Which of the two FPR95 of Energy and running norm-scaling is nearer to the paper's, set by set."""
    details: Details = []
    if given.in_set is not None:
        detectors: dict[str, Detector] = {"energy": Energy(), "norm_scaling": NormScaling().fit(given.train)}
        for (name, method), result in given.shuffled(detectors).items():
            printed = paper_value(given.in_set, name, method, "fpr95_out")
            if printed is not None:
                numbers = {"fpr95_out": round(result.fpr95_out, 4), "fpr95_in": round(result.fpr95_in, 4)}
                details.append({"ood_set": name, "method": method, "paper": printed.mean, **numbers})
    claim = Claim(4, "FPR95 counts OoD as positive (the paper does not say).", rule="nearer to the paper's on average")
    if not details:
        return claim._replace(ours="it takes outputs on the paper's sets; name the one trained on (in_set, --in-set)")
    out, inside = (fmean(abs(row[metric] - row["paper"]) for row in details) for metric in ("fpr95_out", "fpr95_in"))
    ours = f"mean distance to the paper's: {out:.3f} with OoD positive, {inside:.3f} with in-distribution positive"
    return claim.judged(out < inside, ours=ours, details=details)


def check_calibration(given: Given) -> list[Claim]:
    """ECE against tau for norm-scaled and for raw logits of the test set."""
    text = "For temperature scaling the best tau differs by orders of magnitude between data sets."
    other = Claim(8, text, rule="one network cannot show it")
    text = "The ECE of norm-scaled logits is lowest near tau = 1."
    lowest = Claim(8, text, "tau = 1", rule=f"within a factor of {NEAR:g} of 1")
    labels = given.test.labels
    if labels is None or not (labels >= 0).any():
        return [one._replace(ours="the test set has no labels") for one in (lowest, other)]
    test = given.test[labels >= 0]
    scaled = NormScaling().fit(given.train).scale(test.logits)
    details: Details = []
    best = []
    for name, logits in (("norm-scaled", scaled), ("raw", test.logits)):
        curve = ece_curve(logits, labels[labels >= 0], TEMPERATURES, bins=15)
        at_one = float(curve.ece[int(np.flatnonzero(TEMPERATURES == 1.0)[0])])
        numbers = {"ece_at_best": round(curve.best_ece, 5), "ece_at_1": round(at_one, 5)}
        details.append({"logits": name, "best_tau": round(curve.best_temperature, 4), **numbers})
        best.append(curve.best_temperature)
    mine, raw = (
        f"ECE {row['ece_at_1']:.3f} at tau = 1, lowest {row['ece_at_best']:.3f} at tau = {row['best_tau']:.2f}"
        for row in details
    )
    sure = f"mean confidence {confidence(msp_score(scaled)).mean():.2f} at tau = 1, accuracy {test.accuracy:.2f}"
    return [
        lowest.judged(1 / NEAR <= best[0] <= NEAR, ours=f"{mine}; raw logits: {raw}; {sure}", details=details),
        other._replace(ours=f"{details[1]['best_tau']:.2f} for raw logits"),
    ]


_CHECKS: dict[str, Callable[[Given], list[Claim]]] = {
    "the running update": check_update,
    "the share of OoD inputs": check_shares,
    "float32": check_saturation,
    "the positive class": check_positive,
    "calibration": check_calibration,
}
