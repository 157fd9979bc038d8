"""The options of commands that read many files, and what the commands do with them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from normscale import engines
from normscale._progress import bar
from normscale.detectors.base import Detector, Setting
from normscale.engines.describing import JobSize
from normscale.engines.joined_table import names_many
from normscale.errors import InvalidInput
from normscale.experiments.measurement import METRICS, Measurement
from normscale.outputs import LOGITS


class EngineName(StrEnum):
    """Where the work is done."""

    LOCAL = "local"
    RAY = "ray"


EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="For many files: processes on this machine (local, the default for several files, folders, globs and "
        "s3://, gs://, hdfs:// paths), or a Ray cluster.",
    ),
]
WorkersOption = Annotated[int | None, typer.Option(min=1, help="With many files: how many tasks at the same time.")]
AddressOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="With --engine ray: of the cluster; without, one is started here.")
]
PieceRowsOption = Annotated[int | None, typer.Option(min=1, help="With many files: rows of a piece.")]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print files, pieces, bytes and memory per worker, and stop.")
]


class ManyFiles(NamedTuple):
    """How a command is told to read many files."""

    engine: EngineName | None
    workers: int | None
    address: str | None
    piece_rows: int | None
    dry_run: bool

    def wanted(self, paths: Sequence[str]) -> bool:
        """Whether these paths are read piece by piece; one plain table, a pipe and the sample are not."""
        if self.engine is None and self.address is not None:
            raise InvalidInput("--address is that of a Ray cluster; add --engine ray.")
        many = len(paths) > 1 or self.engine is not None or self.dry_run or any(map(names_many, paths))
        for path in paths if many else ():
            if path == "-" or path.startswith("sample:"):
                raise InvalidInput(f"{path} cannot be read in pieces; give files, folders, globs or s3:// paths.")
        return many

    @property
    def options(self) -> dict[str, Any]:
        """What the functions of :mod:`normscale.engines` take."""
        pieces = {} if self.piece_rows is None else {"piece_rows": self.piece_rows}
        return {"engine": self.engine or EngineName.LOCAL, "workers": self.workers, "address": self.address, **pieces}

    @contextmanager
    def opened(self) -> Iterator[dict[str, Any]]:
        """The options with an engine that is started, for several jobs."""
        options = self.options
        chosen = {name: options.pop(name) for name in ("engine", "workers", "address")}
        with engines.open_engine(chosen["engine"], workers=chosen["workers"], address=chosen["address"]) as engine:
            yield {**options, "engine": engine}

    def describe(self, paths: Sequence[str], names: Sequence[str]) -> None:
        """Print the size of the job."""
        rows = {} if self.piece_rows is None else {"piece_rows": self.piece_rows}
        typer.echo(str(JobSize.of(engines.plan_pieces(paths, names, **rows))))


@contextmanager
def shown_progress() -> Iterator[Any]:
    """A tick that shows a bar with rows per second and the time left."""
    with bar("starting", 1.0, unit="share") as line:

        def tick(progress: engines.Progress) -> None:
            share = progress.done_bytes / progress.n_bytes if progress.n_bytes else 1.0
            line.at(share, f"{progress.doing}, {progress.rows_per_second:,.0f} rows/s")

        yield tick


def tell_skipped(skipped: engines.Skipped) -> None:
    """Say which rows were left out."""
    if skipped.n:
        shown = ", ".join(f"{path} row {row}" for path, row in skipped.rows[:5])
        more = ", ..." if skipped.n > 5 else ""
        typer.echo(f"{skipped.n} rows with NaN or infinity were skipped: {shown}{more}", err=True)


def fit_many(paths: Sequence[str], model: Detector, many: ManyFiles, on_invalid: str) -> engines.FitResult | None:
    """Fit on many files; None after a dry run."""
    if many.dry_run:
        many.describe(paths, [*model.reads, *model.reads_in_fit, LOGITS])
        return None
    with shown_progress() as tick:
        result = engines.fit(paths, model, on_invalid=on_invalid, tick=tick, **many.options)
    tell_skipped(result.skipped)
    return result


def score_many(
    paths: Sequence[str],
    detector: Detector,
    output: str,
    many: ManyFiles,
    *,
    stream: bool,
    threshold: float | None,
    on_invalid: str,
    save: str | None,
) -> None:
    """Score many files into a folder and say what was done."""
    if many.dry_run:
        many.describe(paths, [*detector.reads, LOGITS])
        return
    if output == "-":
        raise InvalidInput("the scores of many files go into a folder, one file a piece; add --output FOLDER.")
    with shown_progress() as tick:
        result = engines.score(
            paths,
            detector,
            output,
            stream=stream,
            threshold=threshold,
            on_invalid=on_invalid,
            tick=tick,
            **many.options,
        )
    if save is not None:
        result.detector.save(save)
    tell_skipped(result.skipped)
    before = f", {result.n_done_before} of them were there already" if result.n_done_before else ""
    typer.echo(f"{result.n_rows} rows scored to {output} in {result.n_pieces} files{before}", err=True)
    if result.n_flagged is not None and result.n_rows:
        share = result.n_flagged / result.n_rows
        typer.echo(f"{result.n_flagged} of {result.n_rows} rows ({share:.1%}) are out-of-distribution", err=True)


def evaluate_many(
    id_path: str,
    ood_tables: Sequence[str],
    train: str | None,
    validation: str | None,
    detectors: Sequence[Detector],
    many: ManyFiles,
    seed: int,
) -> list[Measurement]:
    """Fit detectors where they need it, score every set frozen, and rank exactly; scores are in a temporary folder."""
    if not detectors:
        raise InvalidInput("with --engine, say which detectors to compare: --detector NAME or --saved FILE.")
    ood_paths = dict(_named(item) for item in ood_tables)
    rows = []
    with tempfile.TemporaryDirectory(prefix="normscale-") as folder, many.opened() as options, shown_progress() as tick:
        for number, detector in enumerate(detectors):
            start = time.perf_counter()
            if not detector.is_fitted:
                on = {"train": train, "validation": validation}[detector.fitted_on]
                if on is None:
                    raise InvalidInput(f"{detector.name} must be fitted; add --{detector.fitted_on} TABLES.")
                engines.fit(on, detector, tick=tick, **options)
            sides = {"id": id_path, **{f"ood {name}": path for name, path in ood_paths.items()}}
            for name, path in sides.items():
                engines.score(path, detector, Path(folder) / f"{number} {name}", tick=tick, **options)
            for name in ood_paths:
                scores = [Path(folder) / f"{number} id", Path(folder) / f"{number} ood {name}"]
                found = engines.evaluate(*scores, tick=tick, **options).result
                rows.append(
                    Measurement(
                        method=detector.name,
                        detector=detector.name,
                        title=detector.title,
                        setting=Setting.FROZEN,
                        ood_set=name,
                        metrics={metric: getattr(found, metric) for metric in METRICS},
                        n_id=found.n_id,
                        n_ood=found.n_ood,
                        seconds=time.perf_counter() - start,
                        parameters=detector.get_params(),
                        seed=seed,
                    )
                )
    return rows


def _named(item: str) -> tuple[str, str]:
    """Name and path of NAME=PATH, or of a path alone; the options of an object store are no name."""
    name, equals, path = item.partition("=")
    if equals and not names_many(item) and "/" not in name:
        return name, path
    return Path(item.partition("?")[0].rstrip("/*")).stem, item
