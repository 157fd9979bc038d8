"""The guard on a real PostgreSQL: the promises of the embedded store, and a database server that goes down."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import Moments, Restarting, Sender, make_block, wait_for_answers
from guard.server.postgres import Postgres, programs
from guard.server.test_durability import LEARN, killed
from normscale.guard import open_store
from normscale.guard.stores import postgres as postgres_store

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")
pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
FOLDER = programs()
pytestmark = pytest.mark.skipif(FOLDER is None, reason="no PostgreSQL on this machine (apt-get install postgresql)")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    assert FOLDER is not None
    with Postgres(FOLDER) as server:
        yield server


@pytest.fixture
def database(postgres: Postgres, numbers: Callable[[], int]) -> str:
    return postgres.new_database(f"guard{numbers()}")


@pytest.fixture(scope="module")
def numbers() -> Callable[[], int]:
    return itertools.count().__next__


def running(senders: list[Sender]) -> None:
    for sender in senders:
        sender.start()


def finished(senders: list[Sender]) -> Moments:
    """What the state must be once they have their last answers."""
    for sender in senders:
        sender.stop()
    for sender in senders:
        sender.finish()
    return Moments.expected(ns.NormScaling(), [block for sender in senders for block in sender.acknowledged])


def test_killed_at_random_moments_every_row_sent_with_a_key_counts_once(start_server: Start, database: str) -> None:
    system = Restarting(lambda: start_server(*LEARN, store=database))
    senders = [Sender(number, system.port, keyed=True) for number in range(3)]
    running(senders)
    for _ in killed(system, senders, times=2, seed=4):
        pass
    expected = finished(senders)
    assert Moments.told(system.server.client().state()).distance(expected) < 1e-12
    assert "not-to-be-shown" not in system.server.log + str(system.server.client().state())
    assert system.server.client().ask("POST", "/v1/freeze", {"reason": "\0"}).json["frozen_because"] == "\0"


def test_two_servers_know_every_row_at_once_and_outlive_the_database(
    start_server: Start, postgres: Postgres, database: str
) -> None:
    servers = [start_server(*LEARN, store=database) for _ in range(2)]
    senders = [Sender(number, lambda port=servers[number % 2].port: port, keyed=True) for number in range(4)]  # type: ignore[misc]
    running(senders)
    wait_for_answers(senders, 5, each=True)
    assert not any(sender.refused for sender in senders)  # they queue; nobody is sent away
    postgres.kill()
    try:
        time.sleep(0.3)
        for server in servers:
            reply = server.client().ask("GET", "/v2/health/ready")
            assert reply.status == 503
            assert reply.json["error"].startswith("guard: postgresql://127.0.0.1")
            assert server.client().ask("GET", "/v2/health/live").status == 200
            assert b'normscale_store_up{guard="guard"} 0.0' in server.client().ask("GET", "/metrics").body
    finally:
        postgres.start()
    wait_for_answers(senders, 5, each=True)
    expected = finished(senders)
    assert {status for sender in senders for status, _ in sender.refused} == {503}
    told = [Moments.told(server.client().state()) for server in servers]
    assert all(one.distance(expected) < 1e-12 for one in told)
    for server in servers:
        block = make_block(50, server.port)
        before = server.client().state()["rows"]
        server.client().score(block.rows, binary=bool(block.number % 2))
        states = [other.client().state() for other in servers]
        assert states[0]["rows"] == states[1]["rows"] == before + len(block.rows)
        assert states[0]["classes"] == states[1]["classes"]
        assert all("not-to-be-shown" not in text for text in (server.log, str(states)))


def test_who_waits_for_the_lock_sees_what_was_committed_meanwhile_whatever_the_isolation(database: str) -> None:
    strict = f"{database}?options=-c%20default_transaction_isolation%3Dserializable"
    seen: list[str | None] = []

    def look() -> None:
        with other.transaction() as transaction:
            seen.append(transaction.text("word"))

    with open_store(strict) as store, open_store(strict) as other:
        waiting = threading.Thread(target=look, daemon=True)
        with store.transaction() as transaction:
            waiting.start()
            time.sleep(0.3)
            transaction.set_text("word", "said")
        waiting.join(timeout=30)
    assert seen == ["said"]


def test_who_vanishes_within_a_transaction_does_not_keep_the_lock(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(database) as other:
        monkeypatch.setattr(postgres_store, "_LONGEST_PAUSE", 1)
        gone = postgres_store.PostgresStore(database)
        gone.begin()  # and never a word again
        began = time.monotonic()
        with other.transaction() as transaction:
            assert transaction.text("guard") is None
        assert time.monotonic() - began < 20
        gone.close()
