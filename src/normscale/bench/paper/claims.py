"""The paper's claims on networks trained here: what it says, what its tables give, what ours give, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import fmean

from normscale.bench.experiments.methods import title_of
from normscale.bench.paper.audit.claim import NOTHING, SIZE, UNCHECKED, Claim, has_size, percent, verdict_of
from normscale.bench.paper.audit.outputs import SHARE_CLAIM
from normscale.bench.paper.audit.printed import COLUMNS, OURS, RIVALS, TITLES, best, better, relative_change
from normscale.bench.paper.audit.tables import (
    EXCEPTION_CLAIM,
    MSP_CLAIM,
    ORDER_CLAIM,
    audit_tables,
    cells_text,
    claim_over_rivals,
)
from normscale.bench.paper.published import GAINS_OVER_MSP, GAINS_OVER_RIVALS
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.table import Column, ReportTable, Row, Section
from normscale.bench.report.tables import first_of_each_set

METRIC_OF = dict(zip(COLUMNS, ("auroc", "aupr_out", "fpr95_out"), strict=True))
"""Every method's AUPR counts OoD as positive here."""
RULE = (
    f"Holds: a gain has the claimed sign and at least {100 * SIZE:g} % of the claimed size; a claim in words has no "
    "exception but those it names."
)
PLAIN, PER_CLASS, FROZEN = "msp", "multi_threshold", "norm_scaling_frozen"
ALL_LAYERS = "mahalanobis_layers"
"""Mahalanobis as its authors use it, a rival of the paper too; the paper does not say which layers it read."""
NOISE = ("gaussian", "uniform")
NO_CLAIM = "no claim"
MISSING = "methods are missing"

Number = Callable[[str], float | None]
"""From a method to its average."""


def claims_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """Every claim that runs on the paper's sets can check; None without such runs."""
    found = check_claims(runs)
    if not found:
        return None
    columns = [
        Column("The paper's claim"), Column("Paper"), Column("Its own tables"), Column("by its tables"),
        Column("Networks trained here"), Column("by our networks"),
    ]  # fmt: skip
    on_tables = _on_tables()
    rows: list[Row] = []
    for one in found:
        known = on_tables.get(MSP_CLAIM if one.claim.endswith("over plain MSP.") else one.claim)
        by_tables = NO_CLAIM if one.verdict == NO_CLAIM else UNCHECKED if known is None else known.verdict
        texts = one.claim, one.paper, one.recomputed, by_tables, one.ours, one.verdict
        rows.append(tuple(text.replace(" -", " −").replace("-", "−", text.startswith("-")) for text in texts))
    notes = [
        RULE,
        "Its own tables: recomputed by `normscale audit`, which has the claims that only they can check. Averages here "
        "are over the OoD sets that the paper has too, OoD positive for every method, one run for each set.",
    ]
    return ReportTable("claims", "What the paper claims, and what holds", columns, [Section("", rows)], notes)


def check_claims(runs: Sequence[ReportedRun]) -> list[Claim]:
    """Check the paper's claims on runs; the first run of each of the paper's in-distribution sets counts."""
    sets = [one for one in first_of_each_set(runs) if one.in_set in TITLES and one.beside.is_there]
    if not sets:
        return []
    return [
        *(_over_rivals(sets, column) for column in COLUMNS),
        _on_pictures(sets),
        *(_over_msp(sets, column) for column in COLUMNS),
        _exceptions(sets),
        _order(sets),
        _whatever_the_stream(sets),
    ]


def _on_tables() -> dict[str, Claim]:
    return {one.claim: one for one in audit_tables()}


def value(one: ReportedRun, column: str, method: str) -> float | None:
    """A method's average on one in-distribution set."""
    average = one.average(METRIC_OF[column], method)
    return None if average is None else average.mean


def _mean(numbers: Sequence[float | None]) -> float | None:
    """Over the in-distribution sets; None if the method lacks one."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known and len(known) == len(numbers) else None


def _gain(of: Number, rivals: Sequence[str], column: str) -> tuple[float, str] | None:
    """The relative gain over the best rival, and which it is."""
    ours, known = of(OURS), [(rival, number) for rival in rivals if (number := of(rival)) is not None]
    if ours is None or not known:
        return None
    rival, theirs = best(known, column)
    return relative_change(ours, theirs), rival


def _against(gain: tuple[float, str] | None) -> str:
    return NOTHING if gain is None else f"{percent(gain[0])} against {title_of(gain[1])}"


def _over_rivals(sets: Sequence[ReportedRun], column: str) -> Claim:
    """The gain over the best of the paper's rivals, means over the in-distribution sets."""
    name, claimed = claim_over_rivals(column), list(GAINS_OVER_RIVALS.values())[COLUMNS.index(column)]
    recomputed = percent(_on_tables()[name].details[0]["against_best_average"])
    gain = _gain(lambda method: _mean([value(one, column, method) for one in sets]), (*RIVALS, ALL_LAYERS), column)
    paper = _gain(lambda method: _mean([one.published(METRIC_OF[column], method) for one in sets]), RIVALS, column)
    if paper is not None:
        recomputed += f"; {percent(paper[0])} over the same sets"
    claim = Claim(6, name, percent(claimed), recomputed, MISSING, rule=RULE)
    return (
        claim if gain is None else claim._replace(ours=_against(gain), verdict=verdict_of(has_size(gain[0], claimed)))
    )


def _on_pictures(sets: Sequence[ReportedRun]) -> Claim:
    """The same AUROC gain without noise among the OoD sets; the paper claims nothing about it."""
    pictures = {one.title: [name for name in one.shared if name not in NOISE] for one in sets}

    def here(method: str) -> float | None:
        found = [one.board.average("auroc", method, pictures[one.title]) for one in sets]
        return _mean([None if average is None else average.mean for average in found])

    def there(method: str) -> float | None:
        found = [one.beside.value("auroc", method, name) for one in sets for name in pictures[one.title]]
        return _mean([None if printed is None else printed.mean for printed in found])

    theirs, ours = _gain(there, RIVALS, "AUROC"), _gain(here, (*RIVALS, ALL_LAYERS), "AUROC")
    name = "AUROC gain over previous methods on pictures alone, without noise."
    return Claim(6, name, recomputed=_against(theirs), ours=_against(ours), verdict=NO_CLAIM)


def _over_msp(sets: Sequence[ReportedRun], column: str) -> Claim:
    """The gain over plain MSP: the mean of the sets' ratios, as the paper has it."""
    place = COLUMNS.index(column)
    claimed = list(GAINS_OVER_MSP.values())[place]
    recomputed = percent(_on_tables()[MSP_CLAIM].details[place]["mean_of_ratios"], 1)
    name = f"{percent(claimed, 0)} in {column} over plain MSP."
    claim = Claim(6, name, percent(claimed, 0), recomputed, MISSING, rule=RULE)
    pairs = [(value(one, column, OURS), value(one, column, PLAIN)) for one in sets]
    gain = _mean([None if a is None or b is None else relative_change(a, b) for a, b in pairs])
    if gain is None:
        return claim
    return claim._replace(ours=percent(gain, 1), verdict=verdict_of(has_size(gain, claimed)))


def _exceptions(sets: Sequence[ReportedRun]) -> Claim:
    """Where norm-scaling does worse than plain MSP."""
    claim, worse = _on_tables()[EXCEPTION_CLAIM]._replace(ours=MISSING, verdict=UNCHECKED, details=()), []
    for column, one in product(COLUMNS, sets):
        ours, plain = value(one, column, OURS), value(one, column, PLAIN)
        if ours is None or plain is None:
            return claim
        if better(plain, ours, column):
            worse.append((one.in_set, column, f"{column} on {one.title}"))
    named = {cell[:2] for cell in worse} <= {("svhn", "AUROC")}
    text = cells_text([text for *_, text in worse], len(COLUMNS) * len(sets), "worse")
    return claim._replace(ours=text, verdict=verdict_of(named))


def _order(sets: Sequence[ReportedRun]) -> Claim:
    """Where, outside SVHN, multi-threshold does not lie between plain MSP and norm-scaling."""
    claim, wrong = _on_tables()[ORDER_CLAIM]._replace(ours=MISSING, verdict=UNCHECKED, details=()), []
    others = [one for one in sets if one.in_set != "svhn"]
    for column, one in product(COLUMNS, others):
        plain, many, ours = (value(one, column, method) for method in (PLAIN, PER_CLASS, OURS))
        if plain is None or many is None or ours is None:
            return claim
        if not (better(many, plain, column) and better(ours, many, column)):
            wrong.append(f"{column} on {one.title}")
    if not others:
        return claim._replace(ours="SVHN alone")
    text = cells_text(wrong, len(COLUMNS) * len(others), "in another order")
    return claim._replace(ours=text, verdict=verdict_of(not wrong))


def _whatever_the_stream(sets: Sequence[ReportedRun]) -> Claim:
    """What is left of the gain over MSP when the statistics stay those of training."""
    of = {method: _mean([value(one, "AUROC", method) for one in sets]) for method in (PLAIN, FROZEN, OURS)}
    plain, frozen, ours = of.values()
    if plain is None or frozen is None or ours is None:
        return Claim(2, SHARE_CLAIM, ours=MISSING)
    running, still = ours - plain, frozen - plain
    text = f"AUROC over plain MSP: {running:+.3f} running, {still:+.3f} frozen".replace("-", "−")
    return Claim(2, SHARE_CLAIM, ours=text, verdict=verdict_of(running <= 0 or still >= SIZE * running), rule=RULE)
