"""``normscale bench``: the paper's comparison, from training to report."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from normscale.errors import MissingExtra

EXAMPLE = (
    "Examples: [bold]normscale bench[/bold] (embedded digits, no network needed), or [bold]normscale bench --preset "
    "cifar10-small --ood svhn=npz:packs/svhn_test.npz --ood gaussian --workers 2[/bold]"
)


def bench(
    preset: Annotated[
        str,
        typer.Option(help="What to run: digits, cifar10-small, cifar10, ..."),
    ] = "digits",
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder; default: runs/PRESET.")] = None,
    data: Annotated[str | None, typer.Option(help="The ID set instead: NAME, npz:FOLDER or folder:PATH.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Networks to train: seeds 0 to N-1.")] = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(help="OoD sets instead: [NAME=] a name, npz:PATH or folder:PATH."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            "-m",
            metavar="DETECTOR",
            help="Methods instead: a detector or NAME_frozen; repeatable.",
        ),
    ] = None,
    width: Annotated[int | None, typer.Option(min=1, help="Width of the network, if not the preset's.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs, if not the preset's.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Networks prepared at once, a process each.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch in each.")] = 1,
    stress: Annotated[bool, typer.Option(help="Also run the stress grid on the first network's outputs.")] = True,
    report: Annotated[bool, typer.Option(help="Write report.html, tables and figures at the end.")] = True,
) -> None:
    """Train, extract, score and compare: networks x OoD sets x methods. Killed at any moment, it goes on.

    Presets: digits; for two cores cifar10-small, cifar100-small, svhn-small, tinyimagenet-small, cifar10-wide; for a
    GPU cifar10, cifar100, svhn, tinyimagenet.
    """
    from normscale.bench.experiments.bench import bench as run_bench
    from normscale.bench.experiments.plan import named_source
    from normscale.bench.paper.line_up import own_methods
    from normscale.bench.paper.presets import find_preset

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
        say=lambda text: typer.echo(text, err=True),
    )
    for name, why in result.missing.items():
        typer.echo(f"{name} was left out: {why}", err=True)
    typer.echo(f"{result.n_new} cells computed, {result.n_kept} were there: {result.run.results}", err=True)
    if report:
        from normscale.bench.paper.additions import paper_additions
        from normscale.bench.report.writing import report as write_report

        page = write_report(folder, additions=paper_additions())
        typer.echo(f"written: {page}, with tables and figures beside it", err=True)
