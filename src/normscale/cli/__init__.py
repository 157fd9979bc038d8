"""The command line: open inputs, call the library, print. One file per command, imported when it is asked for."""

from __future__ import annotations

import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as built

from normscale._kernels import announce_compilation
from normscale._version import __version__
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


_ARGUMENT = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=(True|'[^']*'|\"[^\"]*\")")
_ADVICE = (
    (r"\bpass ModelOutputs\(\.\.\., head=\(weight, bias\)\)", "give a table with head_weight and head_bias"),
    (r"\bpass ModelOutputs\((?:\.\.\., |logits, )?(\w+)=\.\.\.\)", r"give a table with \1"),
    (r"\bPass ModelOutputs\((\w+)=\.\.\.\)", r"Give a table with \1"),
    (r"call set_threshold\(.*?\) first, or set threshold_ = Threshold\(value\)", "fit it with --threshold-on TABLE"),
    (r"call fit\(outputs\) or load_detector\(path\) first", "`normscale fit` makes one that is"),
    (r"\bns\.list_detectors\(\) names", "`normscale detectors` lists"),
    (r" normscale\.extraction\.extract does so by itself\.", ""),
    (r"\bfeatures=False", "--no-features"),
    (r"\bPass class_names, the model's classes in their order", "Pass them in their order, --classes FILE"),
    (r"\bLeave device out", "Leave --device out"),
)
"""Advice that the library writes for Python, and the words of the command line."""


def say(text: str) -> None:
    """Print a line on standard error."""
    typer.echo(text, err=True)


def option(text: str, *words: str, shown: str | bool = True, **more: Any) -> Any:
    """An option of a command by its help text, its flags (``--output``, ``-o``), and what stands for its value.

    Flags are needed where the parameter's name does not say them; ``shown`` is its default, as people read it.
    """
    flags, values = ([word for word in words if word.startswith("-") == is_flag] for is_flag in (True, False))
    return typer.Option(*flags, help=text, metavar=next(iter(values), None), show_default=shown, **more)


def example_lines(*commands: str) -> str:
    """Commands as the end of a help page, a line each."""
    return "\n\n".join(["Examples:" if len(commands) > 1 else "Example:", *(f"[bold]{one}[/bold]" for one in commands)])


def as_options(sentence: str) -> str:
    """Advice that is written for Python, as one types it on the command line.

    Examples
    --------
    >>> as_options('Drop the row or pass on_invalid="skip".')
    'Drop the row or pass --on-invalid skip.'
    >>> as_options("knn reads features; got outputs with logits. Pass ModelOutputs(features=...).")
    'knn reads features; got outputs with logits. Give a table with features.'
    """
    for python, words in _ADVICE:
        sentence = re.sub(python, words, sentence)
    return _ARGUMENT.sub(_option, sentence)


def _option(found: re.Match[str]) -> str:
    value = "" if found[2] == "True" else f" {found[2][1:-1]}"
    return f"--{found[1].replace('_', '-')}{value}"


class LazyGroup(TyperGroup):
    """Builds a command on its first use."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The options before a command; the help of each fits one line."""
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if parameter.name.endswith("_completion"):
                parameter.help = "Completion for the current shell."
        return parameters

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
        alone.command(name, epilog=example_lines(*module.EXAMPLES))(found)
        command = built(alone)
    for each in (command, *getattr(command, "commands", {}).values()):
        _tidy(each.params)
    command.name = name
    return command


def _tidy(parameters: list[Any]) -> None:
    """Put options below headings where there are many; show types and defaults within one line."""
    names = {parameter.name for parameter in parameters}
    panels = {panel: names & set(options.split()) for panel, options in PANELS.items()}
    for parameter in parameters:
        if len(parameters) > 8 and parameter.param_type_name == "option":
            panel = next((one for one, own in panels.items() if parameter.name in own and len(own) > 1), None)
            parameter.rich_help_panel = parameter.rich_help_panel or panel
        if parameter.show_default and not parameter.required and (default := _default(parameter)):
            parameter.help = f"{parameter.help} ({default})"
        parameter.show_default = False
        if hasattr(parameter, "display_type"):  # other versions of typer name types otherwise
            parameter.display_type = _plain_type(parameter.display_type)
            parameter._get_number_range_help_str = lambda: None


def _default(parameter: Any) -> str:
    """The default as it is typed; nothing where there is none."""
    value = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if isinstance(value, bool):
        names = parameter.opts if value else parameter.secondary_opts
        return names[0].removeprefix("--") if parameter.secondary_opts else ""
    return "" if value in (None, (), []) else str(value)


def _plain_type(display_type: Callable[..., object]) -> Callable[..., str]:
    """Show ``<str>...`` for what may be repeated, and neither bounds nor the type of a flag."""
    patterns = ((r"<list\[(.*)\]>", r"<\1>..."), (r"<(int|float)( range)?>.*", r"<\1>"), ("<bool>", ""))

    def plain_type(*words: Any, **options: Any) -> str:
        text = str(display_type(*words, **options))
        for pattern, plain in patterns:
            text = re.sub(pattern, plain, text)
        return text

    return plain_type


app = typer.Typer(
    name="normscale",
    cls=LazyGroup,
    help="Tell, for every answer of a classifier, whether the input was one it was trained for.",
    epilog="Tables: .npz .npy .safetensors .parquet .csv .tsv .jsonl (text also .gz), - for a pipe, or sample:NAME.\n\n"
    "Defaults stand in parentheses. Exit codes: 0 done, 1 an error that is explained, 2 wrong usage.\n\n"
    + example_lines("normscale fit sample:train -o detector.safetensors --threshold-on sample:validation"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(given: bool) -> None:
    if given:
        typer.echo(f"normscale {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
    plugin: list[str] | None = typer.Option(None, metavar="FILE.py", help="Registers your own detectors."),  # noqa: B008
) -> None:
    """Take the options that come before a command."""
    if plugin:
        add_plugins(plugin)


def _say_warning(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
    """Print a warning of ours as a sentence, without the line of code it came from."""
    if issubclass(category, NumericalWarning):
        say(f"normscale: note: {as_options(str(message))}")
    else:
        say(warnings.formatwarning(message, category, *where[:2]))


def main() -> None:
    """Run the command line; an error of ours becomes one sentence and exit code 1."""
    warnings.showwarning = _say_warning
    announce_compilation(lambda: say("compiling for this machine; this takes up to a minute, once ..."))
    try:
        app(prog_name="normscale")
    except NormscaleError as error:
        say(f"normscale: {as_options(str(error))}")
        sys.exit(1)
    except OSError as error:
        say(f"normscale: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
        sys.exit(1)
