"""An acknowledged row is in the statistics for good: kills, full disks, torn writes, several processes on one store."""

from __future__ import annotations

import fcntl
import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import SAMPLE, Block, Moments, Restarting, Sender, explain, make_block, wait_for_answers
from guard.server.running import HEADER, INFER, Server, binary_tensors, refusal
from normscale.guard import Guard, Policy, open_store
from normscale.guard.stores.sqlite import SqliteStore

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

LEARN = ("--on-drift", "ignore", "--outlier", "inf")
"""Every row is taken in: these tests are about keeping rows, not about choosing them."""
CLIENTS = 4


def killed(system: Restarting, senders: list[Sender], times: int, seed: int) -> Iterator[None]:
    """Kill the server while they send, at a moment that may be any; once more for every turn of the caller's loop."""
    moments = random.Random(seed)
    for _ in range(times):
        wait_for_answers(senders)  # a kill of a server that is just starting would prove little
        time.sleep(moments.uniform(0.0, 0.4))
        system.kill()
        yield
        system.replay()


def test_killed_at_random_moments_every_row_sent_with_a_key_counts_once(start_server: Start) -> None:
    system = Restarting(lambda: start_server(*LEARN))
    senders = [Sender(number, system.port, keyed=True) for number in range(CLIENTS)]
    for sender in senders:
        sender.start()
    for _ in killed(system, senders, times=2, seed=1):
        pass
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.finish()
    blocks = [block for sender in senders for block in sender.acknowledged]
    client = system.server.client()
    expected = Moments.expected(ns.NormScaling(), blocks)
    assert Moments.told(client.state()).distance(expected) < 1e-12
    # A retry long after the answer: the same answer, and nothing more is taken in.
    sent = senders[0].acknowledged[0]
    again = client.score(sent.rows, binary=sent.number % 2 == 1, key=sent.key)
    assert again.answer["repeated"] is True
    np.testing.assert_array_equal(again.answer["ood_score"], senders[0].scores[0])
    assert client.state()["rows"] == expected.rows


def test_killed_at_random_moments_nothing_acknowledged_is_lost_and_nothing_is_made_up(start_server: Start) -> None:
    system = Restarting(lambda: start_server(*LEARN))
    senders = [Sender(number, system.port, keyed=False) for number in range(CLIENTS)]
    for sender in senders:
        sender.start()
    for _ in killed(system, senders, times=2, seed=2):
        pass
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.finish()
    sure = [block for sender in senders for block in sender.acknowledged]
    unknown = [block for sender in senders for block in sender.unknown]
    assert len(unknown) <= CLIENTS * 2  # a client waits for one answer at a time
    _, distance = explain(system.server.client().state(), ns.NormScaling(), sure, unknown)
    assert distance < 1e-9  # exactly the acknowledged blocks, and some whole blocks of those whose answer was lost


def test_a_guard_whose_statistics_depend_on_the_order_goes_on_where_it_was(
    start_server: Start, robust_guard: Path
) -> None:
    system = Restarting(lambda: start_server(*LEARN, guard=robust_guard))
    sender = Sender(7, system.port, keyed=True)
    sender.start()
    for _ in killed(system, [sender], times=1, seed=3):
        pass
    sender.stop()
    sender.finish()
    twin = ns.load_detector(robust_guard)
    for block, scores in zip(sender.acknowledged, sender.scores, strict=True):
        np.testing.assert_allclose(scores, twin.stream(block.rows), rtol=1e-9, atol=1e-12)
    assert system.server.client().state()["rows"] == sum(len(block.rows) for block in sender.acknowledged)


def test_killed_while_many_send_every_client_keeps_a_stream_of_its_own(start_server: Start, robust_guard: Path) -> None:
    system = Restarting(lambda: start_server(*LEARN, "--stream-by", "client", guard=robust_guard))
    senders = [Sender(number, system.port, keyed=True, source=f"camera-{number}") for number in range(3)]
    for sender in senders:
        sender.start()
    for _ in killed(system, senders, times=2, seed=4):
        pass
    wait_for_answers(senders, each=True)
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.finish()
    for sender in senders:
        twin = ns.load_detector(robust_guard)  # it has seen the rows of this one alone
        for block, scores in zip(sender.acknowledged, sender.scores, strict=True):
            np.testing.assert_allclose(scores, twin.stream(block.rows), rtol=1e-9, atol=1e-12)
    client = system.server.client()
    state, metrics = client.state(), client.ask("GET", "/metrics").body.decode()
    expected = {f"127.0.0.1/{one.source}": sum(len(block.rows) for block in one.acknowledged) for one in senders}
    assert {one["source"]: one["rows"] for one in state["streams"]["worst"]} == expected
    assert state["rows"] == sum(expected.values())
    assert 'normscale_streams{guard="guard",standing="running"} 3.0' in metrics
    assert "camera-" not in metrics


def test_every_commit_is_flushed_to_the_disk(tmp_path: Path) -> None:
    """A kill leaves what the system has not written yet; a power cut does not, and cannot be tested here."""
    with SqliteStore(str(tmp_path / "store.sqlite")) as store:
        assert store.run("PRAGMA journal_mode", ()) == [("wal",)]
        assert store.run("PRAGMA synchronous", ()) == [(2,)]  # FULL: the log is flushed at every commit


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a full disk needs a small one to be mounted, which only root may")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True, timeout=120)


def test_a_full_disk_is_said_nothing_is_taken_in_and_room_is_enough_to_go_on(
    start_server: Start, small_disk: Path
) -> None:
    server = start_server(*LEARN, store=str(small_disk / "store.sqlite"))
    client = server.client()
    accepted: list[Block] = []

    def send(number: int) -> Any:
        block = make_block(0, number)
        reply = client.score(block.rows, key=block.key)
        if reply.status == 200:
            accepted.append(block)
        return reply

    assert send(0).status == 200
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    number = 1
    while (reply := send(number)).status == 200:  # what the log's last page had room for
        number += 1
        assert number < 2000
    for _ in range(3):
        reply = send(number)
        assert reply.status == 507, reply
        assert "nothing was taken in" in reply.json["error"]
        assert "Make room" in reply.json["error"]
        assert reply.headers["retry-after"] == "1"
        assert client.ask("GET", "/v2/health/ready").status == 507
    assert client.ask("GET", "/v2/health/live").status == 200
    assert b"normscale_store_errors_total" in client.ask("GET", "/metrics").body
    assert Moments.told(client.state()).distance(Moments.expected(ns.NormScaling(), accepted)) < 1e-12
    ballast.unlink()
    assert client.ask("GET", "/v2/health/ready").status == 200
    assert send(number).status == 200
    expected = Moments.expected(ns.NormScaling(), accepted)
    assert Moments.told(client.state()).distance(expected) < 1e-12
    server.kill()
    again = start_server(*LEARN, store=str(small_disk / "store.sqlite")).client()
    assert Moments.told(again.state()).distance(expected) < 1e-12


def test_a_disk_that_refuses_to_be_written_is_said_too(start_server: Start, tmp_path: Path) -> None:
    """A limit on the size of files stands for all other errors of a disk; unlike a small disk, anyone may set it."""
    server = start_server(*LEARN)
    client = server.client()
    accepted = [make_block(2, number) for number in range(5)]
    for block in accepted:
        assert client.score(block.rows).status == 200
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (tmp_path / "store.sqlite-wal").stat().st_size + 5000  # room for a page of the log, not for a state
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, limit[1]))
    block = make_block(2, 5)
    for _ in range(3):
        reply = client.score(block.rows, key=block.key)
        assert reply.status in (503, 507), reply
        assert "nothing was taken in" in reply.json["error"]
        assert client.ask("GET", "/v2/health/ready").status in (503, 507)
    assert client.state()["rows"] == sum(len(one.rows) for one in accepted)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, limit)
    assert client.ask("GET", "/v2/health/ready").status == 200
    assert client.score(block.rows, key=block.key).status == 200
    server.kill()
    expected = Moments.expected(ns.NormScaling(), [*accepted, block])
    assert Moments.told(start_server(*LEARN).client().state()).distance(expected) < 1e-12


@pytest.fixture(scope="module")
def logged(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Moments]]:
    """A store whose rows are all still in the write-ahead log, and its moments after 0, 1, 2, ... blocks."""
    path = tmp_path_factory.mktemp("log") / "store.sqlite"
    detector = ns.load_detector(sample_guard)
    store = open_store(path)
    guard = Guard(detector, store, Policy(on_drift="ignore"))
    blocks = [make_block(1, number) for number in range(25)]
    copied = path.with_name("copied.sqlite")
    for block in blocks:
        guard.score(block.rows)
    for ending in ("", "-wal"):  # as a kill leaves them: closing would fold the log in
        shutil.copy(f"{path}{ending}", f"{copied}{ending}")
    store.close()
    return copied, [Moments.expected(ns.NormScaling(), blocks[:count]) for count in range(len(blocks) + 1)]


@pytest.mark.parametrize("damage", ["cut", "flipped", "zeroed"])
def test_a_torn_log_opens_with_the_blocks_before_the_tear(
    logged: tuple[Path, list[Moments]], sample_guard: Path, tmp_path: Path, damage: str
) -> None:
    """SQLite's log has a checksum that runs over all frames; the first that does not fit ends what is believed.

    So after a disk that lied about its flush (and only then is anything acknowledged lost), the store holds a prefix of
    the journal, never half a block.
    """
    source, prefixes = logged
    size = Path(f"{source}-wal").stat().st_size
    where = random.Random(damage)
    counts = set()
    for trial in range(20):
        copy = tmp_path / f"{trial}.sqlite"
        shutil.copy(source, copy)
        log = bytearray(Path(f"{source}-wal").read_bytes())
        place = where.randrange(size // 3, size)
        if damage == "cut":
            del log[place:]
        elif damage == "flipped":
            log[place] ^= 1 << where.randrange(8)
        else:
            log[place : place + 4096] = bytes(len(log[place : place + 4096]))
        Path(f"{copy}-wal").write_bytes(log)
        with open_store(copy) as store:
            guard = Guard(ns.load_detector(sample_guard), store, Policy(on_drift="ignore"))
            moments = guard.state.stream.statistics.moments
            assert moments is not None
            found = Moments(guard.state.stream.rows, moments.weight, moments.mean, moments.std)
        closest = min(range(len(prefixes)), key=lambda count: found.distance(prefixes[count]))
        assert found.distance(prefixes[closest]) < 1e-12
        counts.add(closest)
    assert len(counts) > 3  # the tears were at different places
    assert max(counts) <= len(prefixes) - 1


def test_being_told_to_stop_it_answers_what_is_under_way(start_server: Start) -> None:
    server = start_server(*LEARN)
    page = server.client()
    page.connection.request("GET", "/v1/live")
    stream = page.connection.getresponse()
    assert stream.readline() == b"event: view\n"
    rows = np.tile(SAMPLE.test.logits, (40, 1))[:8000].astype(np.float64)
    body, headers = binary_tensors(rows)
    length = f"{HEADER}: {headers[HEADER]}\r\nContent-Length: {len(body)}"
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n"
    with ExitStack() as stack:
        under_way = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30)) for _ in range(5)
        ]
        for connection in under_way:
            connection.sendall(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # now it is known to be listened to
            connection.sendall(body[:1000])
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        for connection in under_way:
            connection.sendall(body[1000:])
        answers = [connection.recv(100) for connection in under_way]
    assert [answer[:12] for answer in answers] == [b"HTTP/1.1 200"] * 5
    assert server.process.wait(30) == 0
    assert "Cancel" not in server.log  # the page's stream ended by itself
    assert "Traceback" not in server.log
    assert start_server(*LEARN).client().state()["rows"] == 5 * 8000


def test_two_servers_and_two_workers_on_one_store_know_every_row_at_once(start_server: Start, tmp_path: Path) -> None:
    first, second = start_server(*LEARN, "--workers", "2"), start_server(*LEARN)
    senders = [Sender(number, lambda port=server.port: port, keyed=number % 2 == 0, limit=30)  # type: ignore[misc]
               for number, server in enumerate((first, first, first, second, second))]  # fmt: skip
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.finish()
    blocks = [block for sender in senders for block in sender.acknowledged]
    assert len(blocks) == 30 * len(senders)
    assert not any(sender.refused for sender in senders)  # they queue; nobody is sent away
    for server in (first, second, first, second):  # one row here: the next question there knows it
        block = make_block(100, len(blocks))
        assert server.client().score(block.rows, binary=block.number % 2 == 1).status == 200
        blocks.append(block)
        # New connections, so that both workers are asked; whoever did not take the row in must have read of it.
        states = [asked.client().state() for asked in (first, second) for _ in range(4)]
        told = [(state["rows"], state["classes"]["running_mean"], state["classes"]["running_std"]) for state in states]
        assert all(one == told[0] for one in told)
        assert Moments.told(states[0]).distance(Moments.expected(ns.NormScaling(), blocks)) < 1e-12
    first.stop()
    second.stop()
    with sqlite3.connect(tmp_path / "store.sqlite") as database:
        (times,) = zip(*database.execute("SELECT at FROM log ORDER BY seq"), strict=True)
    assert list(times) == sorted(times)


def test_a_worker_that_is_killed_is_replaced_and_all_of_them_end_with_their_parent(start_server: Start) -> None:
    server = start_server(*LEARN, "--workers", "2")
    sender = Sender(3, lambda: server.port, keyed=True)
    sender.start()
    wait_for_answers([sender], 10)
    killed_one = workers_of(server)[0]
    os.kill(killed_one, signal.SIGKILL)
    wait_for_answers([sender], 30)
    sender.stop()
    sender.finish()
    deadline = time.monotonic() + 30
    while f"worker died={killed_one} exit_code=-9" not in server.log:
        assert time.monotonic() < deadline, "nobody said that it died"
        time.sleep(0.05)
    expected = Moments.expected(ns.NormScaling(), sender.acknowledged)
    assert Moments.told(server.client().state()).distance(expected) < 1e-12
    # Without their parent nobody would stop them: they go, and leave the port to the next.
    deadline = time.monotonic() + 30
    while len(left := workers_of(server)) < 2 or killed_one in left:
        assert time.monotonic() < deadline, "nobody came in its place"
        time.sleep(0.05)
    server.process.kill()
    server.process.wait(60)
    while any(Path(f"/proc/{worker}").exists() for worker in left) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(Path(f"/proc/{worker}").exists() for worker in left)


def test_a_process_that_is_stopped_with_the_lock_stops_nobody_else(start_server: Start, tmp_path: Path) -> None:
    server = start_server(*LEARN, "--max-seconds", "20")
    client = server.client()
    block = make_block(5, 0)
    assert client.score(block.rows).status == 200
    with (tmp_path / "store.sqlite.lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a process would that was stopped within a transaction
        lock.write(b"%-12d" % os.getpid())
        lock.flush()
        reply = client.score(make_block(5, 1).rows)
        assert reply.status == 503, reply
        assert str(os.getpid()) in reply.json["error"]
        assert client.ask("GET", "/v2/health/live").status == 200
        metrics = client.ask("GET", "/metrics")
        assert metrics.status == 200
        assert b'normscale_store_up{guard="guard"} 0.0' in metrics.body
        assert b'normscale_statistics_rows{guard="guard"} %.1f' % len(block.rows) in metrics.body
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 25
    assert "Traceback" not in server.log
    assert start_server(*LEARN).client().state()["rows"] == len(block.rows)  # refused rows did not come in later


def test_a_store_that_is_gone_is_noticed_before_an_answer(start_server: Start, tmp_path: Path) -> None:
    server = start_server(*LEARN)
    client = server.client()
    assert client.score(make_block(6, 0).rows).status == 200
    (tmp_path / "store.sqlite").unlink()
    for path in ("/v1/state", "/v2/health/ready"):
        assert client.ask("GET", path).status == 503, path
    reply = client.score(make_block(6, 1).rows)
    assert reply.status == 503, reply
    assert "taken in" in reply.json["error"]
    assert client.ask("GET", "/v2/health/live").status == 200
    assert b'normscale_store_up{guard="guard"} 0.0' in client.ask("GET", "/metrics").body
    assert 'store guard="guard" up=false' in server.log


def workers_of(server: Server) -> list[int]:
    parent = server.process.pid
    found = []
    for child in map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split()):
        with suppress(OSError):  # it may be gone by now
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@pytest.mark.parametrize(
    ("ending", "share", "said"),
    [("-wal", None, "in the main file now"), ("-shm", None, "Put the file back"), ("-wal", 0.5, "was cut to")],
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_log_that_is_gone_or_cut_is_noticed_before_an_answer(
    start_server: Start, tmp_path: Path, ending: str, share: float | None, said: str, workers: str
) -> None:
    server = start_server(*LEARN, "--workers", workers)
    client = server.client()
    accepted = [make_block(4, number) for number in range(6)]
    for block in accepted:
        assert client.score(block.rows).status == 200
    path = tmp_path / f"store.sqlite{ending}"
    if share is None:
        path.unlink()
    else:
        os.truncate(path, int(share * path.stat().st_size))
    for _ in range(3):
        reply = client.score(make_block(4, 6).rows)
        assert reply.status == 503, reply
        assert str(path) in reply.json["error"]
        assert said in reply.json["error"]
        assert client.ask("GET", "/v2/health/ready").status == 503
    server.kill()
    if share is None:  # of a log that was cut, what was cut off is gone
        expected = Moments.expected(ns.NormScaling(), accepted)
        assert Moments.told(start_server(*LEARN).client().state()).distance(expected) < 1e-12


def test_a_store_of_another_guard_or_of_nobody_is_refused_in_a_sentence(
    sample_guard: Path, robust_guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store.sqlite"
    with open_store(path) as store:
        Guard(ns.load_detector(robust_guard), store)
    code, said = refusal(monkeypatch, sample_guard, "--store", str(path))
    assert (code, "another detector" in said) == (1, True), said
    path.write_bytes(b"SQLite format 4\0" + os.urandom(5000))
    code, said = refusal(monkeypatch, sample_guard, "--store", str(path))
    assert (code, "not a readable SQLite file" in said) == (1, True), said
    code, said = refusal(monkeypatch, sample_guard, "--store", str(tmp_path / "nowhere" / "store.sqlite"))
    assert (code, "is not there" in said) == (1, True), said
