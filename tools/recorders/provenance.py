"""What every record says about how it was made."""

from __future__ import annotations

import math
import subprocess
from datetime import date
from pathlib import Path
from typing import Any

from normscale._provenance import environment


def output_of(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """Of this checkout, wherever a tool is started."""
    return output_of("git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD")


def short(argument: str) -> str:
    """A path by its last two parts, so that a record says nothing about the machine."""
    return "/".join(argument.split("/")[-2:])


def rounded(value: Any) -> Any:
    """Numbers with four digits, also inside of lists and mappings; one that is not there is null."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    if not isinstance(value, float):
        return value
    return None if math.isnan(value) else round(value, 4)


def head(command: list[str]) -> dict[str, Any]:
    """The command, the commit, the date and the versions."""
    words = " ".join(map(short, command))
    return {"command": words, "commit": commit(), "date": date.today().isoformat(), "made_with": environment()}
