"""Downloads against a server that drops, lies, stalls and sends the wrong thing; and against kill -9."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.misbehaving_server import Server, serve
from normscale.data import download
from normscale.data.download import RemoteFile, fetch

CONTENT = np.random.default_rng(0).bytes(300_000)
SHA256, MD5 = hashlib.sha256(CONTENT).hexdigest(), hashlib.md5(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(download, "READ_SECONDS", 0.5)


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(CONTENT) as running:
        yield running


def wanted(server: Server, *behaviours: str, **known: Any) -> RemoteFile:
    known = known or {"size": len(CONTENT), "sha256": SHA256, "md5": MD5}
    return RemoteFile("file.bin", tuple(server.url(behaviour) for behaviour in behaviours), **known)


def assert_whole(path: Path) -> None:
    assert path.read_bytes() == CONTENT
    assert [entry.name for entry in path.parent.iterdir()] == ["file.bin"]  # no .part is left


BAD_DAYS = ["good", "drops", "drops_once_and_ignores_range", "broken_once", "redirects"]


@pytest.mark.parametrize(
    ("behaviour", "known"),
    [
        *((behaviour, {}) for behaviour in BAD_DAYS),
        *((behaviour, {"sha256": SHA256}) for behaviour in BAD_DAYS),
        ("says_too_much", {}),  # only who knows the size can tell that the promise is false
    ],
)
def test_a_bad_day_still_ends_with_the_file(
    server: Server, tmp_path: Path, behaviour: str, known: dict[str, Any]
) -> None:
    path, failures = fetch(wanted(server, behaviour, **known), tmp_path)
    assert failures == []
    assert_whole(path)


def test_a_dropped_connection_is_taken_up_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    fetch(wanted(server, "drops"), tmp_path)
    third = len(CONTENT) // 3 + 1
    assert server.asked("drops") == [None, f"bytes={third}-", f"bytes={2 * third}-"]


def test_the_next_mirror_goes_on_with_what_the_first_gave(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1234])
    path, failures = fetch(wanted(server, "missing", "good"), tmp_path)
    assert failures == []
    assert_whole(path)
    assert server.asked("good") == ["bytes=1234-"]


@pytest.mark.parametrize(
    ("behaviour", "says"),
    [
        ("wrong", "it sent something else: its MD5 is"),
        ("page", "it has 26 bytes instead of 300000"),
        ("missing", "HTTP 404"),
        ("broken", "HTTP 500"),
        ("hangs", "timed out"),
        ("dead", "300000 bytes short"),
        ("says_too_little", "it has 299900 bytes instead of 300000"),
        ("sends_too_much", "it sends more than the 300000 bytes"),
    ],
)
def test_what_a_mirror_did_is_told_and_the_next_one_is_asked(
    server: Server, tmp_path: Path, behaviour: str, says: str
) -> None:
    path, failures = fetch(wanted(server, behaviour), tmp_path)
    assert len(failures) == 1
    assert server.url(behaviour) in failures[0]
    assert says in failures[0]
    assert not path.exists()
    path, failures = fetch(wanted(server, behaviour, "good"), tmp_path)
    assert failures == []
    assert_whole(path)


@pytest.mark.parametrize(("behaviour", "requests"), [("missing", 1), ("broken", 3), ("hangs", 3), ("dead", 3)])
def test_retries_are_bounded(server: Server, tmp_path: Path, behaviour: str, requests: int) -> None:
    fetch(wanted(server, behaviour), tmp_path)
    assert len(server.asked(behaviour)) == requests


@pytest.mark.parametrize("behaviour", ["good", "ignores_range", "other_range"])
@pytest.mark.parametrize("left_behind", [b"something else" * 100, CONTENT + b"and more", CONTENT])
def test_a_part_from_elsewhere_does_no_harm(server: Server, tmp_path: Path, behaviour: str, left_behind: bytes) -> None:
    (tmp_path / "file.bin.part").write_bytes(left_behind)
    path, failures = fetch(wanted(server, behaviour), tmp_path)
    assert failures == []
    assert_whole(path)


def test_a_checked_file_is_not_fetched_again_and_a_wrong_one_is(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT)
    fetch(wanted(server, "good"), tmp_path)
    assert server.requests == []
    damaged = bytearray(CONTENT)
    damaged[150_000] ^= 4
    (tmp_path / "file.bin").write_bytes(damaged)
    fetch(wanted(server, "good"), tmp_path)
    assert_whole(tmp_path / "file.bin")


def test_a_machine_without_network_learns_it_soon(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/a"
        urls = ("http://no-such-host.invalid/a", "http://no-such-host.invalid/b", address)
        start = time.monotonic()
        _, failures = fetch(RemoteFile("a", urls), tmp_path)
    assert time.monotonic() - start < 5
    assert failures[0].startswith("no-such-host.invalid: the name is not known")
    assert failures[1].startswith("127.0.0.1: no answer (")
    assert len(failures) == 2  # a host that does not answer is asked once


def test_a_host_that_swallows_packets_costs_the_connect_time_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallow(address: Any, timeout: float) -> Any:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", swallow)
    _, failures = fetch(RemoteFile("a", ("http://10.255.255.1/a", "http://10.255.255.1/b")), tmp_path)
    assert failures == ["10.255.255.1: no answer (timed out)"]


def test_killed_in_the_middle_it_goes_on_from_there(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(2_000_000)
    with serve(content) as server:
        file = RemoteFile(
            "file.bin", (server.url("slow"),), size=len(content), sha256=hashlib.sha256(content).hexdigest()
        )
        part = tmp_path / "file.bin.part"
        code = f"from normscale.data.download import RemoteFile, fetch\nfetch({file!r}, {str(tmp_path)!r})"
        process = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (part.exists() and part.stat().st_size > 100_000):
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        have = part.stat().st_size
        assert 100_000 < have < len(content)
        assert not (tmp_path / "file.bin").exists()
        path, failures = fetch(file, tmp_path)
        assert failures == []
        assert path.read_bytes() == content
        assert server.asked("slow") == [None, f"bytes={have}-"]
        assert not part.exists()


def test_the_description_for_a_person_has_size_and_checksum() -> None:
    assert RemoteFile("a", (), size=3, md5="m", sha256="s").describe() == "3 bytes, SHA-256 s"
    assert RemoteFile("a", (), md5="m").describe() == "MD5 m"
    assert RemoteFile("a", ()).describe() == "size and checksum not published"
