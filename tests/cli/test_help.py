"""The help of every command: one line an option, headings where there are many, examples that run."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from normscale.cli import COMMANDS, LazyGroup, _build, app

RUN = ("fit", "score", "eval", "detectors", "doctor", "token")
"""Commands whose examples need nothing but the sample and take seconds."""
REFERENCE = Path(__file__).parents[2] / "docs" / "cli.md"
"""All help pages as a terminal of 100 columns shows them; tests/test_docs.py compares it with the commands."""


def commands() -> list[Any]:
    built = [_build(name) for name in COMMANDS]
    return [one for command in built for one in (getattr(command, "commands", {}).values() or [command])]


def examples(command: Any) -> list[str]:
    return re.findall(r"normscale [a-z][^\[|]*", command.epilog or "")


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_options_have_a_text_and_many_have_headings(command: Any) -> None:
    for parameter in command.params:
        assert getattr(parameter, "help", None), parameter.name
    panels = {getattr(one, "rich_help_panel", None) for one in command.params if one.param_type_name == "option"}
    assert len(command.params) <= 12 or len(panels) > 1


def test_an_option_or_command_is_one_line() -> None:
    lines = REFERENCE.read_text().splitlines()
    assert sum(line.startswith("│") for line in lines) > 150
    assert [line for line in lines if re.match("│ {12}", line)] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_in_a_narrow_terminal_an_option_is_two_lines_at_most(name: str) -> None:
    lines = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).output.splitlines()
    goes_on = [line.startswith("│" + " " * 12) for line in lines]
    assert any(line.startswith("│") for line in lines)
    assert not any(map(all, pairwise(goes_on)))


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_examples_have_options_that_there_are(command: Any) -> None:
    assert examples(command), command.name
    for example in examples(command):
        words = shlex.split(example)[1:]
        name, rest = words[0], words[1:]
        found: Any = LazyGroup(name="normscale").get_command(None, name)
        if hasattr(found, "commands"):
            found, rest = found.commands[rest[0]], rest[1:]
        with found.make_context(name, list(rest), resilient_parsing=True) as context:
            assert not context.args


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in RUN:
        for example in examples(_build(name)):
            done = CliRunner().invoke(app, shlex.split(example)[1:])
            assert done.exit_code == 0, (example, done.output, done.exception)
    assert (tmp_path / "detector.safetensors").exists()
    assert (tmp_path / "out").is_dir()
