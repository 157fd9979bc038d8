"""Options that several commands share, each declared once; notes, progress and tables that are printed alike."""

from __future__ import annotations

import glob
import inspect
import os
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from normscale import jobs
from normscale._progress import bar
from normscale.cli import as_options, option, say
from normscale.detectors.choosing import AUTO
from normscale.detectors.registry import list_detectors
from normscale.errors import InvalidInput
from normscale.outputs import ModelOutputs
from normscale.rows import check_folder

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_LISTED_FILES, _LISTED_ROWS = 20, 5
_WIDE = 110
"""Columns of tables that nobody sees in a terminal."""
_Command = TypeVar("_Command", bound=Callable[..., None])


def complete_detector(incomplete: str) -> list[str]:
    """Names of detectors that begin as typed; behind a ``+`` those that may score."""
    before, plus, last = incomplete.rpartition("+")
    names = list_detectors() if plus else [AUTO, *list_detectors()]
    return [f"{before}{plus}{name}" for name in names if name.startswith(last)]


def detector_option(default: str | bool = False) -> Any:
    """``--detector``, with what is taken where it is not given."""
    text, words = "As knn:k=20 or react+energy.", ("DETECTOR", "--detector", "-d")
    return option(text, *words, shown=default, autocompletion=complete_detector)


NO_TABLES: list[str] = []
IdOption = Annotated[list[str], option("In-distribution test outputs.", "TABLE", "--id")]
OodOption = Annotated[list[str], option("Outputs on OoD inputs.", "[NAME=]TABLE", "--ood")]
TrainOption = Annotated[list[str], option("Outputs on the training set.", "TABLE", "--train")]
DetectorsOption = Annotated[list[str] | None, detector_option("all")]
SeedOption = Annotated[int, option("Of shuffled streams.", min=0)]
Format = Literal["table", "csv", "json"]
FormatOption = Annotated[Format, option("How to print.", "--format", "-f")]
ProbabilitiesOption = Annotated[bool, option("The logits are probabilities.", "--probabilities")]
OnInvalid = Literal["raise", "skip"]
OnInvalidOption = Annotated[OnInvalid, option("A row with NaN or infinity.")]
MemoryOption = Annotated[str | None, option("Most, as 8GiB.", "SIZE", shown="half of the free")]
EngineName = Literal["here", "local", "ray"]
EngineOption = Annotated[EngineName | None, option("Where tasks run.", shown="by the size")]
WorkersOption = Annotated[int | None, option("Tasks at the same time.", shown="all cores", min=1)]
AddressOption = Annotated[str | None, option("Of a Ray cluster that is running.", "ADDRESS")]
PieceRowsOption = Annotated[int | None, option("Rows of a piece.", shown="500000", min=1)]
DryRunOption = Annotated[bool, option("Print the plan, and stop.", "--dry-run")]

SharedOptions = Mapping[str, tuple[Any, Any]]
"""Name -> type with what typer shows, and default."""
JOB_OPTIONS: SharedOptions = {
    "probabilities": (ProbabilitiesOption, False),
    "on_invalid": (OnInvalidOption, "raise"),
    "memory": (MemoryOption, None),
    "engine": (EngineOption, None),
    "workers": (WorkersOption, None),
    "address": (AddressOption, None),
    "piece_rows": (PieceRowsOption, None),
}
"""What every job over tables takes: :class:`normscale.jobs.JobOptions`."""
RESULT_OPTIONS: SharedOptions = {
    "seed": (SeedOption, 0),
    "format": (FormatOption, "table"),
    "output": (
        Annotated[str | None, option("The rows: .csv, .json or .jsonl.", "FILE", "--output", "-o")],
        None,
    ),
    "report": (Annotated[str | None, option("Write a page with figures.", "FOLDER")], None),
    "figures": (Annotated[bool, option("Draw figures.")], True),
}
"""What every comparison of detectors takes: the fields of :class:`normscale.cli.evaluate.ResultChoices`."""


def takes(*groups: SharedOptions) -> Callable[[_Command], _Command]:
    """Give a command further options, which it takes as ``**given``."""

    def with_options(command: _Command) -> _Command:
        own = inspect.signature(command, eval_str=True)
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for options in groups
            for name, (annotation, default) in options.items()
        ]
        parameters = [one for one in own.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD] + shared
        command.__annotations__ = {one.name: one.annotation for one in parameters}
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return with_options


@contextmanager
def job_options(given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What a job takes of the options given, with notes and a progress bar on the terminal; None leaves its default."""
    with _progress() as tick:
        yield {**{name: value for name, value in given.items() if value is not None}, "say": note, "tick": tick}


def input_named(item: str, taken: Container[str] = ()) -> tuple[str, str]:
    """Name and path of a table given as ``NAME=PATH`` or ``PATH``; without a name that of the file or folder serves.

    What stands before ``=`` is no name where it has a slash: it is part of a path, or an object store's options.

    Examples
    --------
    >>> input_named("near=sample:unseen_digits"), input_named("sets/noise.npz")
    (('near', 'sample:unseen_digits'), ('noise', 'sets/noise.npz'))
    >>> input_named("far=sets/*.parquet"), input_named("sets/day=1/*.parquet")
    (('far', 'sets/*.parquet'), ('day=1', 'sets/day=1/*.parquet'))
    """
    name, equals, path = item.partition("=")
    if not equals or "/" in name:
        path, plain = item, item.partition("?")[0] if "://" in item else item.removeprefix(jobs.SAMPLE)
        parts = [part for part in plain.replace(os.sep, "/").split("/") if part and not glob.has_magic(part)]
        name = os.path.splitext(parts[-1])[0] if parts else plain
    if name in taken:
        raise InvalidInput(f"another table is called {name!r}; name this one: OTHER={path}.")
    return name, path


def read_sides(
    train: list[str],
    id_tables: list[str],
    ood_tables: list[str],
    *,
    class_names: Sequence[str] | None = None,
    probabilities: bool = False,
) -> tuple[ModelOutputs, ModelOutputs, dict[str, ModelOutputs]] | None:
    """The rows of --train, --id and every --ood, their columns in one order; None where no table is given."""
    if not (train or id_tables or ood_tables):
        return None
    if not (train and id_tables and ood_tables):
        raise InvalidInput("--train, --id and --ood go together; give all three, or none for the embedded sample.")
    sides: list[ModelOutputs] = []
    for paths in (train, id_tables):
        source = jobs.RowSource(paths, class_names=class_names, probabilities=probabilities)
        sides.append(jobs.read(source, check_labels=True, say=note))
        class_names = class_names or source.layout.class_names
    ood_sets: dict[str, ModelOutputs] = {}
    for item in ood_tables:
        name, path = input_named(item, ood_sets)
        ood_sets[name] = jobs.read(path, class_names=class_names, probabilities=probabilities, say=note)
    return sides[0], sides[1], ood_sets


def check_detector_file(path: str) -> None:
    """Raise before any work is done where a detector could not be saved."""
    if not path.endswith(".safetensors"):
        raise InvalidInput(f"the file to save a detector in must end in .safetensors; got {path!r}.")
    check_folder(path)


def note(text: str) -> None:
    """Tell the person at the terminal something that is no error."""
    say(f"normscale: note: {as_options(text)}")


@contextmanager
def _progress() -> Iterator[Any]:
    """A tick that shows a bar with rows per second and the time left; None where nobody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    with bar("starting", 1.0, unit="share") as line:

        def tick(progress: jobs.Progress) -> None:
            line.at(progress.share, f"{progress.doing}, {progress.rows_per_second:,.0f} rows/s")

        yield tick


def print_skipped(skipped: jobs.Skipped) -> None:
    """Say which rows were left out: how many of each file, and the first of them."""
    by_file: dict[str, list[int]] = {}
    for path, row in skipped.rows:
        by_file.setdefault(path, []).append(row)
    if skipped.n:
        say(f"{skipped.n} rows with NaN or infinity were skipped")
    for path, rows in list(by_file.items())[:_LISTED_FILES]:
        more = ", ..." if len(rows) > _LISTED_ROWS else ""
        say(f"  {path}: rows {', '.join(map(str, rows[:_LISTED_ROWS]))}{more}")
    if len(by_file) > _LISTED_FILES:
        say(f"  and in {len(by_file) - _LISTED_FILES} more files")


def console(width: int = _WIDE) -> Console:
    """Standard output for tables: as wide as the terminal, or so wide where there is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else width, highlight=False, markup=False, emoji=False)


def table(left: list[str], right: list[str], title: Any = None) -> Table:
    """An empty table: columns of texts, then columns of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, title=title)
    for name in left:
        made.add_column(name)
    for name in right:
        made.add_column(name, justify="right")
    return made
