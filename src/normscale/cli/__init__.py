"""The command line: open inputs, call the library, print. One file per command."""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

import typer

from normscale._kernels import announce_compilation
from normscale._version import __version__
from normscale.cli._lazy_commands import LazyGroup
from normscale.cli._sentences import as_options
from normscale.detectors.registry import add_plugins
from normscale.errors import NormscaleError, NumericalWarning

app = typer.Typer(
    name="normscale",
    cls=LazyGroup,
    help="Tell, for every answer of a classifier, whether the input was one it was trained for.",
    epilog="Tables of logits: .npz .npy .safetensors .parquet .csv .tsv (text also .gz), - for a pipe, or "
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
