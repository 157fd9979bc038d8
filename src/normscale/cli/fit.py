"""``normscale fit``: learn a detector from the outputs on a training set."""

from __future__ import annotations

import copy
import shlex
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import typer

from normscale._validate import Rows
from normscale.cli._completion import complete_detector
from normscale.cli._inputs import PROBABILITIES_HELP, Input, OnInvalid, note
from normscale.cli._many_files import (
    AddressOption,
    DryRunOption,
    EngineOption,
    ManyFiles,
    PieceRowsOption,
    WorkersOption,
    fit_many,
)
from normscale.detectors.base import Detector
from normscale.detectors.choosing import AUTO, choose_detector
from normscale.detectors.registry import DEFAULT, DEFAULT_IN_PARTS, list_detectors, make_detector
from normscale.engines.pieces import Layout
from normscale.errors import InvalidInput
from normscale.input_checks.odd_columns import looks_transposed
from normscale.input_checks.row_sketch import RowSketch
from normscale.outputs import FEATURES, LOGITS, ModelOutputs
from normscale.tables.opening import is_pipe
from normscale.tables.table_writer import check_folder

EXAMPLE = (
    "Example: [bold]normscale fit sample:train -o detector.safetensors --threshold-on sample:validation "
    "--keep 0.95[/bold]"
)
_KEPT_ROWS = 1000
"""Training rows that are kept to look at all of them together."""


def fit(
    tables: Annotated[
        list[str],
        typer.Argument(
            metavar="TRAIN...",
            help="Outputs to fit on: the arrays that the detector reads, and labels and head if it needs. Files, "
            "folders and globs, here or in an object store.",
        ),
    ],
    output: Annotated[str, typer.Option("--output", "-o", help="Where the detector goes (.safetensors).")],
    detector: Annotated[
        str | None,
        typer.Option(
            "--detector",
            "-d",
            metavar="NAME",
            autocompletion=complete_detector,
            help=f"One of: {', '.join(list_detectors())}. STEP+SCORE, such as react+energy, lets a step change the "
            f"outputs before they are scored. {AUTO} chooses by the arrays of the table. {DEFAULT} where nothing is "
            f"said, {DEFAULT_IN_PARTS} for many files.",
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            "-p",
            metavar="NAME=VALUE",
            help="A parameter, as name=value; may be repeated. E.g. prior_weight=inf",
        ),
    ] = None,
    threshold_on: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="In-distribution outputs that set the threshold; not the training set."),
    ] = None,
    keep: Annotated[
        float | None, typer.Option(help="Share of in-distribution inputs to accept; 0.95 unless given.")
    ] = None,
    conformal: Annotated[
        bool, typer.Option("--conformal", help="Finite-sample correction: a NEW input is kept with at least KEEP.")
    ] = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="One threshold for each predicted class.")] = False,
    stream: Annotated[
        bool,
        typer.Option("--stream/--frozen", help="Set the threshold on streamed scores, for `score --stream` alone."),
    ] = False,
    class_names: Annotated[
        str | None, typer.Option(metavar="A,B,...", help="Names of the classes, where the table has none.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help=PROBABILITIES_HELP)] = False,
    engine: EngineOption = None,
    workers: WorkersOption = None,
    address: AddressOption = None,
    piece_rows: PieceRowsOption = None,
    on_invalid: Annotated[
        OnInvalid, typer.Option(help="A row with NaN or infinity: stop, or leave it out.")
    ] = OnInvalid.RAISE,
    dry_run: DryRunOption = False,
) -> None:
    """Fit a detector on the outputs of a training set and save it."""
    if not output.endswith(".safetensors"):
        raise InvalidInput(f"a detector file ends in .safetensors; got {output!r}.")
    check_folder(output)
    if threshold_on is None and (keep is not None or conformal or per_class or stream):
        raise InvalidInput(
            "--keep, --conformal, --per-class and --stream say how to set a threshold; add --threshold-on TABLE."
        )
    many = ManyFiles(engine, workers, address, piece_rows, dry_run)
    skip_invalid = on_invalid is OnInvalid.SKIP
    seen = _Seen()
    source: Input | Layout
    train = tables[0]
    gathered: ModelOutputs | None = None
    if detector == AUTO:
        if many.wanted(tables) or param:
            raise InvalidInput("--detector auto reads one table and takes no --param; name a detector instead.")
        names = [LOGITS, FEATURES]
        source = Input(train, names, probabilities=probabilities, check_labels=True, skip_invalid=skip_invalid)
        gathered = source.read()
        model, reason = choose_detector(gathered)
        model.choice = f"chosen by --detector auto: {reason}"
        typer.echo(f"auto: {model.name}, because {reason}; docs/choosing.md says how well that does", err=True)
    else:
        chosen = detector or (DEFAULT_IN_PARTS if many.wanted(tables) else DEFAULT)
        model = make_detector(chosen, **parse_parameters(param or []))
        if detector is None and chosen != DEFAULT:
            note(
                f"{chosen} is fitted, and not {DEFAULT} as on one table: "
                f"{make_detector(DEFAULT).why_all_rows()}. To have that one, fit it on one table, such as a sample of "
                "the rows; many files it scores frozen."
            )
    wanted = [*model.reads, *model.reads_in_fit, LOGITS]
    reads_logits = LOGITS in (*model.reads, *model.reads_in_fit)
    if gathered is not None:
        model.fit_chunks(seen.watch(iter([gathered])))
    elif many.wanted(tables):
        if probabilities:
            raise InvalidInput("--probabilities reads one table; take the logarithm where the files are written.")
        result = fit_many(tables, model, many, on_invalid)
        if result is None:
            return
        source = result.layout
        seen.n_rows, seen.labels = result.n_rows, set(result.labels)
    else:
        source = Input(
            train,
            wanted,
            probabilities=probabilities,
            refuse_probabilities=reads_logits,
            check_labels=True,
            skip_invalid=skip_invalid,
        )
        model.fit_chunks(seen.watch(source.chunks(f"fitting {model.name}")))
        if detector is None and not is_pipe(train) and FEATURES in Input(train).names:
            seen.told_of_auto = True
            note(f"{train} has features, and {model.name} reads logits alone; --detector auto would use both.")
    _note_missing_classes(model, seen)
    model.class_names = _names(class_names, source, train)
    if source.n_classes is not None and looks_transposed(seen.n_rows, source.n_classes, seen.first_logits):
        note(
            f"{train} has {seen.n_rows} rows of {source.n_classes} classes. Did rows and columns change places? A row "
            "is an input, a column a class: logits.T turns them."
        )
    if threshold_on is not None:
        held_out = Input(
            threshold_on,
            wanted,
            class_names=model.class_names,
            probabilities=probabilities,
            refuse_probabilities=reads_logits,
            skip_invalid=skip_invalid,
        ).read()
        model.set_threshold(
            held_out, 0.95 if keep is None else keep, conformal=conformal, per_class=per_class, stream=stream
        )
        seen.compare_with(held_out, train, threshold_on)
        if not stream:
            _warn_of_streams(model, held_out)
    model.save(output)
    on = "" if source.n_classes is None else f" on {source.n_classes} classes"
    typer.echo(f"fitted {model!r}{on}; saved to {output}", err=True)
    typer.echo(
        _what_to_try(train, knows_auto=detector == AUTO or seen.told_of_auto, many=many.wanted(tables)), err=True
    )
    if model.threshold_ is None:
        typer.echo("no threshold yet: add --threshold-on VALIDATION to let it answer yes or no", err=True)
    else:
        limit = model.threshold_
        typer.echo(f"threshold {limit.value:.6g} keeps {limit.keep:.1%} of {limit.n} inputs", err=True)


class _Seen:
    """The training rows that went by, as far as they matter to what comes after them."""

    def __init__(self) -> None:
        self.n_rows = 0
        self.told_of_auto = False
        self.labels: set[int] = set()
        self.first_logits: Rows | None = None
        """Some of the rows, to see whether rows and columns changed places."""
        self._sketch = RowSketch()

    def watch(self, chunks: Iterator[ModelOutputs]) -> Iterator[ModelOutputs]:
        """Pass the chunks on."""
        for chunk in chunks:
            self.n_rows += len(chunk)
            if chunk.labels is not None:
                self.labels.update(np.unique(chunk.labels[chunk.labels >= 0]).tolist())
            self._sketch.take_in(chunk.array(chunk.names[0]))
            self._keep_logits(chunk.get(LOGITS))
            yield chunk

    def _keep_logits(self, logits: Rows | None) -> None:
        kept = 0 if self.first_logits is None else len(self.first_logits)
        if logits is not None and kept < _KEPT_ROWS:
            more = np.asarray(logits[: _KEPT_ROWS - kept], dtype=np.float64)
            self.first_logits = more if self.first_logits is None else np.concatenate([self.first_logits, more])

    def compare_with(self, held_out: ModelOutputs, train: str, threshold_on: str) -> None:
        """Say so where the threshold was set on rows that the detector was fitted on."""
        other = RowSketch()
        other.take_in(held_out.array(held_out.names[0]))
        share = self._sketch.share_of(other)
        if share is not None and share > 0.5:
            note(
                f"{100 * share:.0f} % of the rows of {threshold_on} are also in {train}. A classifier is surer of what "
                "it was trained on, so more new inputs than --keep says will be flagged; set the threshold on inputs "
                "that neither the classifier nor the detector was trained on."
            )


def _what_to_try(train: str, *, knows_auto: bool, many: bool) -> str:
    """One line on how to find a better detector; ``-d auto`` is left out where it was named, or cannot be had."""
    table = "TRAIN" if train == "-" else shlex.quote(train)
    compare = f"to compare {'' if many else 'all '}detectors on OoD rows of your own: normscale eval "
    compare += f"--train {table} --id TEST --ood OOD" + (" --engine local -d NAME -d NAME" if many else "")
    return compare if knows_auto or many else f"{compare}; to have one chosen without any: fit -d {AUTO}"


def _note_missing_classes(model: Detector, seen: _Seen) -> None:
    """Say how many classes no training row shows: by labels where there are any, else by predictions."""
    if model.baseline_ is None or not seen.n_rows:
        return
    counts = model.baseline_.predicted
    shown = len(seen.labels) if seen.labels else int((counts > 0).sum())
    if shown < counts.size:
        note(
            f"the rows show {shown} of {counts.size} classes ({'labels' if seen.labels else 'predicted classes'}). "
            "The other logits hardly vary on these rows, so norm-scaling divides them by next to nothing and takes any "
            f"change for certainty; {DEFAULT} leaves them out."
        )


def _warn_of_streams(model: Detector, held_out: ModelOutputs) -> None:
    """Say so where a stream would flag many more of the very rows that set the threshold."""
    limit = model.threshold_
    if not model.has_running_statistics or limit is None or limit.keep is None:
        return
    share = float(model.decide(copy.copy(model).stream(held_out), held_out).mean())
    if share > 2.0 * (1.0 - limit.keep) + 0.05:
        note(
            f"the threshold is for scores as fitted; of the same rows {100 * share:.0f} % would be flagged by "
            "`score --stream`. Add --stream to set it on streamed scores."
        )


def _names(typed: str | None, source: Input | Layout, path: str) -> tuple[str, ...] | None:
    """The names of the classes: the table's, or those that were typed."""
    names = tuple(typed.split(",")) if typed else source.class_names
    if names is not None and len(names) != source.n_classes:
        known = "the table tells of none" if source.n_classes is None else f"must name {source.n_classes} classes"
        raise InvalidInput(f"--class-names {known}; got {len(names)}.")
    if typed and source.class_names is not None and names != source.class_names:
        raise InvalidInput(
            f"--class-names says {', '.join(names or ())}, and the columns of {path} are called "
            f"{', '.join(source.class_names)}. Columns are matched by name, so leave --class-names out, or rename them."
        )
    return names


def parse_parameters(pairs: list[str]) -> dict[str, Any]:
    """Read name=value pairs; a value with commas is a list.

    Examples
    --------
    >>> parse_parameters(["prior_weight=inf", "score=energy", "layers=layer3,features"])
    {'prior_weight': inf, 'score': 'energy', 'layers': ['layer3', 'features']}
    """
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--param must look like name=value; got {pair!r}.")
        parts = [_value(part) for part in text.split(",")]
        parameters[name] = parts if len(parts) > 1 else parts[0]
    return parameters


def _value(text: str) -> Any:
    """A number where it looks like one, ``inf`` included; true or false; else a word."""
    try:
        return float(text)
    except ValueError:
        return {"true": True, "false": False}.get(text, text)
