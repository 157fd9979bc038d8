"""The paper's claims on networks trained here: what it says, what its tables give, what ours give, and a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from normscale.bench.experiments.methods import title_of
from normscale.bench.paper import claim as shared
from normscale.bench.paper.audit.tables import audit_tables
from normscale.bench.paper.claim import COLUMNS, NOTHING, OURS, OVER_MSP, RIVALS, SIZE, UNCHECKED, Claim, percent
from normscale.bench.paper.published import GAINS_OVER_MSP, GAINS_OVER_RIVALS, TITLES
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.table import Column, ReportTable, Row, table_of
from normscale.bench.report.tables import first_of_each_set

METRIC_OF = dict(zip(COLUMNS, ("auroc", "aupr_out", "fpr95_out"), strict=True))
"""Every method's AUPR counts OoD as positive here."""
RULE = (
    f"Holds: a gain has the claimed sign and at least {100 * SIZE:g} % of the claimed size; a claim in words has no "
    "exception but those it names."
)
HERE = (*RIVALS, "mahalanobis_layers")
"""With Mahalanobis as its authors use it; the paper does not say which layers it read."""
NOISE = ("gaussian", "uniform")
NO_CLAIM = "no claim"


def claims_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """Every claim that runs on the paper's sets can check; None without such runs."""
    claims = check_claims(runs)
    if not claims:
        return None
    columns = [
        Column("The paper's claim"), Column("Paper"), Column("Its own tables"), Column("by its tables"),
        Column("Networks trained here"), Column("by our networks"),
    ]  # fmt: skip
    on_tables = {claim.claim: claim.verdict for claim in audit_tables()}
    rows: list[Row] = []
    for one in claims:
        known = on_tables.get(OVER_MSP.claim if one.claim.endswith("over plain MSP.") else one.claim, UNCHECKED)
        by_tables = NO_CLAIM if one.verdict == NO_CLAIM else known
        texts = one.claim, one.paper, one.recomputed, by_tables, one.ours, one.verdict
        rows.append(tuple(text.replace(" -", " −").replace("-", "−", text.startswith("-")) for text in texts))
    notes = [
        RULE,
        "Its own tables: recomputed by `normscale audit`, which has the claims that only they can check. Averages here "
        "are over the OoD sets that the paper has too, OoD positive for every method, one run for each set.",
        "Mahalanobis reads the last layer; the paper does not say which layers it read. Mahalanobis in all layers, as "
        "its authors use it, is a rival here too, and a verdict is about the best rival.",
    ]
    return table_of("claims", "What the paper claims, and what holds", columns, {"": rows}, notes)


def check_claims(runs: Sequence[ReportedRun]) -> list[Claim]:
    """Check the paper's claims on runs; the first run of each of the paper's in-distribution sets counts."""
    known = {one.run.plan.in_set: one for one in first_of_each_set(runs) if one.reference.name}
    sets = {name: one for name, one in known.items() if name in TITLES}
    if not sets:
        return []
    on_tables = {claim.claim: claim for claim in audit_tables()}

    def value(in_set: str, method: str, column: str) -> float | None:
        return sets[in_set].average(METRIC_OF[column], method).mean

    def mean(method: str, column: str) -> float | None:
        return _mean([value(in_set, method, column) for in_set in sets])

    def printed(method: str, column: str) -> float | None:
        values = [one.published(METRIC_OF[column], method) for one in sets.values()]
        return _mean([None if one is None else one.mean for one in values])

    claims: list[Claim] = []
    for column, claimed in zip(COLUMNS, GAINS_OVER_RIVALS.values(), strict=True):
        claim = shared.claim_over_rivals(column)
        recomputed = percent(on_tables[claim.claim].details[0]["against_best_average"])
        paper = shared.gain_over(lambda method, column=column: printed(method, column), RIVALS, column)  # type: ignore[misc]
        recomputed += "" if paper is None else f"; {percent(paper[0])} over the same sets"
        gain, among_theirs = (
            shared.gain_over(lambda method, column=column: mean(method, column), rivals, column)  # type: ignore[misc]
            for rivals in (HERE, RIVALS)
        )
        text = _against(gain)
        if gain is not None and gain[1] not in RIVALS:
            text += f"; {_against(among_theirs)}, the best of the paper's rivals"
        claims.append(_sized(claim._replace(recomputed=recomputed), gain and gain[0], claimed, text))
    claims.append(_on_pictures(list(sets.values())))
    for column, claimed in zip(COLUMNS, GAINS_OVER_MSP.values(), strict=True):
        ratio = on_tables[OVER_MSP.claim].details[COLUMNS.index(column)]["mean_of_ratios"]
        claim = Claim(6, f"{percent(claimed, 0)} in {column} over plain MSP.", percent(claimed, 0), percent(ratio, 1))
        pairs = [(value(in_set, OURS, column), value(in_set, "msp", column)) for in_set in sets]
        change = _mean([None if a is None or b is None else shared.relative_change(a, b) for a, b in pairs])
        claims.append(_sized(claim, change, claimed, percent(change or 0.0, 1)))
    for what, claim in shared.IN_ORDER.items():
        claim = claim._replace(recomputed=on_tables[claim.claim].recomputed, ours="methods are missing")
        found = shared.in_order(what, value, list(sets))
        if list(sets) == ["svhn"] and what != "worse":
            claims.append(claim._replace(ours="SVHN alone"))
        elif found is None:
            claims.append(claim)
        else:
            cells = {(row["in_set"], row["column"]) for row in found[1]}
            claims.append(claim.judged(cells <= set(shared.EXCEPTIONS[what]), ours=found[0]))
    plain, frozen, ours = (mean(method, "AUROC") for method in ("msp", "norm_scaling_frozen", OURS))
    stream = Claim(2, shared.SHARE_CLAIM, ours="methods are missing", rule=RULE)
    if plain is not None and frozen is not None and ours is not None:
        running, still = ours - plain, frozen - plain
        text = f"AUROC over plain MSP: {running:+.3f} running, {still:+.3f} frozen".replace("-", "−")
        stream = stream.judged(running <= 0 or still >= SIZE * running, ours=text)
    return [*claims, stream]


def _mean(numbers: Sequence[float | None]) -> float | None:
    """Over the in-distribution sets; None if the method lacks one."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known and len(known) == len(numbers) else None


def _against(gain: tuple[float, str] | None) -> str:
    return NOTHING if gain is None else f"{percent(gain[0])} against {title_of(gain[1])}"


def _sized(claim: Claim, gain: float | None, claimed: float, text: str) -> Claim:
    """A claim of a gain: it holds if the gain has the claimed sign and at least ``SIZE`` of the claimed size."""
    if gain is None:
        return claim._replace(ours="methods are missing", rule=RULE)
    return claim._replace(rule=RULE).judged(gain / claimed >= SIZE, ours=text)


def _on_pictures(sets: Sequence[ReportedRun]) -> Claim:
    """The same AUROC gain without noise among the OoD sets; the paper claims nothing about it."""
    pictures = {one.title: [name for name in one.shared if name not in NOISE] for one in sets}

    def here(method: str) -> float | None:
        return _mean([one.board.average("auroc", method, pictures[one.title]).mean for one in sets])

    def there(method: str) -> float | None:
        values = [one.reference.values.get((name, method, "auroc")) for one in sets for name in pictures[one.title]]
        return _mean([None if printed is None else printed.mean for printed in values])

    theirs, ours = shared.gain_over(there, RIVALS, "AUROC"), shared.gain_over(here, HERE, "AUROC")
    name = "AUROC gain over previous methods on pictures alone, without noise."
    return Claim(6, name, recomputed=_against(theirs), ours=_against(ours), verdict=NO_CLAIM)
