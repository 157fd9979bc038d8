"""Workers end with the process that started them, also when that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from normscale._processes import end_with_parent

CODE = """
import multiprocessing, os, signal, sys, time
from normscale._processes import end_with_parent

def work(path, gently):
    if gently:
        def told(*_):
            with open(path + ".told", "w"):
                pass
            os._exit(0)
        signal.signal(signal.SIGTERM, told)
    end_with_parent(gently=gently)
    with open(path + ".part", "w") as file:
        file.write(str(os.getpid()))
    os.rename(path + ".part", path)
    while True:
        time.sleep(0.05)

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(sys.argv[1], sys.argv[2] == "gently"))
    worker.start()
    worker.join(60)
"""


def alive(process: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for counts as ended."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + 60
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.02)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at Linux's list of processes")
@pytest.mark.parametrize("how", ["gently", "at once"])
def test_a_worker_ends_with_a_parent_that_is_killed(tmp_path: Path, how: str) -> None:
    script, path = tmp_path / "parent.py", tmp_path / "worker"
    script.write_text(CODE)
    parent = subprocess.Popen([sys.executable, str(script), str(path), how])
    try:
        wait_for(path.exists)
        worker = int(path.read_text())
        assert alive(worker)
    finally:
        parent.kill()
        parent.wait(60)
    wait_for(lambda: not alive(worker))
    assert (tmp_path / "worker.told").exists() == (how == "gently")


def test_a_process_that_nobody_started_is_left_alone() -> None:
    before = os.getpid()
    end_with_parent()
    assert os.getpid() == before
