"""``normscale compare``: from a model and its pictures to a comparison of all detectors."""

from __future__ import annotations

import os
from statistics import fmean
from typing import Annotated, Any, NamedTuple

from normscale import jobs
from normscale.bench.data.benchmarks import find_benchmark, find_sets
from normscale.bench.experiments.comparison import ComparedTables, named_detectors
from normscale.bench.experiments.measurement import Measurement
from normscale.bench.experiments.methods import fit_on
from normscale.bench.network_folder import OWN_SETS
from normscale.cli import option, say
from normscale.cli._eval_printing import check_output
from normscale.cli._options import NO_TABLES, RESULT_OPTIONS, DetectorsOption, input_named, note, takes
from normscale.cli.evaluate import ResultChoices, compare_in_memory
from normscale.cli.extract import MODEL_HELP, MODEL_OPTIONS, model_options
from normscale.detectors.base import Setting
from normscale.detectors.registry import make_detector
from normscale.errors import InvalidInput
from normscale.rows import check_folder

EXAMPLES = (
    "normscale compare --model hf:google/vit-base-patch16-224 --train train/ --id val/ --ood textures/ "
    "--ood inaturalist/ --report out --save best.safetensors",
)


@takes(RESULT_OPTIONS, MODEL_OPTIONS)
def compare(
    *,
    model: Annotated[str, option(MODEL_HELP, "MODEL", "--model")],
    id_data: Annotated[str | None, option("In-distribution test inputs.", "DATA", "--id")] = None,
    ood_data: Annotated[list[str], option("OoD inputs; may be repeated.", "[NAME=]DATA", "--ood")] = NO_TABLES,
    train: Annotated[str | None, option("Training inputs.", "DATA")] = None,
    validation: Annotated[str | None, option("Held-out inputs, for --save.", "DATA")] = None,
    benchmark: Annotated[str | None, option("As imagenet1k or cifar10.", "NAME")] = None,
    data_root: Annotated[str, option("Of the benchmark.", "FOLDER")] = "data",
    outputs: Annotated[str, option("Kept outputs.", "FOLDER")] = "outputs",
    detector: DetectorsOption = None,
    save: Annotated[str | None, option("The best by mean AUROC.", "FILE")] = None,
    **given: Any,
) -> None:
    """Run a model over data and compare all detectors.

    --benchmark takes the sets of OpenOOD v1.5 that are there, with means over near and far sets.

    The best detector is chosen on the OoD sets given here, so their AUROC flatters it.
    """
    from normscale.extraction.to_tables import extract_to

    results = ResultChoices(**{name: given.pop(name) for name in RESULT_OPTIONS})
    check_output(results.output)
    if save is not None:
        check_folder(save)
    own = {"train": train, "validation": validation, "test": id_data}
    sets = {name: _Input(path, name) for name, path in own.items() if path is not None}
    for item in ood_data:
        name, path = input_named(item, [*sets, *OWN_SETS])
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
        tables[name] = os.path.join(outputs, name)
        done = extract_to(model, one.data, tables[name], ood=is_ood, say=note, **more)
        say(f"{name}: {done.n_rows} rows{'' if done.n_made else ', as they were'}")

    def of_role(*wanted: str) -> list[str]:
        return [name for name, one in sets.items() if one.role in wanted]

    compared = ComparedTables(
        [tables["test"]],
        {name: tables[name] for name in of_role("near", "far", "ood")},
        *([tables[name] for name in of_role(role)] for role in ("train", "validation", "shifted")),
    )
    chosen = named_detectors([], detector or [])
    groups = {role: of_role(role) for role in ("near", "far") if of_role(role)}
    rows = compare_in_memory(compared, chosen, results, {}, groups)
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
    say(
        f"saved {fitted.name} to {path}: mean AUROC {means[best]:.4f}; its threshold keeps 95 % of the {on} inputs. It "
        "was chosen on these OoD sets, which flatters it."
    )
