"""``normscale compare``: from a model and its pictures to a comparison of all detectors."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Annotated, Any, NamedTuple

import typer

from normscale import jobs
from normscale.bench.data.benchmarks import find_benchmark, find_sets
from normscale.bench.experiments.comparison import ComparedTables, named_detectors
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.methods import fit_on
from normscale.bench.experiments.run_folder import OWN_SETS
from normscale.cli._eval_printing import Format, check_output
from normscale.cli._options import DETECTOR_HELP, complete_detector, note
from normscale.cli.evaluate import compare_in_memory
from normscale.cli.extract import MODEL_HELP, model_options, with_model_options
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
    id_data: Annotated[
        str | None, typer.Option("--id", metavar="DATA", help="Test inputs of the kind the model was trained on.")
    ] = None,
    ood_data: Annotated[
        list[str] | None, typer.Option("--ood", metavar="[NAME=]DATA", help="OoD inputs; repeated, further sets.")
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A benchmark's sets: imagenet1k, imagenet200, cifar10, cifar100."),
    ] = None,
    data_root: Annotated[
        str, typer.Option(metavar="FOLDER", help="With --benchmark: where its sets are; see `data benchmarks`.")
    ] = "data",
    train: Annotated[
        str | None, typer.Option(metavar="DATA", help="What the model was trained on, to fit detectors on.")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(metavar="DATA", help="Held-out inputs of training's kind; set the saved threshold.")
    ] = None,
    outputs: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder of the model's outputs; those there are kept.")
    ] = "outputs",
    detector: Annotated[
        list[str] | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="DETECTOR",
            autocompletion=complete_detector,
            help=DETECTOR_HELP,
        ),
    ] = None,
    report: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write a page with tables, intervals and figures here.")
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save the detector with the best mean AUROC (.safetensors)."),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="The rows as .csv, .json or .jsonl.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="How to print the results.")] = Format.TABLE,
    figures: Annotated[bool, typer.Option(help="Draw figures for the report.")] = True,
    seed: Annotated[int, typer.Option(min=0, help="Order of the shuffled streams.")] = 0,
    **given: Any,
) -> None:
    """Run a model over its data, compare all detectors on the outputs, write a report, save the best.

    Outputs are kept in a folder and made once. --benchmark takes the sets of OpenOOD v1.5 that are there. It adds means
    over near and far sets, and a full-spectrum column where shifted in-distribution sets are there. The best detector
    is chosen on the OoD sets given here, so their AUROC flatters it.
    """
    from normscale.extraction.to_tables import extract_to

    if output is not None:
        check_output(output)
    if save is not None:
        check_folder(save)
    own = {"train": train, "validation": validation, "test": id_data}
    sets = {name: _Input(path, name) for name, path in own.items() if path is not None}
    for item in ood_data or ():
        name, path = jobs.input_named(item, [*sets, *OWN_SETS])
        sets[name] = _Input(path, "ood")
    if benchmark is not None:
        sets = _sets_of(benchmark, data_root) | sets
    roles = [one.role for one in sets.values()]
    if "test" not in roles or not {"ood", "near", "far"} & set(roles):
        raise InvalidInput("give the inputs to tell apart, --id and --ood, or --benchmark and --data-root.")
    if save is not None and "train" not in roles:
        raise InvalidInput("--save fits a detector; give --train.")
    options = model_options(**given)
    os.makedirs(outputs, exist_ok=True)
    tables: dict[str, str] = {}
    for name, one in sets.items():
        more = {**options, "on_invalid": "skip"} if one.is_part else options
        is_ood = one.role in ("ood", "near", "far")
        done = extract_to(model, one.data, os.path.join(outputs, name), ood=is_ood, say=note, **more)
        typer.echo(f"{name}: {done.n_rows} rows{'' if done.n_made else ', as they were'}", err=True)
        tables[name] = done.path

    def of_role(*wanted: str) -> list[str]:
        return [name for name, one in sets.items() if one.role in wanted]

    compared = ComparedTables(
        [tables["test"]],
        {name: tables[name] for name in of_role("near", "far", "ood")},
        *([tables[name] for name in of_role(role)] for role in ("train", "validation", "shifted")),
    )
    chosen = named_detectors([], detector or [])
    reading: dict[str, Any] = {"probabilities": False, "on_invalid": "raise", "say": note}
    groups = {role: of_role(role) for role in ("near", "far") if of_role(role)}
    rows = compare_in_memory(compared, chosen, seed, format, output, report, figures, reading, groups)
    if save is not None:
        _save_best(save, rows, tables, chosen)


class _Input(NamedTuple):
    """A set of inputs, and what it is for."""

    data: str
    role: str
    is_part: bool = False
    """Some of its pictures are missing."""


def _sets_of(benchmark: str, root: str) -> dict[str, _Input]:
    """The sets of a benchmark that are there; those that are not, and those that are not whole, are said."""
    chosen = find_benchmark(benchmark)
    found = find_sets(chosen, root)
    there = {one.set.name: _Input(one.data, one.set.role, one.missing > 0) for one in found if one.data}
    if not there:
        raise InvalidInput(
            f"no set of {benchmark} is below {root}. `normscale data benchmarks {benchmark}` says what it needs."
        )
    if absent := [one.set.name for one in found if not one.data]:
        note(f"{chosen.title}: a part of the benchmark. Missing: {', '.join(absent)}.")
    for one in found:
        if one.data and one.state != "whole":
            note(f"{one.set.name}: {one.state}.")
    return there


def _save_best(path: str, rows: list[Measurement], tables: dict[str, str], chosen: dict[str, Any]) -> None:
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.setting == Setting.FROZEN and not row.skipped and not row.in_set:
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
