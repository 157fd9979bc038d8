"""The paper's claims on networks trained here: what it says, what its tables give, what ours give, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

from normscale.bench.experiments.methods import title_of
from normscale.bench.paper.audit.findings import UNCHECKED, Finding, verdict_of
from normscale.bench.paper.audit.gains import EXCEPTION_CLAIM, ORDER_CLAIM, claim_over_msp, claim_over_rivals, percent
from normscale.bench.paper.audit.printed import COLUMNS, OURS, RIVALS, TITLES, best, better, relative_change
from normscale.bench.paper.audit.shares import CLAIM as SHARE_CLAIM
from normscale.bench.paper.audit.shares import KEPT
from normscale.bench.paper.audit.tables import audit_tables
from normscale.bench.paper.published import GAINS_OVER_MSP, GAINS_OVER_RIVALS
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.table import Column, ReportTable, Row, Section
from normscale.bench.report.tables import first_of_each_set

METRIC_OF = dict(zip(COLUMNS, ("auroc", "aupr_out", "fpr95_out"), strict=True))
"""Every method's AUPR counts OoD as positive here."""
SIZE = 0.8
"""Share of a claimed gain that must be there for the claim to hold."""
RULE = (
    f"Holds: a gain has the claimed sign and at least {100 * SIZE:g} % of the claimed size; a claim in words has no "
    "exception but those it names."
)
PLAIN, PER_CLASS, FROZEN = "msp", "multi_threshold", "norm_scaling_frozen"
ALL_LAYERS = "mahalanobis_layers"
"""Mahalanobis as its authors use it, a rival of the paper too; the paper does not say which layers it read."""
NOISE = ("gaussian", "uniform")
NO_CLAIM = "no claim"


class Claim(NamedTuple):
    """A claim that benchmarks can check, as a row of the table."""

    claim: str
    paper: str
    """The number or words of the paper's text."""
    recomputed: str
    """What its own tables give."""
    on_tables: str
    """The verdict of the audit on its tables."""
    ours: str
    verdict: str


def claims_table(runs: Sequence[ReportedRun]) -> ReportTable | None:
    """Every claim that runs on the paper's sets can check; None without such runs."""
    found = check_claims(runs)
    if not found:
        return None
    columns = [
        Column("The paper's claim"), Column("Paper"), Column("Its own tables"), Column("by its tables"),
        Column("Networks trained here"), Column("by our networks"),
    ]  # fmt: skip
    rows: list[Row] = [
        tuple(text.replace(" -", " −").replace("-", "−", text.startswith("-")) for text in one) for one in found
    ]
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
    audit: dict[str, Finding] = {one.claim: one for one in audit_tables()}
    checked = [*(_over_rivals(sets, column, audit) for column in COLUMNS), _on_pictures(sets)]
    checked += [_over_msp(sets, column, audit) for column in COLUMNS]
    return [*checked, _exceptions(sets, audit), _order(sets, audit), _whatever_the_stream(sets)]


def holds(gain: float, claimed: float) -> bool:
    """Whether a gain has the claimed sign and enough of the claimed size.

    Examples
    --------
    >>> holds(-0.17, -0.33), holds(-0.27, -0.33), holds(0.5, -0.33)
    (False, True, False)
    """
    return gain / claimed >= SIZE


def value(one: ReportedRun, column: str, method: str) -> float | None:
    """A method's average on one in-distribution set."""
    average = one.average(METRIC_OF[column], method)
    return None if average is None else average.mean


def _mean(numbers: Sequence[float | None]) -> float | None:
    """Over the in-distribution sets; None if the method lacks one."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known and len(known) == len(numbers) else None


def _best_rival(of: Callable[[str], float | None], rivals: Sequence[str], column: str) -> tuple[str, float] | None:
    known = [(rival, number) for rival in rivals if (number := of(rival)) is not None]
    return best(known, column) if known else None


def _gain(of: Callable[[str], float | None], rivals: Sequence[str], column: str) -> tuple[float, str] | None:
    """The relative gain over the best rival, and which it is."""
    ours, rival = of(OURS), _best_rival(of, rivals, column)
    return None if ours is None or rival is None else (relative_change(ours, rival[1]), rival[0])


def _over_rivals(sets: Sequence[ReportedRun], column: str, audit: dict[str, Finding]) -> Claim:
    """The gain over the best of the paper's rivals, means over the in-distribution sets."""
    claim, claimed = claim_over_rivals(column), list(GAINS_OVER_RIVALS.values())[COLUMNS.index(column)]
    found = audit[claim]
    recomputed = percent(found.details[0]["against_best_average"])
    gain = _gain(lambda method: _mean([value(one, column, method) for one in sets]), (*RIVALS, ALL_LAYERS), column)
    paper = _gain(lambda method: _mean([one.published(METRIC_OF[column], method) for one in sets]), RIVALS, column)
    if paper is not None:
        recomputed += f"; {percent(paper[0])} over the same sets"
    if gain is None:
        return Claim(claim, percent(claimed), recomputed, found.verdict, "methods are missing", UNCHECKED)
    ours = f"{percent(gain[0])} against {title_of(gain[1])}"
    return Claim(claim, percent(claimed), recomputed, found.verdict, ours, verdict_of(holds(gain[0], claimed)))


def _on_pictures(sets: Sequence[ReportedRun]) -> Claim:
    """The same AUROC gain without noise among the OoD sets; the paper claims nothing about it."""
    pictures = {one.title: [name for name in one.shared if name not in NOISE] for one in sets}

    def here(method: str) -> float | None:
        found = [one.board.average("auroc", method, pictures[one.title]) for one in sets]
        return _mean([None if average is None else average.mean for average in found])

    def there(method: str) -> float | None:
        found = [one.beside.value("auroc", method, name) for one in sets for name in pictures[one.title]]
        return _mean([None if printed is None else printed.mean for printed in found])

    ours, theirs = _gain(here, (*RIVALS, ALL_LAYERS), "AUROC"), _gain(there, RIVALS, "AUROC")
    shown = ["–" if gain is None else f"{percent(gain[0])} against {title_of(gain[1])}" for gain in (theirs, ours)]
    claim = "AUROC gain over previous methods on pictures alone, without noise."
    return Claim(claim, "–", shown[0], NO_CLAIM, shown[1], NO_CLAIM)


def _over_msp(sets: Sequence[ReportedRun], column: str, audit: dict[str, Finding]) -> Claim:
    """The gain over plain MSP: the mean of the sets' ratios, as the paper has it."""
    claimed = list(GAINS_OVER_MSP.values())[COLUMNS.index(column)]
    found = audit[claim_over_msp()]
    recomputed = percent(found.details[COLUMNS.index(column)]["mean_of_ratios"], 1)
    claim = f"{percent(claimed, 0)} in {column} over plain MSP."
    pairs = [(value(one, column, OURS), value(one, column, PLAIN)) for one in sets]
    ratios = [relative_change(a, b) for a, b in pairs if a is not None and b is not None]
    if len(ratios) < len(sets):
        return Claim(claim, percent(claimed, 0), recomputed, found.verdict, "methods are missing", UNCHECKED)
    gain = fmean(ratios)
    ours = percent(gain, 1)
    return Claim(claim, percent(claimed, 0), recomputed, found.verdict, ours, verdict_of(holds(gain, claimed)))


def _exceptions(sets: Sequence[ReportedRun], audit: dict[str, Finding]) -> Claim:
    """Where norm-scaling does worse than plain MSP."""
    found, worse = audit[EXCEPTION_CLAIM], []
    for column in COLUMNS:
        for one in sets:
            ours, plain = value(one, column, OURS), value(one, column, PLAIN)
            if ours is None or plain is None:
                return _lacking(EXCEPTION_CLAIM, "1 cell worse", found)
            if better(plain, ours, column):
                worse.append((one.in_set, column, f"{column} on {one.title}"))
    named = {cell[:2] for cell in worse} <= {("svhn", "AUROC")}
    text = _cells([text for *_, text in worse], len(COLUMNS) * len(sets), "worse")
    return Claim(EXCEPTION_CLAIM, "1 cell worse", found.reason, found.verdict, text, verdict_of(named))


def _order(sets: Sequence[ReportedRun], audit: dict[str, Finding]) -> Claim:
    """Where, outside SVHN, multi-threshold does not lie between plain MSP and norm-scaling."""
    found, wrong = audit[ORDER_CLAIM], []
    others = [one for one in sets if one.in_set != "svhn"]
    for column in COLUMNS:
        for one in others:
            plain, many, ours = (value(one, column, method) for method in (PLAIN, PER_CLASS, OURS))
            if plain is None or many is None or ours is None:
                return _lacking(ORDER_CLAIM, "no other order", found)
            if not (better(many, plain, column) and better(ours, many, column)):
                wrong.append(f"{column} on {one.title}")
    if not others:
        return Claim(ORDER_CLAIM, "no other order", found.recomputed, found.verdict, "SVHN alone", UNCHECKED)
    text = _cells(wrong, len(COLUMNS) * len(others), "in another order")
    n_wrong = f"{len(found.details)} of {3 * len(COLUMNS)} cells in another order"
    return Claim(ORDER_CLAIM, "no other order", n_wrong, found.verdict, text, verdict_of(not wrong))


def _whatever_the_stream(sets: Sequence[ReportedRun]) -> Claim:
    """What is left of the gain over MSP when the statistics stay those of training."""
    pairs = [[value(one, "AUROC", method) for method in (PLAIN, FROZEN, OURS)] for one in sets]
    plain, frozen, ours = (_mean([pair[place] for pair in pairs]) for place in range(3))
    if plain is None or frozen is None or ours is None:
        return Claim(SHARE_CLAIM, "–", "–", UNCHECKED, "methods are missing", UNCHECKED)
    running, still = ours - plain, frozen - plain
    text = f"AUROC over plain MSP: {running:+.3f} running, {still:+.3f} frozen".replace("-", "−")
    return Claim(SHARE_CLAIM, "–", "–", UNCHECKED, text, verdict_of(running <= 0 or still >= KEPT * running))


def _lacking(claim: str, paper: str, found: Finding) -> Claim:
    return Claim(claim, paper, found.reason, found.verdict, "methods are missing", UNCHECKED)


def _cells(named: Sequence[str], total: int, what: str) -> str:
    return f"{len(named)} of {total} cells {what}" + (f": {', '.join(named)}" if named else "")
