"""The machine's clock jumps by a day and by a year, back and forth, while a guard runs and between two starts."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import Block, Moments, make_block
from guard.server.running import Client, Reply, Server
from guard.server.test_durability import LEARN

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")
LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="no libfaketime on this machine (apt-get install faketime)")

DAY, YEAR = 86400.0, 365 * 86400.0


class WallClock:
    """What processes that are started with its ``environment`` take for the time of day."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0.0)
        self.environment = {
            "LD_PRELOAD": str(LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "NO_FAKE_STAT": "1",  # or Python would take every compiled module for outdated
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, ahead: float) -> None:
        """So many seconds ahead of the true time, at once, in processes that run already too."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(f"{ahead:+.0f}\n")
        os.replace(fresh, self._file)

    def read(self) -> float:
        """How far ahead such a process is."""
        command = [sys.executable, "-c", "import time; print(time.time())"]
        told = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=True, timeout=120
        )
        return float(told.stdout) - time.time()


@pytest.fixture
def wall(tmp_path: Path) -> WallClock:
    clock = WallClock(tmp_path / "ahead")
    clock.set(YEAR)
    if abs(clock.read() - YEAR) > 60:
        pytest.skip("libfaketime does not work on this machine")
    clock.set(0.0)
    return clock


def test_jumps_of_the_clock_move_nothing(start_server: Start, wall: WallClock, tmp_path: Path) -> None:
    blocks: list[Block] = []

    def send(client: Client, repeat: int | None = None) -> Reply:
        block = make_block(0, len(blocks)) if repeat is None else blocks[repeat]
        reply = client.score(block.rows, binary=block.number % 2 == 1, key=block.key)
        assert reply.status == 200, reply
        assert ("repeated" in reply.answer) == (repeat is not None)
        if repeat is None:
            blocks.append(block)
        return reply

    def start(ahead: float) -> tuple[Server, Client]:
        wall.set(ahead)
        server = start_server(*LEARN, environment=wall.environment)
        return server, server.client()

    server, client = start(0.0)
    first = send(client).answer
    began = time.monotonic()
    times = [client.state()["now"]]
    for ahead in (DAY, -DAY, YEAR, -YEAR, 0.0):
        wall.set(ahead)
        for _ in range(5):
            send(client)
        assert send(client, repeat=0).answer == first | {"repeated": True}
        assert client.ask("GET", "/metrics").status == client.ask("GET", "/v2/health/ready").status == 200
        times.append(client.state()["now"])
    assert times == sorted(times)
    assert times[-1] - times[0] < time.monotonic() - began + 1  # none of it was seen, however busy the machine

    for ahead in (YEAR, -DAY):  # across restarts, and a kill rather than an end: no time to write anything down
        server.kill()
        server, client = start(ahead)
        assert send(client, repeat=0).answer == first | {"repeated": True}
        send(client)
        assert send(client, repeat=-1).status == 200
    assert Moments.told(client.state()).distance(Moments.expected(ns.NormScaling(), blocks)) < 1e-12
    server.kill()
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        written = [at for (at,) in database.execute("SELECT at FROM log ORDER BY seq")]
    assert len(written) == len(blocks)
    assert written == sorted(written)
    assert written[-2] - written[0] > YEAR - DAY  # a clock that was put right between two starts is followed
