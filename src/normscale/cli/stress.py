"""``normscale stress``: on which streams running statistics may be trusted, for the user's own logits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from normscale.bench.experiments.alarms import changed_outputs, changed_pictures
from normscale.bench.experiments.methods import fit_on
from normscale.bench.experiments.stress import stress
from normscale.bench.experiments.stress_result import RECOMMENDED, RULE, TOLERANCE, StressResult, summarise
from normscale.bench.paper.presets import PREFERRED, STATICS, own_methods
from normscale.cli import option, say
from normscale.cli._eval_printing import print_rows
from normscale.cli._options import (
    NO_TABLES,
    DetectorsOption,
    FormatOption,
    IdOption,
    OodOption,
    ProbabilitiesOption,
    SeedOption,
    TrainOption,
    console,
    read_sides,
)
from normscale.detectors.registry import load_detector, make_detector
from normscale.errors import InvalidInput, needs
from normscale.rows import check_folder
from normscale.rows.columns import shared_names

EXAMPLES = (
    "normscale stress",
    "normscale stress --train sample:train --id sample:test --ood sample:unseen_digits --picture map.png",
)
SAMPLE = ("--train", "sample:train", "--id", "sample:test", "--ood", "sample:unseen_digits")


def command(
    id_tables: IdOption = NO_TABLES,
    ood_tables: OodOption = NO_TABLES,
    train: TrainOption = NO_TABLES,
    detector: DetectorsOption = None,
    seed: SeedOption = 0,
    format: FormatOption = "table",
    output: Annotated[str | None, option("Every row as .json.", "FILE", "--output", "-o")] = None,
    picture: Annotated[str | None, option("Draw a map: .png, .svg or .pdf.", "FILE")] = None,
    network: Annotated[str | None, option("A trained network, to corrupt its test pictures.", "FOLDER")] = None,
    pictures: Annotated[str, option("The network's test pictures, if they have moved.", "SOURCE")] = "",
    threads: Annotated[int, option("Threads that share the work.", min=1)] = 1,
    probabilities: ProbabilitiesOption = False,
) -> None:
    """Measure running statistics on streams and say what to use.

    Streams differ in the share of OoD rows, their order and the balance of classes. Without tables, the sample's.
    """
    written = [path for path in (output, picture) if path is not None]
    for path in written:
        check_folder(path)
    if output is not None and not output.endswith(".json"):
        raise InvalidInput(f"--output must end in .json; got {output!r}.")
    if picture is not None:
        with needs("--picture needs matplotlib", "report"):
            from normscale.bench.report.figures.stress_map import check_suffix, save_stress_map
        check_suffix(picture)
    detectors = {
        name: load_detector(name) if name.endswith(".safetensors") else make_detector(name) for name in detector or []
    }
    names = shared_names((name, one.class_names) for name, one in detectors.items())
    given = read_sides(train, id_tables, ood_tables, class_names=names, probabilities=probabilities)
    if given is None:
        say(f"no tables given: this is the sample ({' '.join(SAMPLE)})")
        given = read_sides(*([path] for path in SAMPLE[1::2]), class_names=names)
    assert given is not None
    train_outputs, id_test, ood_sets = given
    shared = [name for name in train_outputs.names if all(name in one.names for one in (id_test, *ood_sets.values()))]
    train_outputs = train_outputs.only(*shared)
    fitted = {name: fit_on(one, train_outputs, None) for name, one in detectors.items()}
    changed = (
        changed_outputs(id_test.only(*shared), seed) if network is None else changed_pictures(Path(network), pictures)
    )
    result = stress(
        id_test,
        ood_sets,
        {**fitted, **own_methods(train_outputs)},
        changed=dict(changed),
        notes={"preferred": PREFERRED, "n_train": len(train_outputs)},
        seed=seed,
        threads=threads,
    )
    if output is not None:
        result.save(output)
    if picture is not None:
        save_stress_map(result, picture)
    if format == "table":
        print_summary(result)
    else:
        print_rows(result.rows, format)
    for path in written:
        say(f"written: {path}")


def print_summary(result: StressResult) -> None:
    """A line with means, the worst stream and a verdict for each method."""
    from rich.table import Table

    out = console()
    sets = result.ood_sets
    out.print(f"{sets[0] if len(sets) == 1 else f'mean of {len(sets)} OoD sets'}\n", style="bold")
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
        out.print(table)
        out.print(
            f"\n{summaries[0].n_kinds} kinds of streams; OoD is positive. Worst, streams below: AUROC against the best "
            "method without running statistics in the same stream, and how often it is more than "
            f"{TOLERANCE:g} under it. False alarms: the largest share flagged of a stream without OoD; nominal is 5 %. "
            "Changed inputs: how many points more are flagged streamed than frozen when inputs have changed, at most. "
            f"{RULE} --picture draws every stream, -f csv prints it."
        )
    for reason, number in result.skipped().items():
        out.print(f"{number} streams could not be made: {reason}")
    for method, why in result.incomplete().items():
        out.print(f"left out: {method}: {why}")
