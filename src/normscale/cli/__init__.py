"""The command line: open inputs, call the library, print. One file per command, imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command as built

from normscale._kernels import announce_compilation
from normscale._version import __version__
from normscale.cli._sentences import as_options
from normscale.detectors.registry import add_plugins
from normscale.errors import NormscaleError, NumericalWarning

COMMANDS = {
    "extract": "extract:extract_outputs",
    "fit": "fit:fit",
    "score": "score:score",
    "eval": "evaluate:evaluate",
    "compare": "compare:compare",
    "audit": "audit:audit_claims",
    "bench": "bench:bench",
    "stress": "stress:command",
    "report": "report:report",
    "leaderboard": "leaderboard:leaderboard",
    "train": "train:train",
    "serve": "serve:serve",
    "watch": "watch:watch",
    "token": "token:token",
    "export": "export:export",
    "detectors": "detectors:detectors",
    "doctor": "doctor:doctor",
    "data": "data:app",
}
"""Name -> module of this folder and what it calls the command; in the order of the help."""
PANELS = {
    "Stream": "stream by order_by save",
    "Threshold": "threshold_on keep conformal per_class stream",
    "Reading the tables": "arrays class_names probabilities on_invalid keep_columns column label classes",
    "Where the work is done": "engine workers address piece_rows memory dry_run threads device batch_size",
    "Preprocessing": "size resize mean std interpolation",
    "Network": "layers feature_layer weights dtype",
    "HTTP server": "port host tokens allow_host trusted_proxy log_format webhook demo",
    "Results": "format report figures picture pdf seed",
}
"""Headings of the help, and the options below them in every command that has several of these."""


class LazyGroup(TyperGroup):
    """Builds a command on its first use."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a reader of our pipe that has what it wanted is no error, as click takes it for."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; for a name that is none, all are built, so that one like it can be suggested."""
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.commands[name] = _build(name)
        return super().get_command(ctx, cmd_name)


def _build(name: str) -> Any:
    file, attribute = COMMANDS[name].split(":")
    module = importlib.import_module(f"normscale.cli.{file}")
    found = getattr(module, attribute)
    if isinstance(found, typer.Typer):
        command = built(found)
    else:
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        alone.command(name, epilog=module.EXAMPLE)(found)
        command = built(alone)
    for each in (command, *getattr(command, "commands", {}).values()):
        _tidy(each.params)
    command.name = name
    return command


def _tidy(parameters: list[Any]) -> None:
    """Put options below headings where there are many, and show types as a reader needs them."""
    names = {parameter.name for parameter in parameters}
    panels = {panel: names & set(options.split()) for panel, options in PANELS.items()}
    for parameter in parameters:
        if len(parameters) > 8 and parameter.param_type_name == "option":
            panel = next((one for one, own in panels.items() if parameter.name in own and len(own) > 1), None)
            parameter.rich_help_panel = parameter.rich_help_panel or panel
        if hasattr(parameter, "display_type"):  # other versions of typer name types otherwise
            parameter.display_type = _plain_type(parameter.display_type)


def _plain_type(display_type: Callable[..., object]) -> Callable[..., str]:
    """Show ``<str>...`` for what may be repeated, and neither bounds nor the type of a flag."""
    tidy = ((r"<list\[(.*)\]>", r"<\1>..."), (r"<(int|float) range>.*", r"<\1>"), ("<bool>", ""))

    def shown(*words: Any, **options: Any) -> str:
        text = str(display_type(*words, **options))
        for pattern, plain in tidy:
            text = re.sub(pattern, plain, text)
        return text

    return shown


app = typer.Typer(
    name="normscale",
    cls=LazyGroup,
    help="Tell, for every answer of a classifier, whether the input was one it was trained for.",
    epilog="Tables of logits: .npz .npy .safetensors .parquet .csv .tsv .jsonl (text also .gz), - for a pipe, or "
    "sample:NAME for the embedded sample. Exit codes: 0 done, 1 an error that is explained, 2 wrong usage.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"normscale {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    plugin: list[str] | None = typer.Option(  # noqa: B008
        None, metavar="FILE.py", help="A Python file that registers detectors of your own; may be repeated."
    ),
) -> None:
    """Take the options that come before a command."""
    if plugin:
        add_plugins(plugin)


def _say_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of ours as a sentence, without the line of code it came from."""
    text = warnings.formatwarning(message, category, filename, lineno, line)
    typer.echo(
        f"normscale: note: {as_options(str(message))}" if issubclass(category, NumericalWarning) else text, err=True
    )


def main() -> None:
    """Run the command line; an error of ours becomes one sentence and exit code 1."""
    warnings.showwarning = _say_warning
    announce_compilation(
        lambda: typer.echo("compiling for this machine; this takes up to a minute, once ...", err=True)
    )
    try:
        app(prog_name="normscale")
    except NormscaleError as error:
        typer.echo(f"normscale: {as_options(str(error))}", err=True)
        sys.exit(1)
    except OSError as error:
        typer.echo(f"normscale: {error.strerror or error}: {error.filename or ''}".rstrip(": "), err=True)
        sys.exit(1)
