"""``normscale compare``: from a model and its pictures to a comparison of all detectors."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Annotated, Any

import typer

from normscale import jobs
from normscale.bench.experiments.comparison import ComparedTables, named_detectors
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.methods import fit_on
from normscale.bench.experiments.run_folder import OWN_SETS
from normscale.cli._eval_printing import Format, check_output
from normscale.cli._options import DETECTOR_HELP, complete_detector, note
from normscale.cli.evaluate import compare_in_memory
from normscale.cli.extract import DATA_HELP, MODEL_HELP, model_options, with_model_options
from normscale.detectors.base import Setting
from normscale.detectors.registry import make_detector
from normscale.errors import InvalidInput
from normscale.rows import check_folder

EXAMPLE = (
    "Example: [bold]normscale compare --model hf:google/vit-base-patch16-224 --train train/ --id val/ "
    "--ood textures/ --ood inaturalist/ --report out --save best.safetensors[/bold]"
)


@with_model_options
def compare(
    *,
    model: Annotated[str, typer.Option("--model", metavar="MODEL", help=MODEL_HELP)],
    id_data: Annotated[str, typer.Option("--id", metavar="DATA", help=f"In-distribution test inputs. {DATA_HELP}")],
    ood_data: Annotated[
        list[str], typer.Option("--ood", metavar="[NAME=]DATA", help="OoD inputs; repeated, further sets.")
    ],
    train: Annotated[
        str | None, typer.Option(metavar="DATA", help="What the model was trained on, to fit detectors on.")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(metavar="DATA", help="Held-out inputs of training's kind; set the saved threshold.")
    ] = None,
    outputs: Annotated[
        str, typer.Option(metavar="FOLDER", help="Where the model's outputs are kept; those there are not made again.")
    ] = "outputs",
    detector: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="DETECTOR",
            autocompletion=complete_detector,
            help=f"Only these. {DETECTOR_HELP}",
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write a page with tables, intervals and figures here.")
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the detector with the best mean AUROC as fitted (.safetensors)."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the rows here: .csv, .json or .jsonl.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the results.")] = Format.TABLE,
    figures: Annotated[bool, typer.Option(help="With --report: draw figures (needs matplotlib).")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Order of the shuffled streams.")] = 0,
    **given: Any,
) -> None:
    """Run a model over its data, compare all detectors on the outputs, write a report, save the best.

    Outputs are kept in a folder and made once. The best detector is chosen on the OoD sets given here, so their AUROC
    flatters it.
    """
    from normscale.extraction.to_tables import extract_to

    if output is not None:
        check_output(output)
    if save is not None:
        check_folder(save)
        if train is None:
            raise InvalidInput("--save fits a detector; give --train.")
    named: dict[str, str] = {}
    for item in ood_data:
        name, path = jobs.input_named(item, [*named, *OWN_SETS])
        named[name] = path
    own = {"train": train, "validation": validation, "test": id_data}
    sets = {name: path for name, path in own.items() if path is not None} | named
    options = model_options(**given)
    os.makedirs(outputs, exist_ok=True)
    tables = {}
    for name, path in sets.items():
        done = extract_to(model, path, os.path.join(outputs, name), ood=name in named, say=note, **options)
        typer.echo(f"{name}: {done.n_rows} rows{'' if done.n_made else ', as they were'}", err=True)
        tables[name] = done.path
    compared = ComparedTables(
        [tables["test"]],
        {name: tables[name] for name in named},
        [tables["train"]] if train else [],
        [tables["validation"]] if validation else [],
    )
    chosen = named_detectors([], detector or [])
    reading: dict[str, Any] = {"probabilities": False, "on_invalid": "raise", "say": note}
    rows = compare_in_memory(compared, chosen, seed, format, output, report, figures, reading)
    if save is not None:
        _save_best(save, rows, tables, chosen)


def _save_best(path: str, rows: list[Measurement], tables: dict[str, str], chosen: dict[str, Any]) -> None:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.setting == Setting.FROZEN and not row.skipped:
            found.setdefault(row.method, []).append(row.auroc)
    if not found:
        raise InvalidInput("no detector could be measured as fitted, so none is saved.")
    means = {name: fmean(aurocs) for name, aurocs in found.items()}
    best = max(means, key=lambda name: means[name])
    row = next(row for row in rows if row.method == best)
    made = chosen.get(best) or make_detector(row.detector, **row.parameters)
    held_out = jobs.read(tables["validation"]) if "validation" in tables else None
    fitted = fit_on(made, jobs.read(tables["train"]), held_out)
    on = "validation" if held_out is not None else "test"
    fitted.set_threshold(jobs.read(tables[on]), keep=0.95)
    fitted.save(path)
    typer.echo(
        f"saved {fitted.name} to {path}: mean AUROC {means[best]:.4f}; its threshold keeps 95 % of the {on} inputs. It "
        "was chosen on these OoD sets, which flatters it.",
        err=True,
    )
