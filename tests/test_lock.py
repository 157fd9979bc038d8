"""One process at a time in a folder, and a dead one never in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import normscale as ns
from normscale._lock import locked

HOLD = (
    "import sys, time\nfrom normscale._lock import locked\n"
    "with locked(sys.argv[1]):\n print('held', flush=True)\n time.sleep(60)"
)


def test_a_second_process_is_told_and_a_killed_one_forgotten(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    folder = tmp_path / "run"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ns.FolderInUse, match=rf"another process \(id {holder.pid}\)"), locked(folder, wait=False):
            pass
    finally:
        holder.kill()
        holder.wait(60)
        holder.stdout.close()
    with locked(folder, wait=False):
        pass
