"""The options of commands that read many files, and what the commands do with them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from normscale import engines
from normscale._progress import bar
from normscale.cli._inputs import Input
from normscale.detectors.base import Detector, Setting
from normscale.engines.describing import JobSize
from normscale.engines.joined_table import names_many
from normscale.engines.locations import find_files, is_remote
from normscale.errors import FileFormatError, InvalidInput
from normscale.experiments.measurement import METRICS, Measurement
from normscale.experiments.methods import title_under
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


_LISTED_FILES, _LISTED_ROWS = 20, 5
_LOOKED_AT = 8
"""Of so many files the first that has rows is looked at for what is surely wrong."""


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

    def describe(self, paths: Sequence[str], detector: Detector, *, fits: bool = False) -> None:
        """Print the size of a job of a detector."""
        names = [*detector.reads, *(detector.reads_in_fit if fits else ()), LOGITS]
        rows: dict[str, Any] = {} if self.piece_rows is None else {"piece_rows": self.piece_rows}
        plan = engines.plan_pieces(paths, names, class_names=None if fits else detector.class_names, **rows)
        typer.echo(str(JobSize.of(plan)))


@contextmanager
def shown_progress() -> Iterator[Any]:
    """A tick that shows a bar with rows per second and the time left."""
    with bar("starting", 1.0, unit="share") as line:

        def tick(progress: engines.Progress) -> None:
            share = progress.done_bytes / progress.n_bytes if progress.n_bytes else 1.0
            line.at(share, f"{progress.doing}, {progress.rows_per_second:,.0f} rows/s")

        yield tick


def tell_skipped(skipped: engines.Skipped) -> None:
    """Say which rows were left out: how many of each file, and the first of them."""
    by_file: dict[str, list[int]] = {}
    for path, row in skipped.rows:
        by_file.setdefault(path, []).append(row)
    if skipped.n:
        typer.echo(f"{skipped.n} rows with NaN or infinity were skipped", err=True)
    for path, rows in list(by_file.items())[:_LISTED_FILES]:
        more = ", ..." if len(rows) > _LISTED_ROWS else ""
        typer.echo(f"  {path}: rows {', '.join(map(str, rows[:_LISTED_ROWS]))}{more}", err=True)
    if len(by_file) > _LISTED_FILES:
        typer.echo(f"  and in {len(by_file) - _LISTED_FILES} more files", err=True)


def look_at_first_rows(paths: Sequence[str], detector: Detector, *, fits: bool) -> None:
    """Refuse what is surely wrong with the first rows, such as probabilities in place of logits."""
    read_in_fit = detector.reads_in_fit if fits else ()
    for file in find_files(paths)[:_LOOKED_AT]:
        with suppress(FileFormatError):  # no rows, or damaged: the job says so
            first = Input(
                file.path,
                [*detector.reads, *read_in_fit, LOGITS],
                class_names=None if fits else detector.class_names,
                refuse_probabilities=LOGITS in (*detector.reads, *read_in_fit),
                check_labels=fits,
            )
            if first.look():
                return


def fit_many(paths: Sequence[str], model: Detector, many: ManyFiles, on_invalid: str) -> engines.FitResult | None:
    """Fit on many files; None after a dry run."""
    if many.dry_run:
        many.describe(paths, model, fits=True)
        return None
    look_at_first_rows(paths, model, fits=True)
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
        many.describe(paths, detector)
        return
    if output == "-":
        raise InvalidInput("the scores of many files go into a folder, one file a piece; add --output FOLDER.")
    look_at_first_rows(paths, detector, fits=False)
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
    id_paths: Sequence[str],
    ood_paths: Mapping[str, str],
    fit_paths: Mapping[str, Sequence[str]],
    detectors: Mapping[str, Detector],
    many: ManyFiles,
    *,
    on_invalid: str,
    scores: str | None,
    seed: int,
) -> list[Measurement] | None:
    """Fit detectors where they need it, score every set frozen, and rank exactly; None after a dry run.

    Parameters
    ----------
    id_paths, ood_paths : paths; name -> path
        What is told apart.
    fit_paths : mapping
        ``train`` and ``validation``: what detectors are fitted on.
    scores : path, optional
        Where the scores go, and stay; by default to a temporary folder.
    """
    if not detectors:
        raise InvalidInput("with --engine, say which detectors to compare: --detector NAME or --saved FILE.")
    sides: dict[str, Sequence[str]] = {"id": id_paths, **{f"ood-{name}": [path] for name, path in ood_paths.items()}}
    if many.dry_run:
        for method, detector in detectors.items():
            for name, paths in _jobs(detector, fit_paths, sides).items():
                typer.echo(f"{method}, {name}:")
                many.describe(paths, detector, fits=name not in sides)
        return None
    rows = []
    with many.opened() as options, _scores_folder(scores, options["engine"]) as folder, shown_progress() as tick:
        options |= {"on_invalid": on_invalid, "tick": tick}
        for number, (method, detector) in enumerate(detectors.items()):
            start = time.perf_counter()
            skipped: dict[str, int] = {}
            for name, paths in _jobs(detector, fit_paths, sides).items():
                look_at_first_rows(paths, detector, fits=name not in sides)
                if name not in sides:
                    left_out = engines.fit(paths, detector, **options).skipped
                else:
                    left_out = engines.score(paths, detector, _inside(folder, f"{number}-{name}"), **options).skipped
                tell_skipped(left_out)
                skipped[name] = left_out.n
            for name in ood_paths:
                pair = [_inside(folder, f"{number}-{side}") for side in ("id", f"ood-{name}")]
                found, _, _, unranked = engines.evaluate(*pair, **options)
                if unranked.n > skipped["id"] + skipped[f"ood-{name}"]:
                    tell_skipped(unranked)  # scores of good rows that are infinite
                rows.append(
                    Measurement(
                        method=method,
                        detector=detector.name,
                        title=title_under(method, detector),
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


def _jobs(
    detector: Detector, fit_paths: Mapping[str, Sequence[str]], sides: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """What is read for a detector: what it is fitted on, unless it is, and every side."""
    if detector.is_fitted:
        return dict(sides)
    on = fit_paths.get(detector.fitted_on)
    if not on:
        raise InvalidInput(f"{detector.name} must be fitted; add --{detector.fitted_on} TABLES.")
    return {detector.fitted_on: on, **sides}


@contextmanager
def _scores_folder(given: str | None, engine: Any) -> Iterator[str]:
    """Where the scores of an evaluation go: the folder given, or a temporary one that every worker sees."""
    if given is not None:
        yield given
        return
    if getattr(engine, "n_machines", 1) > 1:
        raise InvalidInput(
            "the cluster has several machines, which do not see a temporary folder of this one; add --scores FOLDER "
            "with a place that all of them see, such as s3://bucket/scores."
        )
    with tempfile.TemporaryDirectory(prefix="normscale-") as folder:
        yield folder


def _inside(folder: str, name: str) -> str:
    """The path of something in a folder, which may be one of an object store with options."""
    if not is_remote(folder):
        return os.path.join(folder, name)
    location, mark, options = folder.partition("?")
    return f"{location.rstrip('/')}/{name}{mark}{options}"
