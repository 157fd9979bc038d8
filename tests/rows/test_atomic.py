"""Files appear whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from normscale._atomic import _host, atomic_path


def test_success_leaves_the_new_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with atomic_path(path) as temporary:
        assert Path(temporary).parent == tmp_path
        assert temporary.endswith(".txt")
        Path(temporary).write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_file_and_no_other(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_path(path) as temporary:
            Path(temporary).write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    with atomic_path(tmp_path / "a") as temporary:
        Path(temporary).write_text("x")
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE(ordinary.stat().st_mode)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with atomic_path(link) as temporary:
        Path(temporary).write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_device_is_not_replaced(tmp_path: Path) -> None:
    with atomic_path(os.devnull) as temporary:
        assert temporary == os.devnull
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with atomic_path(fifo) as temporary:
        assert temporary == str(fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"), atomic_path(tmp_path):
        pass
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "nowhere" / "a"):
        pass


def test_the_file_reaches_the_disk_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(handle: int) -> None:
        steps.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def watched_replace(source: str, target: str) -> None:
        steps.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    with atomic_path(tmp_path / "a") as temporary:
        Path(temporary).write_text("x")
    assert steps == ["file", "replace", "folder"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_kill_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    path.write_text("old")
    code = (
        "import time\n"
        "import numpy as np\n"
        "from normscale.rows import open_sink\n"
        f"with open_sink({str(path)!r}, {{'score': np.dtype(float)}}) as sink:\n"
        "    sink.write({'score': np.ones(100_000)})\n"
        "    print('half', flush=True)\n"
        "    time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "half\n"
    child.send_signal(signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
    assert path.read_text() == "old"
    left = [name for name in os.listdir(tmp_path) if name != path.name]
    assert len(left) == 1  # what a killed process leaves behind ...
    other = tmp_path / left[0].replace("scores", "others")
    other.touch()
    with atomic_path(path) as temporary:
        Path(temporary).write_text("new")
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, other.name])  # ... goes when the file is written again
    assert path.read_text() == "new"


def test_temporary_files_of_the_living_and_of_other_machines_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_path(path) as mine:
        foreign = Path(mine.replace(f".{os.getpid()}-", ".4194305-").replace(_host(), "00000000"))
        foreign.touch()
        with atomic_path(path) as second:
            assert Path(mine).exists()
            Path(second).write_text("x")
        assert foreign.exists()
        Path(mine).write_text("y")
    assert path.read_text() == "y"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs a file system with permissions")
def test_a_file_that_cannot_be_made_is_named_as_the_caller_named_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied", "/internal")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(PermissionError, match=r"denied: '.*a\.csv'$"), atomic_path(tmp_path / "a.csv"):
        pass
