"""``normscale bench``: the paper's comparison, from training to report."""

from __future__ import annotations

import sys
from typing import Annotated

from normscale.cli import option, say
from normscale.errors import needs

EXAMPLES = (
    "normscale bench",
    "normscale bench --preset cifar10-small --ood svhn=npz:packs/svhn_test.npz --ood gaussian --workers 2",
)


def bench(
    preset: Annotated[str, option("What to run; below are the names.", "NAME")] = "digits",
    output: Annotated[str | None, option("Of the run.", "FOLDER", "--output", "-o", shown="runs/PRESET")] = None,
    data: Annotated[str | None, option("The ID set instead: NAME, npz:FOLDER or folder:PATH.", "DATA")] = None,
    seeds: Annotated[int | None, option("Networks to train: seeds 0 to N-1.", min=1)] = None,
    ood: Annotated[list[str] | None, option("OoD sets instead; repeatable.", "[NAME=]DATA")] = None,
    method: Annotated[
        list[str] | None,
        option("Methods instead, as knn or knn_frozen; repeatable.", "DETECTOR", "--method", "-m"),
    ] = None,
    width: Annotated[int | None, option("Width of the network, if not the preset's.", min=1)] = None,
    epochs: Annotated[int | None, option("Epochs, if not the preset's.", min=1)] = None,
    workers: Annotated[int, option("Networks prepared at once, a process each.", min=1)] = 1,
    threads: Annotated[int, option("Threads of torch in each.", min=1)] = 1,
    stress: Annotated[bool, option("Run the stress grid, too.")] = True,
    report: Annotated[bool, option("Write report.html, tables and figures.")] = True,
) -> None:
    """Train networks and compare detectors on their outputs.

    A run that was stopped goes on. Presets: digits.

    For two cores: cifar10-small, cifar100-small, svhn-small, tinyimagenet-small, cifar10-wide.

    For a GPU: cifar10, cifar100, svhn, tinyimagenet.
    """
    from normscale.bench.experiments.bench import bench as run_bench
    from normscale.bench.experiments.plan import named_source
    from normscale.bench.paper.presets import find_preset, own_methods

    plan = find_preset(preset)
    plan = plan._replace(
        data=data or plan.data,
        trained_on=plan.in_set,
        seeds=plan.seeds if seeds is None else tuple(range(seeds)),
        ood=plan.ood if not ood else dict(map(named_source, ood)),
        methods=tuple(method) if method else plan.methods,
        width=width or plan.width,
        epochs=epochs or plan.epochs,
    )
    with needs("a benchmark trains networks", "torch"):
        import torch  # noqa: F401 - said before anything is written
    folder = output or f"runs/{preset}"
    command = " ".join(["normscale", *sys.argv[1:]]) if sys.argv[1:2] == ["bench"] else ""
    result = run_bench(
        folder,
        plan,
        workers=workers,
        threads=threads,
        stress=own_methods if stress else None,
        command=command,
        say=say,
    )
    for name, why in result.missing.items():
        say(f"{name} was left out: {why}")
    say(f"{result.n_new} cells computed, {result.n_kept} were there: {result.run.results}")
    if report:
        from normscale.bench.paper.additions import paper_additions
        from normscale.bench.report.writing import report as write_report

        page = write_report(folder, additions=paper_additions())
        say(f"written: {page}, with tables and figures beside it")
