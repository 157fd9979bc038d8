"""Commands that are imported when they are asked for: what a command needs is loaded for that command alone."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command as built

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
    command.name = name
    return command
