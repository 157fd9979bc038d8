"""A report on anybody's outputs: a comparison of two tables written as a run, with an interval for every AUROC."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.measuring import Measured
from normscale.bench.experiments.methods import find_method, title_of, unique_name
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder, check_names, file_form, write_document
from normscale.bench.experiments.scored_pair import ScoredPair
from normscale.bench.report.runs import ReportedRun
from normscale.bench.report.table import Column, ReportTable, Row, Section
from normscale.bench.report.writing import Additions, report
from normscale.detectors.base import Setting
from normscale.detectors.registry import DEFAULT
from normscale.errors import InvalidInput, NormscaleError
from normscale.metrics.intervals import delong_interval
from normscale.outputs import LOGITS, ModelOutputs
from normscale.rows import write_table

PLAN = "eval"
DRAWN_ROWS = 20_000
"""Rows of a set that are kept to draw its logits; scores are kept of all."""
WORK = 2_000_000_000
"""Rows that the paired bootstrap may look at in all: large tables are resampled less often."""


def report_on(
    folder: str | os.PathLike[str],
    measured: Sequence[Measured],
    id_test: ModelOutputs,
    ood_sets: Mapping[str, ModelOutputs],
    *,
    train: ModelOutputs | None = None,
    id_name: str = "test",
    sources: Mapping[str, str] | None = None,
    command: str = "",
    figures: bool = True,
    pdf: bool = False,
    resamples: int | None = None,
) -> Path:
    """Write a page, tables (.md .tex .csv) and figures about a comparison of detectors on somebody's own outputs.

    Parameters
    ----------
    folder : path
        It becomes a run that ``normscale report`` can read; a run of a benchmark that is there is refused.
    measured : sequence of Measured
        What :func:`normscale.compare` gave to ``keep``. A record without numbers is left out.
    id_test, ood_sets : ModelOutputs, mapping of name to ModelOutputs
    train : ModelOutputs, optional
        With it, confidences and calibration are also drawn of norm-scaled logits.
    id_name : str
        What the in-distribution set is called.
    sources : mapping of str to str, optional
        Where each OoD set came from.
    command : str
        What made it, for the page.
    figures, pdf : bool
        As in :func:`normscale.report`.
    resamples : int, optional
        Of the paired bootstrap; by default 1000, and fewer for more than some 100 000 rows.

    Returns
    -------
    Path
        Of the page.
    """
    found = _uniquely_named(measured)
    if not found:
        raise InvalidInput("no method could be measured, so there is nothing to report.")
    run = _make_run(Path(folder), [record for record, _ in found], id_name, ood_sets, sources or {}, command)
    for record, scores in found:
        run.save_cell(record._replace(in_set=run.plan.in_set), scores)
    _keep_some_rows(run, {"test": id_test, **ood_sets} | ({} if train is None else {"train": train}))
    if resamples is None:
        rows = max(len(id_test) + len(ood) for ood in ood_sets.values()) * len(found)
        resamples = int(np.clip(WORK // rows, 100, 1000))
    intervals = interval_table(found)

    def tables(runs: Sequence[ReportedRun]) -> list[ReportTable]:
        return [intervals]

    return report(run.path, additions=Additions(tables=tables), figures=figures, pdf=pdf, resamples=resamples)


def interval_table(found: Sequence[tuple[Measurement, ScoredPair]], level: float = 0.95) -> ReportTable:
    """AUROC of every method on every OoD set with its interval (DeLong, DeLong & Clarke-Pearson 1988).

    A mean over predicted classes is no single ranking, and has no such interval.
    """
    sections: dict[str, list[Row]] = {}
    for record, scores in found:
        low = high = None
        if scores.id_predicted is None and min(record.n_id, record.n_ood) > 1:
            interval = delong_interval(scores.id_scores, scores.ood_scores, level=level)
            low, high = interval.low, interval.high
        row = (title_of(record.method), record.auroc, low, high, record.n_id, record.n_ood)
        sections.setdefault(record.ood_set, []).append(row)
    columns = [
        Column("Method"),
        Column("AUROC", "value"),
        Column("from", "value"),
        Column("to", "value"),
        Column("ID rows", "count"),
        Column("OoD rows", "count"),
    ]
    made = [Section(name, sorted(rows, key=lambda row: -float(row[1] or 0.0))) for name, rows in sections.items()]
    notes = [
        f"From, to: the {100 * level:g} % interval of the AUROC on other inputs of the same kind (DeLong). Scores are "
        "taken as they are: another order of the stream, or another training, is not part of it.",
        "Two intervals that overlap say little about which method is better: the paired comparison does, for both "
        "methods saw the same rows.",
    ]
    return ReportTable("intervals", "How sure are these numbers?", columns, made, notes, section_column="OoD set")


def _uniquely_named(measured: Sequence[Measured]) -> list[tuple[Measurement, ScoredPair]]:
    """The records that have numbers, under names that are unique in the run.

    One detector may be measured in several settings, and there may be two detectors of one name, or of names that
    differ only in what the name of a file cannot have.
    """
    called: dict[str, str] = {}
    found: dict[tuple[str, str], tuple[Measurement, ScoredPair]] = {}
    for record, scores in measured:
        if scores is None or record.skipped:
            continue
        given = _name_in_setting(record)
        if given not in called:
            called[given] = unique_name(given, called.values(), file_form)
        name = unique_name(called[given], [one for one, ood_set in found if ood_set == record.ood_set])
        found[name, record.ood_set] = record._replace(method=name, seed=0), scores
    return list(found.values())


def _name_in_setting(record: Measurement) -> str:
    try:
        main = find_method(record.method).setting
    except NormscaleError:  # a name of somebody's own
        main = Setting.FROZEN
    if record.setting == main:
        return record.method
    return f"{record.method}_frozen" if record.setting == Setting.FROZEN else f"{record.method} {record.setting}"


def _make_run(
    folder: Path,
    records: Sequence[Measurement],
    id_name: str,
    ood_sets: Mapping[str, ModelOutputs],
    sources: Mapping[str, str],
    command: str,
) -> RunFolder:
    if (folder / "settings.json").exists() and RunFolder.open(folder).plan.name != PLAN:
        raise InvalidInput(f"{folder} holds the run of a benchmark; write the report to another folder.")
    aurocs: dict[str, list[float]] = {}
    for record in records:
        aurocs.setdefault(record.method, []).append(record.auroc)
    methods = tuple(sorted(aurocs, key=lambda name: -fmean(aurocs[name])))  # the best first
    plan = Plan(
        PLAN,
        id_name,
        {name: sources.get(name, name) for name in ood_sets},
        network="",
        recipe="",
        seeds=(0,),
        methods=methods,
        subject=DEFAULT,
        trained_on=id_name,
    )
    check_names(plan)  # before anything of an old report is gone
    for old in folder.glob("cells/seed0/*/*.safetensors") if folder.is_dir() else ():
        old.unlink()  # of the last report in this folder, whose tables may have been others
    (folder / "settings.json").unlink(missing_ok=True)
    return RunFolder.create(folder, plan, command)


def _keep_some_rows(run: RunFolder, sets: Mapping[str, ModelOutputs]) -> None:
    """The accuracy, and rows for the figures of logits: the page needs no more of what may be large tables."""
    network = run.network(0)
    network.make()
    network.outputs("train").unlink(missing_ok=True)
    accuracy, id_test = None, sets["test"]
    if id_test.labels is not None and (id_test.labels >= 0).any() and id_test.get(LOGITS) is not None:
        accuracy = id_test.accuracy
    write_document(network.result, {"test_accuracy": accuracy, "log": []})
    rng = np.random.default_rng(0)
    for name, outputs in sets.items():
        if outputs.get(LOGITS) is not None:
            rows = np.sort(rng.permutation(len(outputs))[:DRAWN_ROWS])
            write_table(network.outputs(name), outputs.only(LOGITS).replace(head=None)[rows])
