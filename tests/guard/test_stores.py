"""What may happen to a store: it is damaged, deleted, replaced, put back, held, old, or given to another detector."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.guards import IGNORE, detector, digits, guard, sample, send
from normscale.detectors.base import Detector
from normscale.encoding.json_text import read_json
from normscale.errors import FileFormatError, InvalidInput, StoreUnavailable
from normscale.guard import open_guard, open_store
from normscale.guard.stores import Entry, register_store, sqlite


def tables(path: Path) -> list[list[tuple[Any, ...]]]:
    """The state and the log, as they are."""
    with closing(sqlite3.connect(path)) as store:
        return [store.execute(f"SELECT * FROM {table}").fetchall() for table in ("state", "log")]


def put_back(path: Path, rows: list[list[tuple[Any, ...]]]) -> None:
    """What a restored copy, or a replica that lags, does to a store."""
    with closing(sqlite3.connect(path)) as store, store:
        for table, each in zip(("state", "log"), rows, strict=True):
            store.execute(f"DELETE FROM {table}")
            store.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(each[0]))})", each)


def test_a_store_that_is_put_back_under_a_running_guard_is_noticed(tmp_path: Path) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(10))
    earlier = tables(tmp_path / "s")
    send(on, digits(10, seed=1))
    state = on.state
    put_back(tmp_path / "s", earlier)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"went back: it holds entry 1.*up to entry 2.*Restart"):
            send(on, digits(10, seed=2))
    assert on.state is state
    assert send(guard(tmp_path / "s", IGNORE), digits(10, seed=2)).rows == 20  # a restart goes on from what is there


def test_a_store_of_the_same_length_with_another_past_is_noticed(tmp_path: Path) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(10))
    earlier = tables(tmp_path / "s")
    send(on, digits(10, seed=1))
    put_back(tmp_path / "s", earlier)
    send(guard(tmp_path / "s", IGNORE), digits(10, seed=2))
    with pytest.raises(StoreUnavailable, match="went back"):
        send(on, digits(10, seed=3))


@pytest.mark.parametrize("replaced", (False, True))
def test_a_store_that_is_deleted_or_replaced_is_noticed_before_an_answer(tmp_path: Path, replaced: bool) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(10))
    os.rename(tmp_path / "s", tmp_path / "moved")
    if replaced:
        guard(tmp_path / "s", IGNORE).store.close()
    with pytest.raises(StoreUnavailable, match="deleted, moved or replaced"):
        send(on, digits(10))
    assert on.state.stream.rows == 10
    os.replace(tmp_path / "moved", tmp_path / "s")
    with pytest.raises(StoreUnavailable, match="restart"):  # only a new start can tell what is in the file
        send(on, digits(10))
    if not replaced:
        on.store.close()
        assert send(guard(tmp_path / "s", IGNORE), digits(10)).rows == 20


def test_a_log_that_somebody_folded_in_is_no_loss(tmp_path: Path) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(10))
    for mode in ("TRUNCATE", "RESTART"):
        with closing(sqlite3.connect(tmp_path / "s")) as other:
            assert other.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()[0] == 0
        send(on, digits(10))
    assert guard(tmp_path / "s", IGNORE).state.stream.rows == 30


def test_a_damaged_state_does_not_pass_for_one(tmp_path: Path) -> None:
    on = guard(tmp_path / "s")
    send(on, digits(10))
    on.store.close()
    with closing(sqlite3.connect(tmp_path / "s")) as store, store:
        (state,) = store.execute("SELECT state FROM state").fetchone()
        spoilt = bytearray(state)
        spoilt[-5] ^= 1
        store.execute("UPDATE state SET state = ?", (bytes(spoilt),))
    with pytest.raises(FileFormatError, match=r"damaged: its checksum is wrong.*Restore"):
        guard(tmp_path / "s")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped here")
def test_a_stopped_process_that_holds_the_store_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = guard(tmp_path / "s", IGNORE)
    code = (
        "import sys, time; from normscale.guard import open_store\n"
        "with open_store(sys.argv[1]).transaction(): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        monkeypatch.setattr(sqlite, "_PATIENCE", 0.2)
        with pytest.raises(StoreUnavailable, match=f"process {holder.pid} has held the store"):
            send(on, digits(3))
        holder.kill()
    assert send(on, digits(3)).rows == 3


def test_a_probe_writes_or_says_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on = guard(tmp_path / "s")
    on.probe()
    os.rename(tmp_path / "s", tmp_path / "elsewhere")
    with pytest.raises(StoreUnavailable):
        on.probe()


@pytest.mark.parametrize("schema", ["1", "99"])
def test_a_store_of_another_version_is_refused(tmp_path: Path, schema: str) -> None:
    guard(tmp_path / "s").store.close()
    with closing(sqlite3.connect(tmp_path / "s")) as store, store:
        store.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (schema,))
    with pytest.raises(FileFormatError, match=f"another version.*schema {schema}"):
        open_store(tmp_path / "s")


def test_an_address_of_no_known_kind_is_refused_and_a_kind_is_registered_once() -> None:
    with pytest.raises(InvalidInput, match=r"a file or an address of postgresql://.*got mysql://\.\.\."):
        open_store("mysql://somebody:secret@there/guard")
    with pytest.raises(InvalidInput, match="there already"):
        register_store("postgresql", lambda _: open_store(":memory:"))


def test_decisions_keep_who_made_them_and_listeners_hear_what_is_on_disk(tmp_path: Path) -> None:
    on, heard = guard(tmp_path / "s", IGNORE), list[Entry]()
    on.listeners.append(lambda _, own: heard.extend(own))
    send(on, digits(5), client="camera")
    on.freeze("a test", by="ann")
    on.set_threshold(1.0, by="ben")
    on.thaw(by="ann")
    on.reset(by="ann")
    told = [(entry.event, entry.by) for entry in heard]
    assert told == [("rows", ""), ("freeze", "ann"), ("threshold", "ben"), ("thaw", "ann"), ("reset", "ann")]
    with on.store.transaction() as transaction:
        assert [(entry.event, entry.by) for entry in transaction.entries_after(0)] == told
    with pytest.raises(InvalidInput, match="must be a number"):
        on.set_threshold(float("nan"), by="ann")
    assert len(heard) == len(told)


def test_an_alarm_and_its_end_are_entries_of_their_own() -> None:
    on, heard = guard(), list[Entry]()
    on.listeners.append(lambda _, own: heard.extend(own))
    noise = sample().ood["uniform_noise"].logits
    for i in range(12):
        send(on, noise[i % 6 * 60 : i % 6 * 60 + 60])
    events = [entry.event for entry in heard if entry.event not in ("rows", "kept_out")]
    assert events[0] == "alarm"
    assert "freeze" in events
    (first, *_) = [read_json(entry.note)["alarms"] for entry in heard if entry.event == "alarm"]
    assert {"name", "value", "limit", "text", "since", "calm_rows"} == set(first[0])
    for i in range(80):
        send(on, digits(100, seed=i))
    assert "calm" in [entry.event for entry in heard]
    assert on.mode == "running"


def other_detector(scale: float = 2.0) -> Detector:
    """The same network with its logits stretched and moved, as if it had been trained again."""
    train, validation = (scale * part.logits.astype(np.float64) + 3.0 for part in (sample().train, sample().validation))
    made = ns.NormScaling().fit(train).set_threshold(validation)
    made.class_names = tuple(sample().class_names)
    return made


def test_a_store_belongs_to_one_detector(tmp_path: Path) -> None:
    on = guard(tmp_path / "s", IGNORE)
    send(on, digits(50))
    on.store.close()
    for other in (other_detector(), detector("robust_norm_scaling")):
        with pytest.raises(InvalidInput, match="another detector; its rows do not belong to this one"):
            open_guard(other, tmp_path / "s", IGNORE)
    assert guard(tmp_path / "s", IGNORE).state.stream.rows == 50  # a refusal leaves it as it was


def test_waiting_for_a_busy_store_ends_when_it_is_free(tmp_path: Path) -> None:
    on, other = guard(tmp_path / "s", IGNORE), sqlite.SqliteStore(str(tmp_path / "s"))
    other.begin()
    threading.Timer(0.2, other.rollback).start()
    began = time.monotonic()
    assert send(on, digits(3)).rows == 3
    assert time.monotonic() - began >= 0.1
