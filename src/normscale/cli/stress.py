"""``normscale stress``: on which streams running statistics may be trusted, for the user's own logits."""

from __future__ import annotations

import csv
import math
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscale import jobs
from normscale._progress import bar
from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.bench.experiments.methods import fit_on
from normscale.bench.experiments.stress import StressPreset, steps, stress_preset
from normscale.bench.experiments.stress_result import StressNumbers, StressResult
from normscale.bench.experiments.stress_summary import RECOMMENDED, RULE, TOLERANCE, summarise
from normscale.bench.paper.stress_presets import FROZEN, GAIN, RIVALS, RUNNING, STATICS, STRESS_PRESETS
from normscale.cli._eval_printing import Format
from normscale.cli._options import DETECTOR_HELP, ProbabilitiesOption, complete_detector, note
from normscale.detectors.base import Detector
from normscale.detectors.registry import load_detector, make_detector
from normscale.encoding.json_text import write_json
from normscale.errors import InvalidInput, MissingExtra
from normscale.input_checks.tables import shared_names
from normscale.outputs import ModelOutputs
from normscale.rows import check_folder

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLE = (
    "Example: [bold]normscale stress --train sample:train --id sample:test --ood sample:unseen_digits "
    "--picture map.png[/bold]; without tables it runs on these."
)
SAMPLE = (["sample:train"], ["sample:test"], ["sample:unseen_digits"])


class Preset(StrEnum):
    """Which streams and which detectors."""

    OWN = "own"
    PAPER = "paper"
    ROBUST = "robust"


def command(
    id_table: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="TABLE", help="Outputs on in-distribution test inputs; may be repeated."),
    ] = None,
    ood_tables: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            metavar="[NAME=]TABLE",
            help="Outputs on OoD inputs; NAME=PATH names the set; repeated, further sets. "
            "Several files of one set: a folder or a glob.",
        ),
    ] = None,
    train: Annotated[
        list[str] | None, typer.Option(metavar="TABLE", help="Outputs on the training set; may be repeated.")
    ] = None,
    detector: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="NAME",
            autocompletion=complete_detector,
            help=f"Measure and weigh this one, too: a detector file, or {DETECTOR_HELP} May be repeated.",
        ),
    ] = None,
    preset: Annotated[
        Preset,
        typer.Option(
            help="own: what to use, stream-aware detectors among it; paper: all prior weights and scores; "
            "robust: harder streams, a few detectors."
        ),
    ] = Preset.OWN,
    seed: Annotated[int, typer.Option(min=0, help="Draws rows, orders, and dominant or missing classes.")] = 0,
    format: Annotated[
        Format, typer.Option("--format", "-f", help="A summary with verdicts, or every row.")
    ] = Format.TABLE,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write every row to this .json file.")] = None,
    picture: Annotated[str | None, typer.Option(help="Draw a map: .png, .svg or .pdf.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the work.")] = 1,
    probabilities: ProbabilitiesOption = False,
) -> None:
    """Measure running statistics on streams of many kinds (OoD share, order, class balance) and say what to use.

    Streams are drawn from all rows, so several files are read into one place, by this process.
    """
    for path in (output, picture):
        if path is not None:
            check_folder(path)
    if output is not None and not output.endswith(".json"):
        raise InvalidInput(f"--output must end in .json; got {output!r}.")
    if picture is not None:
        try:
            from normscale.bench.report.figures.stress_map import check_suffix, save_stress_map
        except ImportError as error:
            raise MissingExtra(f"--picture needs matplotlib ({error}). Run: pip install 'normscale[report]'") from error
        check_suffix(picture)
    detectors = {name: _detector(name) for name in detector or []}
    names = shared_names((name, one.class_names) for name, one in detectors.items())
    train_path, id_path, ood_paths = _tables(train, id_table, ood_tables)
    read = []
    for paths in (train_path, id_path):
        source = jobs.RowSource(paths, class_names=names, probabilities=probabilities)
        read.append(jobs.read(source, check_labels=True, say=note))
        names = names or source.layout.class_names
    train_outputs, id_test = read
    ood_sets = jobs.read_named(ood_paths, class_names=names, probabilities=probabilities, say=note)
    shared = [name for name in train_outputs.names if all(name in one.names for one in (id_test, *ood_sets.values()))]
    chosen = _with_detectors(STRESS_PRESETS[preset], detectors)
    with bar("streams", steps(chosen.grid, len(ood_sets))) as line:
        result = stress_preset(
            chosen,
            train_outputs.only(*shared),
            id_test,
            ood_sets,
            seed=seed,
            threads=threads,
            tick=lambda what: line.advance(doing=what),
        )
    if output is not None:
        result.save(output)
    if picture is not None:
        save_stress_map(result, picture)
    if format is Format.TABLE:
        print_summary(result)
    else:
        (print_csv if format is Format.CSV else print_json)(result)
    for path in (output, picture):
        if path is not None:
            typer.echo(f"written: {path}", err=True)


def _tables(
    train: list[str] | None, id_table: list[str] | None, ood: list[str] | None
) -> tuple[list[str], list[str], list[str]]:
    """The tables to read: the sample's if none is given, and all three kinds otherwise."""
    given = {"--train": train, "--id": id_table, "--ood": ood}
    if not any(given.values()):
        train_path, id_path, ood_paths = SAMPLE
        typer.echo(
            f"no tables given: this is the sample (--train {train_path[0]} --id {id_path[0]} --ood {ood_paths[0]})",
            err=True,
        )
        return SAMPLE
    if not train or not id_table or not ood:
        missing = " and ".join(name for name, value in given.items() if not value)
        raise InvalidInput(f"{missing} missing: stress needs --train, --id and --ood, or none of them for the sample.")
    return train, id_table, ood


def _with_detectors(preset: StressPreset, detectors: dict[str, Detector]) -> StressPreset:
    """The preset with detectors that a person named."""

    def fit(train: ModelOutputs) -> dict[str, Detector]:
        methods = preset.fit(train)
        return methods | {name: fit_on(one, train, None) for name, one in detectors.items() if name not in methods}

    return preset._replace(fit=fit) if detectors else preset


def _detector(name: str) -> Detector:
    return load_detector(name) if name.endswith(".safetensors") else make_detector(name)


def print_summary(result: StressResult) -> None:
    """A line for each balance and order, a column for each share, then a line with a verdict for each method."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    _print_cells(console, result)
    if result.means():
        _print_methods(console, result)
    for reason, number in result.skipped().items():
        console.print(f"{number} streams could not be made: {reason}")
    for method, why in result.incomplete().items():
        console.print(f"left out: {method}: {why}")


def _print_cells(console: Console, result: StressResult) -> None:
    from rich.table import Table

    means = result.means()
    sets = result.ood_sets
    what = sets[0] if len(sets) == 1 else f"mean of {len(sets)} OoD sets"
    console.print(f"[bold]{what}[/bold]: AUROC/FPR95 (in %), OoD positive, by share of OoD rows in the stream\n")
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for share in result.shares:
        table.add_column(f"{100 * share:g} %", justify="right", no_wrap=True)
    for balance in result.balances:
        table.add_row(f"[bold]{balance}[/bold]")
        columns = [means.get(StreamKind(share, result.orders[0], balance)) for share in result.shares]
        table.add_row(
            "  best rival", *(_cell(None if numbers is None else _best_rival(numbers)) for numbers in columns)
        )
        table.add_row("  frozen", *(_cell(None if numbers is None else numbers[FROZEN]) for numbers in columns))
        for order in result.orders:
            here = [means.get(StreamKind(share, order, balance)) for share in result.shares]
            table.add_row(f"  running, {order}", *(_running_cell(numbers) for numbers in here))
    console.print(table)
    console.print(
        f"\nrunning: {RUNNING}, the paper's; frozen: the same with the training statistics; best rival: the best of "
        f"{', '.join(RIVALS)}. The order matters to running statistics only. [green]Green[/green], [red]red[/red]: "
        f"more than {TOLERANCE:g} above, below the better of frozen and best rival; -: too few rows."
    )


def _best_rival(numbers: dict[str, StressNumbers]) -> StressNumbers:
    return max(numbers[name] for name in RIVALS)


def _running_cell(numbers: dict[str, StressNumbers] | None) -> str:
    if numbers is None:
        return "-"
    difference = numbers[RUNNING].auroc - max(numbers[FROZEN].auroc, _best_rival(numbers).auroc)
    text = _cell(numbers[RUNNING])
    colour = "green" if difference > TOLERANCE else "red" if difference < -TOLERANCE else None
    return f"[{colour}]{text}[/{colour}]" if colour else text


def _cell(numbers: StressNumbers | None) -> str:
    if numbers is None:
        return "-"
    return f"{numbers.auroc:.3f}".removeprefix("0") + f"/{100 * numbers.fpr95_out:.0f}"


def _print_methods(console: Console, result: StressResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    headings = ("method", "mean\nAUROC", "mean\nFPR95", "worst against\nbest static", "streams\nbelow", "gain\nkept")
    for heading in (*headings, "verdict"):
        left = heading in ("method", "verdict")
        table.add_column(heading, justify="left" if left else "right", vertical="bottom", no_wrap=not left)
    summaries = summarise(result, [name for name in STATICS if name in result.methods] or None, gain=GAIN)
    for one in summaries:
        kept = "-" if math.isnan(one.gain_kept) else f"{one.gain_kept:.2f}"
        numbers = (
            f"{one.mean_auroc:.3f}",
            f"{one.mean_fpr95_out:.3f}",
            f"{one.worst:+.3f}",
            f"{one.kinds_below}",
            kept,
        )
        table.add_row(one.method, *numbers, one.verdict, style="bold" if one.verdict == RECOMMENDED else None)
    console.print()
    console.print(table)
    console.print(
        f"\n{summaries[0].n_kinds} kinds of streams. Worst, streams below: AUROC against the best method without "
        f"running statistics in the same stream, and how often it is more than {TOLERANCE:g} under it. "
        "Gain kept: AUROC gain over Energy in balanced, shuffled streams of 50 % OoD, as a share of running "
        f"norm-scaling's. {RULE}"
    )


def print_csv(result: StressResult) -> None:
    """One line per row; *_out: OoD is positive, *_in: in-distribution is."""
    records = [
        {**record, "classes": " ".join(map(str, row.classes)), "parameters": write_json(record["parameters"])}
        for row, record in ((row, _record(row)) for row in result.rows)
    ]
    writer = csv.DictWriter(sys.stdout, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)


def print_json(result: StressResult) -> None:
    """One JSON object per line, with the version and what is positive."""
    for row in result.rows:
        record = {**_record(row), "positive": "OoD for *_out, in-distribution for *_in", "version": result.version}
        typer.echo(write_json(record))


def _record(row: Measurement) -> dict[str, Any]:
    assert row.stream is not None  # every row of a grid has one
    return {
        "ood_set": row.ood_set,
        **row.stream._asdict(),
        "classes": row.classes,
        "method": row.method,
        "setting": str(row.setting),
        "parameters": row.parameters,
        **(dict.fromkeys(row.metrics) if row.skipped else row.metrics),
        "n_id": row.n_id,
        "n_ood": row.n_ood,
        "draws": row.draws,
        "seed": row.seed,
        "skipped": row.skipped,
    }
