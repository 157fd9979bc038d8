"""``normscale leaderboard``: every detector on the outputs of one or more runs, ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from normscale.cli import option
from normscale.cli._options import DetectorsOption
from normscale.errors import InvalidInput

EXAMPLES = ("normscale leaderboard runs/digits -o leaderboard",)


def leaderboard(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders that `normscale bench` wrote.")],
    output: Annotated[str, option("Of the page.", "FOLDER", "--output", "-o")] = "leaderboard",
    detector: DetectorsOption = None,
    rows: Annotated[int | None, option("Most rows of an OoD set; a fifth of the test set's.", min=20)] = None,
    train_rows: Annotated[int | None, option("Most rows of the training set.", min=20)] = None,
) -> None:
    """Rank detectors on the outputs of runs: a page, and tables.

    The first network of each run is taken; -d default is the default detector.

    Numbers of a run are kept in OUTPUT/rows/. Started again, only what is missing is measured.
    """
    from normscale.bench.experiments.run_folder import RunFolder
    from normscale.bench.experiments.stress import rank_run
    from normscale.bench.experiments.stress_result import load_stress
    from normscale.bench.paper.additions import openood
    from normscale.bench.paper.presets import every_detector
    from normscale.bench.report.leaderboard import leaderboard as write
    from normscale.cli.report import say_written

    wanted, folder = detector or list(every_detector()), Path(output)
    asked: dict[str, Any] = {"detectors": wanted, "rows": rows, "train_rows": train_rows}
    opened = [RunFolder.open(run) for run in runs]
    (folder / "rows").mkdir(parents=True, exist_ok=True)
    files = [folder / "rows" / f"{run.plan.name}.json" for run in opened]
    if len(set(files)) < len(files):
        raise InvalidInput("two of the runs have the same name; rank them in folders of their own.")
    for run, file in zip(opened, files, strict=True):
        if not file.exists() or load_stress(file).settings.get("asked") != asked:
            rank_run(run, **asked).save(file)
    options = [text for one in detector or [] for text in ("-d", one)]
    options += [f"--{name}={value}" for name, value in {"rows": rows, "train-rows": train_rows}.items() if value]
    command = ["normscale", "leaderboard", *runs, *options, "-o", output]
    say_written(write([load_stress(file) for file in files], folder, openood(), command), figures=False)
