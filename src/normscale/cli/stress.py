"""``normscale stress``: on which streams running statistics may be trusted, for the user's own logits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from normscale import jobs
from normscale._progress import bar
from normscale.bench.experiments.alarms import changed_outputs, changed_pictures
from normscale.bench.experiments.methods import fit_on
from normscale.bench.experiments.stress import OWN_GRID, steps, stress_with_alarms
from normscale.bench.experiments.stress_result import RECOMMENDED, RULE, TOLERANCE, StressResult, summarise
from normscale.bench.paper.line_up import PREFERRED, STATICS, own_methods
from normscale.cli._eval_printing import Format, print_rows
from normscale.cli._options import OodOption, ProbabilitiesOption, complete_detector, note
from normscale.detectors.registry import load_detector, make_detector
from normscale.errors import InvalidInput, MissingExtra
from normscale.rows import check_folder
from normscale.rows.columns import shared_names

EXAMPLE = (
    "Example: [bold]normscale stress --train sample:train --id sample:test --ood sample:unseen_digits "
    "--picture map.png[/bold]; without tables it runs on these."
)
SAMPLE = (["sample:train"], ["sample:test"], ["sample:unseen_digits"])


def command(
    id_table: Annotated[
        list[str] | None,
        typer.Option("--id", metavar="TABLE", help="Outputs on in-distribution test inputs; may be repeated."),
    ] = None,
    ood_tables: OodOption = [],  # noqa: B006 - never changed
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
            help="A detector file or name to measure, too; repeatable.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Draws rows, orders, and dominant or missing classes.")] = 0,
    format: Annotated[
        Format, typer.Option("--format", "-f", help="A summary with verdicts, or every row.")
    ] = Format.TABLE,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Write every row to this .json file.")] = None,
    picture: Annotated[str | None, typer.Option(help="Draw a map: .png, .svg or .pdf.")] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="A network of `train` or `bench`, to corrupt its test pictures.",
        ),
    ] = None,
    pictures: Annotated[
        str, typer.Option(metavar="SOURCE", help="The network's test pictures, if they are not where it was trained.")
    ] = "",
    threads: Annotated[int, typer.Option(min=1, help="Threads that share the work.")] = 1,
    probabilities: ProbabilitiesOption = False,
) -> None:
    """Measure running statistics on streams of many kinds (OoD share, order, class balance) and say what to use.

    Streams are drawn from all rows, so several files are read into one place, by this process.
    """
    written = [path for path in (output, picture) if path is not None]
    for path in written:
        check_folder(path)
    if output is not None and not output.endswith(".json"):
        raise InvalidInput(f"--output must end in .json; got {output!r}.")
    if picture is not None:
        try:
            from normscale.bench.report.figures.stress_map import check_suffix, save_stress_map
        except ImportError as error:
            raise MissingExtra(f"--picture needs matplotlib ({error}). Run: pip install 'normscale[report]'") from error
        check_suffix(picture)
    detectors = {
        name: load_detector(name) if name.endswith(".safetensors") else make_detector(name) for name in detector or []
    }
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
    train_outputs = train_outputs.only(*shared)
    fitted = {name: fit_on(one, train_outputs, None) for name, one in detectors.items()}
    changed = (
        changed_outputs(id_test.only(*shared), seed) if network is None else changed_pictures(Path(network), pictures)
    )
    with bar("streams", steps(OWN_GRID, len(ood_sets))) as line:
        result = stress_with_alarms(
            {**fitted, **own_methods(train_outputs)},
            id_test,
            ood_sets,
            dict(changed),
            notes={"preferred": PREFERRED, "n_train": len(train_outputs)},
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
        print_rows(result.rows, format)
    for path in written:
        typer.echo(f"written: {path}", err=True)


def _tables(
    train: list[str] | None, id_table: list[str] | None, ood: list[str]
) -> tuple[list[str], list[str], list[str]]:
    given = {"--train": train, "--id": id_table, "--ood": ood}
    if not any(given.values()):
        options = " ".join(f"{name} {paths[0]}" for name, paths in zip(given, SAMPLE, strict=True))
        typer.echo(f"no tables given: this is the sample ({options})", err=True)
        return SAMPLE
    if not train or not id_table or not ood:
        missing = " and ".join(name for name, value in given.items() if not value)
        raise InvalidInput(f"{missing} missing: stress needs --train, --id and --ood, or none of them for the sample.")
    return train, id_table, ood


def print_summary(result: StressResult) -> None:
    """A line with means, the worst stream and a verdict for each method."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 110, highlight=False)
    sets = result.ood_sets
    console.print(f"[bold]{sets[0] if len(sets) == 1 else f'mean of {len(sets)} OoD sets'}[/bold]\n")
    if result.means():
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        headings = ["method", "mean\nAUROC", "mean\nFPR95", "worst", "in the stream", "streams\nbelow"]
        headings += ["false\nalarms", "changed\ninputs", "verdict"]
        for heading in headings:
            left = heading in ("method", "in the stream", "verdict")
            no_wrap = heading not in ("in the stream", "verdict")
            table.add_column(heading, justify="left" if left else "right", no_wrap=no_wrap)
        summaries = summarise(result, [name for name in STATICS if name in result.methods] or None)
        for one in summaries:
            kind = f"{100 * one.worst_kind.share:g} % OoD, {one.worst_kind.order}, {one.worst_kind.balance}"
            numbers = f"{one.mean_auroc:.3f}", f"{one.mean_fpr95_out:.3f}", f"{one.worst:+.3f}"
            style = "bold" if one.verdict == RECOMMENDED else None
            alarms = "" if one.false_alarms is None else f"{100 * one.false_alarms:.1f} %"
            change = "" if one.change is None else f"{100 * one.change:+.0f}"
            table.add_row(one.method, *numbers, kind, f"{one.kinds_below}", alarms, change, one.verdict, style=style)
        console.print(table)
        console.print(
            f"\n{summaries[0].n_kinds} kinds of streams; OoD is positive. Worst, streams below: AUROC against the best "
            "method without running statistics in the same stream, and how often it is more than "
            f"{TOLERANCE:g} under it. False alarms: the largest share flagged of a stream without OoD; nominal is 5 %. "
            "Changed inputs: how many points more are flagged streamed than frozen when inputs have changed, at most. "
            f"{RULE} --picture draws every stream, -f csv prints it."
        )
    for reason, number in result.skipped().items():
        console.print(f"{number} streams could not be made: {reason}")
    for method, why in result.incomplete().items():
        console.print(f"left out: {method}: {why}")
