"""A report on anybody's outputs: a comparison of two tables written as a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np

from normscale.bench.experiments.measurement import Measurement, ScoredPair
from normscale.bench.experiments.measuring import Measured
from normscale.bench.experiments.methods import known_method, unique_name
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder, check_names, file_form
from normscale.bench.network_folder import write_document
from normscale.bench.report.writing import report
from normscale.detectors.base import Setting
from normscale.detectors.registry import DEFAULT
from normscale.errors import InvalidInput
from normscale.outputs import LOGITS, ModelOutputs
from normscale.rows import write_table

PLAN = "eval"
DRAWN_ROWS = 20_000
"""Rows of a set that are kept to draw its logits; scores are kept of all."""
WORK = 2_000_000_000
"""Rows that resampling may look at in all: large tables are resampled less often."""


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
    resamples: int | None = None,
) -> Path:
    """Write a report about a comparison of detectors on somebody's own outputs, and return the path of its page.

    Parameters
    ----------
    folder : path
        It becomes a run that ``normscale report`` can read; a run of a benchmark that is there is refused.
    measured : sequence of Measured
        What :func:`normscale.compare` gave to ``keep``. A record without numbers is left out.
    train : ModelOutputs, optional
        With it, confidences and calibration are also drawn of norm-scaled logits.
    sources : mapping of str to str, optional
        Where each OoD set came from.
    resamples : int, optional
        By default 1000, and fewer for more than some 100 000 rows.
    """
    cells = _uniquely_named(measured)
    if not cells:
        raise InvalidInput("no method could be measured, so there is nothing to report.")
    aurocs: dict[str, list[float]] = {}
    for record, _ in cells:
        aurocs.setdefault(record.method, []).append(record.auroc)
    methods = tuple(sorted(aurocs, key=lambda name: -fmean(aurocs[name])))
    ood = {name: (sources or {}).get(name, name) for name in ood_sets}
    plan = Plan(PLAN, id_name, ood, "", recipe="", seeds=(0,), methods=methods, subject=DEFAULT, trained_on=id_name)
    run = _make_run(Path(folder), plan, command)
    for record, scores in cells:
        run.save_cell(record._replace(in_set=run.plan.in_set), scores)
    _keep_some_rows(run, {"test": id_test, **ood_sets} | ({} if train is None else {"train": train}))
    if resamples is None:
        rows = max(len(id_test) + len(ood) for ood in ood_sets.values()) * len(cells)
        resamples = int(np.clip(WORK // rows, 100, 1000))
    return report(run.path, figures=figures, resamples=resamples)


def _uniquely_named(measured: Sequence[Measured]) -> list[tuple[Measurement, ScoredPair]]:
    """The records that have numbers, under names that are unique in the run and as names of files."""
    called: dict[str, str] = {}
    cells: dict[tuple[str, str], tuple[Measurement, ScoredPair]] = {}
    for record, scores in measured:
        if scores is None or record.skipped:
            continue
        given = _name_in_setting(record)
        if given not in called:
            called[given] = unique_name(given, called.values(), file_form)
        name = unique_name(called[given], [one for one, ood_set in cells if ood_set == record.ood_set])
        cells[name, record.ood_set] = record._replace(method=name, seed=0), scores
    return list(cells.values())


def _name_in_setting(record: Measurement) -> str:
    known = known_method(record.method)
    if record.setting == (Setting.FROZEN if known is None else known.setting):
        return record.method
    return f"{record.method}_frozen" if record.setting == Setting.FROZEN else f"{record.method} {record.setting}"


def _make_run(folder: Path, plan: Plan, command: str) -> RunFolder:
    if (folder / "settings.json").exists() and RunFolder.open(folder).plan.name != PLAN:
        raise InvalidInput(f"{folder} holds the run of a benchmark; write the report to another folder.")
    check_names(plan)  # before anything of an old report is gone
    for old in folder.glob("cells/seed0/*/*.safetensors") if folder.is_dir() else ():
        old.unlink()  # of the last report in this folder, whose tables may have been others
    (folder / "settings.json").unlink(missing_ok=True)
    return RunFolder.create(folder, plan, command)


def _keep_some_rows(run: RunFolder, sets: Mapping[str, ModelOutputs]) -> None:
    """Keep the accuracy, and rows for the figures of logits: the page needs no more of what may be large tables."""
    network, id_test = run.network(0), sets["test"]
    network.make()
    network.outputs("train").unlink(missing_ok=True)
    known = id_test.labels is not None and (id_test.labels >= 0).any() and id_test.get(LOGITS) is not None
    write_document(network.result, {"test_accuracy": id_test.accuracy if known else None, "log": []})
    rng = np.random.default_rng(0)
    for name, outputs in sets.items():
        if outputs.get(LOGITS) is not None:
            rows = np.sort(rng.permutation(len(outputs))[:DRAWN_ROWS])
            write_table(network.outputs(name), outputs.only(LOGITS).replace(head=None)[rows])
