"""``normscale bench``: the paper's comparison, from training to report."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from normscale.cli import say
from normscale.errors import MissingExtra

EXAMPLES = (
    "normscale bench",
    "normscale bench --preset cifar10-small --ood svhn=npz:packs/svhn_test.npz --ood gaussian --workers 2",
)


def bench(
    preset: Annotated[str, typer.Option(metavar="NAME", help="What to run; below are the names.")] = "digits",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FOLDER", help="Of the run.", show_default="runs/PRESET")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATA", help="The ID set instead: NAME, npz:FOLDER or folder:PATH.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Networks to train: seeds 0 to N-1.")] = None,
    ood: Annotated[list[str] | None, typer.Option(metavar="[NAME=]DATA", help="OoD sets instead; repeatable.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option("--method", "-m", metavar="DETECTOR", help="Methods instead, as knn or knn_frozen; repeatable."),
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width of the network, if not the preset's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, if not the preset's.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Networks prepared at once, a process each.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch in each.")] = 1,
    stress: Annotated[bool, typer.Option(help="Run the stress grid, too.")] = True,
    report: Annotated[bool, typer.Option(help="Write report.html, tables and figures.")] = True,
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
    try:
        import torch  # noqa: F401 - said before anything is written
    except ImportError as error:
        raise MissingExtra(f"a benchmark trains networks ({error}). Run: pip install 'normscale[torch]'") from error
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
