"""``normscale eval``: how well detectors tell two tables of logits apart."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import typer

from normscale._progress import Bar, bar
from normscale.cli._completion import complete_detector
from normscale.cli._eval_printing import PRINTERS, Format, check_output, write_rows
from normscale.cli._inputs import PROBABILITIES_HELP, Input, OnInvalid, input_named, note
from normscale.cli._many_files import (
    AddressOption,
    DryRunOption,
    EngineName,
    ManyFiles,
    PieceRowsOption,
    WorkersOption,
    evaluate_many,
)
from normscale.detectors.base import Detector, Setting
from normscale.detectors.choosing import AUTO, choose_detector
from normscale.detectors.registry import load_detector, make_detector
from normscale.errors import InvalidInput, MissingExtra
from normscale.experiments.comparison import compare
from normscale.experiments.measurement import Measurement
from normscale.experiments.measuring import Measured, rows_to_score
from normscale.experiments.methods import Method, uniquely_named
from normscale.experiments.run_folder import OWN_SETS
from normscale.input_checks.class_order import shared_names
from normscale.input_checks.row_sketch import RowSketch
from normscale.outputs import FEATURES, LOGITS, ModelOutputs

EXAMPLE = (
    "Example: [bold]normscale eval --train sample:train --id sample:test --ood sample:unseen_digits "
    "--ood sample:photo_patches --report out[/bold]"
)
SWAPPED = 0.4
"""If most detectors have a lower AUROC than that, the two sides are probably swapped."""


def evaluate(
    id_tables: Annotated[
        list[str],
        typer.Option("--id", metavar="TABLE", help="Outputs on in-distribution test inputs; may be repeated."),
    ],
    ood_tables: Annotated[
        list[str],
        typer.Option(
            "--ood",
            metavar="[NAME=]TABLE",
            help="Outputs on OoD inputs; NAME=PATH names the set; repeated, further sets. "
            "Several files of one set: a folder or a glob.",
        ),
    ],
    train: Annotated[
        list[str] | None,
        typer.Option(metavar="TABLE", help="Outputs on the training set, to fit detectors on; may be repeated."),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TABLE", help="Labelled held-out outputs, for detectors fitted on these; may be repeated."
        ),
    ] = None,
    saved: Annotated[
        list[str] | None, typer.Option(metavar="DETECTOR", help="A detector file to compare; may be repeated.")
    ] = None,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="NAME",
            autocompletion=complete_detector,
            help="Only these detectors; may be repeated; default: all that can run. auto: what `fit -d auto` chooses.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Order of the shuffled streams.")] = 0,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the results.")] = Format.TABLE,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the rows here: .csv, .json or .jsonl.")
    ] = None,
    report: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Write a page with tables (.md .tex .csv), intervals and figures into this folder."
        ),
    ] = None,
    figures: Annotated[bool, typer.Option(help="With --report: draw figures (needs matplotlib).")] = True,
    probabilities: Annotated[bool, typer.Option("--probabilities", help=PROBABILITIES_HELP)] = False,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="For tables larger than memory: processes on this machine (local), or a Ray cluster."),
    ] = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
    on_invalid: Annotated[
        OnInvalid, typer.Option(help="A row with NaN or infinity: stop, or leave it out.")
    ] = OnInvalid.RAISE,
    scores: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="With --engine: keep the scores here; all machines must see it."),
    ] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Compare detectors: AUROC, AUPR and FPR95 on every OoD set, with the positive class named.

    With --engine tables may be larger than memory: the detectors named are compared as fitted, exactly.
    """
    if output is not None:
        check_output(output)
    detectors: list[Detector] = [load_detector(path) for path in saved or []]
    auto = AUTO in (detector or [])
    asked = [make_detector(name) for name in detector or [] if name != AUTO]
    many = ManyFiles(engine, workers, address, piece_rows, dry_run)
    on_engine = engine is not None or address is not None or dry_run
    if auto and (not train or on_engine):
        raise InvalidInput(
            "-d auto chooses a detector for the rows of --train, in one table: give --train, without --engine."
        )
    if on_engine:
        if probabilities or report is not None:
            raise InvalidInput("--probabilities and --report go without --engine.")
        named: dict[str, str] = {}
        for item in ood_tables:
            name, path = input_named(item, named)
            named[name] = path
        fit_paths = {"train": train or [], "validation": validation or []}
        many.wanted([*id_tables, *named.values(), *fit_paths["train"], *fit_paths["validation"]])
        found = evaluate_many(
            id_tables,
            named,
            fit_paths,
            _named(saved or [], detectors, asked),
            many,
            on_invalid=on_invalid,
            scores=scores,
            seed=seed,
        )
        if found is not None:
            _show(found, format, output)
        return
    if scores is not None:
        raise InvalidInput("--scores goes with --engine.")
    names = shared_names((path, one.class_names) for path, one in zip(saved or [], detectors, strict=True))
    tables = _Tables([*detectors, *asked], names, probabilities, on_invalid, with_features=auto)
    train_outputs = tables.read(train, check_labels=True) if train else None
    if auto and train_outputs is not None:
        choice = choose_detector(train_outputs)
        asked.append(choice.detector)
        note(f"auto: {choice.detector.name}, because {choice.reason}")
    id_test = tables.read(id_tables, check_labels=True)
    validation_outputs = tables.read(validation, check_labels=True) if validation else None
    ood_sets: dict[str, ModelOutputs] = {}
    for item in ood_tables:
        name, path = input_named(item, [*ood_sets, *(OWN_SETS if report is not None else ())])
        ood_sets[name] = tables.read(path)
    _warn_of_shared_rows(id_tables[0], id_test, train[0] if train else None, train_outputs, ood_sets)
    kept: list[Measured] = []
    with bar("comparing", None) as line:
        rows = compare(
            id_test,
            ood_sets,
            train=train_outputs,
            validation=validation_outputs,
            detectors=_named(saved or [], detectors, asked) or None,
            seed=seed,
            begin=lambda methods: _begin(line, methods, id_test, ood_sets),
            advance=lambda n, what: line.advance(n, doing=f"comparing on {what}"),
            keep=kept.append if report is not None else lambda _: None,
        )
    _show(rows, format, output)
    if report is not None:
        _write_report(report, kept, id_tables[0], id_test, ood_tables, ood_sets, figures)


def _show(rows: list[Measurement], format: Format, output: str | None) -> None:
    """Print the rows, say what looks wrong about them, and write them to a file if one was named."""
    PRINTERS[format](rows)
    _warn_of_swapped_sides(rows)
    for reason in dict.fromkeys(row.skipped for row in rows if row.skipped and format is not Format.TABLE):
        note(reason)
    if output is not None:
        write_rows(rows, output)
        typer.echo(f"written: {output}", err=True)


def _named(paths: Sequence[str], saved: Sequence[Detector], asked: Sequence[Detector]) -> dict[str, Detector]:
    """Detectors by name; one of several of a kind that comes from a file has the file's name."""
    times = Counter(one.name for one in (*saved, *asked))
    stems = [os.path.splitext(os.path.basename(path))[0] for path in paths]
    named = [(stem if times[one.name] > 1 else one.name, one) for stem, one in zip(stems, saved, strict=True)]
    return uniquely_named([*named, *((one.name, one) for one in asked)])


class _Tables:
    """Reads every table with the arrays that some detector needs, and with the classes of the first that names any."""

    def __init__(
        self,
        chosen: Sequence[Detector],
        class_names: tuple[str, ...] | None,
        probabilities: bool,
        on_invalid: OnInvalid,
        *,
        with_features: bool = False,
    ) -> None:
        reads = [name for one in chosen for name in (*one.reads, *one.reads_in_fit)]
        reads += [FEATURES] * with_features
        self._arrays = [*reads, LOGITS] if chosen or with_features else None
        self._class_names = class_names
        self._probabilities, self._skip_invalid = probabilities, on_invalid is OnInvalid.SKIP

    def read(self, path: str | Sequence[str], *, check_labels: bool = False) -> ModelOutputs:
        source = Input(
            path,
            self._arrays,
            class_names=self._class_names,
            probabilities=self._probabilities,
            check_labels=check_labels,
            skip_invalid=self._skip_invalid,
        )
        outputs = source.read()
        self._class_names = self._class_names or source.class_names
        return outputs


def _begin(line: Bar, methods: list[Method], id_test: ModelOutputs, ood_sets: dict[str, ModelOutputs]) -> None:
    line.total(rows_to_score(methods, len(id_test), [len(ood) for ood in ood_sets.values()]))


def _warn_of_shared_rows(
    id_table: str,
    id_test: ModelOutputs,
    train: str | None,
    train_outputs: ModelOutputs | None,
    ood_sets: dict[str, ModelOutputs],
) -> None:
    """Say so where the test set holds training rows, or an OoD set holds rows of the test set."""
    own = _sketch(id_test)
    if train is not None and train_outputs is not None:
        share = _sketch(train_outputs).share_of(own)
        if share is not None and share > 0.5:
            note(
                f"{100 * share:.0f} % of the rows of {id_table} are also in {train}. The classifier is surer of what "
                "it was trained on, so every detector looks better here than on new inputs."
            )
    for name, ood in ood_sets.items():
        share = own.share_of(_sketch(ood))
        if share is not None and share > 0.5:
            note(f"{100 * share:.0f} % of the rows of {name} are also in {id_table}, which should be in-distribution.")


def _sketch(outputs: ModelOutputs) -> RowSketch:
    sketch = RowSketch()
    sketch.take_in(outputs.array(outputs.names[0]))
    return sketch


def _warn_of_swapped_sides(rows: list[Measurement]) -> None:
    """Say so where most detectors take one side for the other; of many, a few are wrong about any set."""
    for name in dict.fromkeys(row.ood_set for row in rows):
        frozen = [row for row in rows if row.ood_set == name and row.setting == Setting.FROZEN and not row.skipped]
        found = sorted(row.auroc for row in frozen)
        if found and (middle := found[len(found) // 2]) < SWAPPED:  # the upper median: of two, both must be low
            most = sum(auroc <= middle for auroc in found)
            note(
                f"{most} of {len(found)} detectors as fitted have an AUROC of {middle:.3f} or less on {name}, far "
                "below 0.5: the inputs of --id look stranger than those of --ood. Are the two swapped?"
            )


def _write_report(
    folder: str,
    kept: list[Measured],
    id_table: str,
    id_test: ModelOutputs,
    ood_tables: list[str],
    ood_sets: dict[str, ModelOutputs],
    figures: bool,
) -> None:
    from normscale.report.own_outputs import report_on

    try:
        page = report_on(
            folder,
            kept,
            id_test,
            ood_sets,
            id_name=os.path.splitext(os.path.basename(id_table.removeprefix("sample:")))[0],
            sources=dict(input_named(item, {}) for item in ood_tables),
            command=" ".join(["normscale", *sys.argv[1:]]),
            figures=figures,
        )
    except MissingExtra:
        raise
    except OSError as error:
        raise InvalidInput(f"--report cannot write to {folder!r}: {error}.") from error
    inside = [os.path.join(folder, name) for name in ("tables", *(["figures"] if figures else []))]
    typer.echo(f"written: {page}, {' and '.join(inside)}", err=True)
