"""The program in a process of its own, as a person starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLAIN = {"NORMSCALE_KERNELS": "numpy", "COLUMNS": "120", "NO_COLOR": "1"}
"""The environment unless a test says otherwise; None takes a variable away."""


def normscale(
    *arguments: object, cwd: Path | None = None, stdin: bytes | None = None, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return _run(["-m", "normscale", *map(str, arguments)], {**PLAIN, **environment}, cwd, stdin)


def python(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run some lines of Python."""
    return _run(["-c", code], environment, None, None)


def _run(
    words: list[str], environment: dict[str, str | None], cwd: Path | None, stdin: bytes | None
) -> subprocess.CompletedProcess[str]:
    wanted = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    done = subprocess.run(
        [sys.executable, *words], input=stdin, capture_output=True, cwd=cwd, env=wanted, timeout=300, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())
