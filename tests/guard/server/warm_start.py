"""Start ``normscale serve`` from a process that has imported it before: in a tenth of a second instead of some.

The program is the same; only its imports are not done again. It still is a process of its own, in a session of its own.
It needs the standard library alone, for every program imports this file.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

PRELOADED = ("normscale.cli", "normscale.cli.serve", "normscale.guard.server.run", "normscale.guard.server.settings")


class WarmProgram:
    """A process with what the tests need of :class:`subprocess.Popen`."""

    def __init__(self, words: list[str], variables: dict[str, str], log: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        self._process = context.Process(target=_run, args=(words, variables, str(log)))
        self._process.start()
        multiprocessing.process._children.discard(self._process)  # type: ignore[attr-defined]  # nobody waits at the end
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float = 60.0) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("normscale serve", timeout)
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, and its exit code is on the way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_program(words: list[str], variables: dict[str, str], log: Path) -> WarmProgram | subprocess.Popen[bytes]:
    """``normscale WORDS`` with these variables, its output at the end of a log; warm in tests that measure no start.

    Workers, compiled kernels and variables that Python itself reads need a start from scratch.
    """
    own = {name for name, value in variables.items() if os.environ.get(name) != value}
    is_plain = "--workers" not in words and all(name.startswith("NORMSCALE_") for name in own)
    if "PYTEST_CURRENT_TEST" in os.environ and is_plain and variables.get("NORMSCALE_KERNELS") == "numpy":
        return WarmProgram(words, variables, log)
    with log.open("ab") as file:
        command = [sys.executable, "-m", "normscale", *words]
        return subprocess.Popen(command, env=variables, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def _run(words: list[str], variables: dict[str, str], log: str) -> None:
    os.setsid()
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), (log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)]):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["normscale", *words]
    from normscale.cli import main

    main()
