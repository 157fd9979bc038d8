"""What only Linux has does not stand in the way elsewhere: the library imports, fits and scores without it."""

from __future__ import annotations

from pathlib import Path

from program import python

HIDE = """
import os, signal, sys
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None  # importing it fails, as on Windows
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGCHLD", "SIGALRM"):
    delattr(signal, name)
for name in ("fork", "getuid", "geteuid", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
"""

IMPORT_ALL = """
import importlib, pkgutil
import normscale
rooms = ("rows", "detectors", "metrics", "jobs", "cli", "input_checks", "encoding", "guard")
for module in pkgutil.walk_packages(normscale.__path__, "normscale."):
    if module.name.split(".")[1] in rooms or module.name.count(".") == 1:
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except normscale.MissingExtra:
                pass
"""

WORK = """
from normscale.cli import app
from typer.testing import CliRunner
for words in (["fit", "sample:train", "-o", "{folder}/a.safetensors"],
              ["score", "{folder}/a.safetensors", "sample:test", "-o", "{folder}/out.csv"]):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
from normscale._lock import locked
with locked("{folder}"):
    pass
"""


def test_every_module_imports_where_linux_modules_are_missing() -> None:
    done = python(HIDE + IMPORT_ALL, NORMSCALE_KERNELS="numpy")
    assert done.returncode == 0, done.stderr


def test_fit_and_score_work_where_linux_modules_are_missing(tmp_path: Path) -> None:
    done = python(HIDE + WORK.replace("{folder}", str(tmp_path)), NORMSCALE_KERNELS="numpy")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.csv").is_file()
