"""Write docs/cli.md from the commands' own --help, so that the two cannot disagree; a test compares them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parent.parent / "docs" / "cli.md"

HEAD = """# The command line

Written by `make docs` from the commands' own help; do not edit.
`python -m normscale` is the same program as `normscale`.
"""


def help_of(*command: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "TERMINAL_WIDTH": "100"}
    result = subprocess.run(
        [sys.executable, "-m", "normscale", *command, "--help"], capture_output=True, text=True, env=environment
    )
    result.check_returncode()
    return "\n".join(line.rstrip() for line in result.stdout.strip("\n").splitlines())


def commands() -> list[tuple[str, ...]]:
    """Every command, and every command of a group."""
    import typer.main

    from normscale.cli import app

    group: Any = typer.main.get_command(app)
    found: list[tuple[str, ...]] = []
    for name in group.list_commands(None):
        inner = getattr(group.get_command(None, name), "commands", None)
        found += [(name,)] if inner is None else [(name, part) for part in inner]
    return found


def reference() -> str:
    parts = [HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## normscale {' '.join(command)}\n\n```text\n{help_of(*command)}\n```\n" for command in commands()]
    return "\n".join(parts)


if __name__ == "__main__":
    TARGET.write_text(reference())
