"""The program in a process of its own, as a person starts it; or in this process, which is faster.

A process that has imported the commands once forks for every one, which saves a second each.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

PLAIN = {"NORMSCALE_KERNELS": "numpy", "COLUMNS": "120", "NO_COLOR": "1"}
"""The environment unless a test says otherwise; None takes a variable away."""
SECONDS = 280
"""How long a command may take."""

SERVER = """
import contextlib, importlib, json, os, runpy, sys, traceback

for name in ("audit", "compare", "detectors", "doctor", "evaluate", "export", "extract", "fit", "score", "stress"):
    with contextlib.suppress(ImportError):
        importlib.import_module(f"normscale.cli.{name}")
requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")


def run(request):
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.dup2(os.open(request[name], os.O_RDWR), number)
        setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    sys.argv = ["normscale", *request["arguments"]]
    code = 0
    try:
        runpy.run_module("normscale", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in requests:
    child = os.fork()
    if child == 0:
        run(json.loads(line))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
"""


@cache
def _server() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", SERVER]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)


def normscale(
    *arguments: object, cwd: Path | None = None, stdin: bytes | None = None, **environment: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    words = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as folder:
        files = {name: str(Path(folder) / name) for name in ("stdin", "stdout", "stderr")}
        for name, path in files.items():
            Path(path).write_bytes((stdin or b"") if name == "stdin" else b"")
        shared = {"cwd": str(cwd or Path.cwd()), "environment": _environment({**PLAIN, **environment})}
        code = _answer({"arguments": words, **shared, **files})
        out, err = (Path(files[name]).read_text("utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(["normscale", *words], code, out, err)


def _answer(request: dict[str, object]) -> int:
    server = _server()
    requests, answers = server.stdin, server.stdout
    assert requests is not None
    assert answers is not None
    requests.write(json.dumps(request).encode() + b"\n")
    requests.flush()
    if not select.select([answers], [], [], SECONDS)[0]:
        os.killpg(server.pid, signal.SIGKILL)  # with the command that it waits for
        _server.cache_clear()
        raise subprocess.TimeoutExpired(str(request["arguments"]), SECONDS)
    return int(answers.readline())


def normscale_here(*arguments: object, cwd: Path | None = None) -> Any:
    """Run a command in this process, with the numpy kernels; an error of ours is the result's ``exception``."""
    from typer.testing import CliRunner

    from normscale import _kernels
    from normscale._kernels import reference
    from normscale.cli import app

    before = os.getcwd()
    with warnings.catch_warnings(), mock.patch.object(_kernels, "_kernels", reference):
        warnings.simplefilter("ignore")
        os.chdir(cwd or before)
        try:
            return CliRunner().invoke(app, [str(argument) for argument in arguments])
        finally:
            os.chdir(before)


def python(code: str, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run some lines of Python."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=_environment(environment), timeout=SECONDS
    )


def _environment(changes: dict[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**os.environ, **changes}.items() if value is not None}
