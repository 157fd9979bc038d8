"""Stores of older versions, brought up to date when they are opened."""

from __future__ import annotations

from collections.abc import Callable

from normscale.errors import FileFormatError
from normscale.guard.guard_state import STORED
from normscale.guard.stores.sql import SqlStore, StateHead, Transaction
from normscale.state import pack_state, unpack_state


def _from_journal(store: SqlStore, transaction: Transaction) -> None:
    """Version 1 kept a journal and now and then a snapshot; what a stop in good order wrote is all of the state."""
    last = int(store.run("SELECT COALESCE(MAX(seq), 0) FROM journal")[0][0])
    snapshot = store.run("SELECT seq, state FROM snapshot WHERE id = 1")
    if last > (int(snapshot[0][0]) if snapshot else 0):
        raise FileFormatError(
            f"the store {store.name!r} is of an older version, which was not stopped in good order; start that version "
            "on it once more, stop it by SIGTERM, and try again."
        )
    store.run("ALTER TABLE quarantine RENAME COLUMN replay_rows TO packed_rows")
    dropped = store.run("SELECT COALESCE(SUM(rows), 0) FROM quarantine WHERE length(packed_rows) > 0")[0][0]
    store.run("DELETE FROM quarantine WHERE length(packed_rows) > 0")  # rows are packed otherwise now
    store.make_tables()
    store.run(
        "INSERT INTO log (seq, at, event, client, rows, flagged, display_sample, decided_by, note) "
        "SELECT seq, at, event, client, rows, flagged, display_sample, '', note FROM journal"
    )
    if snapshot:
        state = _state_of_snapshot(bytes(snapshot[0][1]), int(dropped))
        transaction.save_state(last, StateHead(0, transaction.head().tag), state)
    store.run("DROP TABLE journal")
    store.run("DROP TABLE snapshot")


def _state_of_snapshot(snapshot: bytes, dropped: int) -> bytes:
    header, tensors = unpack_state(snapshot, STORED)
    try:
        weight, flagged = header["recent"]
        changed = {
            "threshold": header["threshold"] if header.get("threshold_decided", True) else None,
            "quarantined": header["quarantined"] - dropped,
            "recent": {"weight": weight, "lately": 0.0, "added": 0.0, "answered": weight, "flagged": flagged},
            "freezes": int(header["frozen"] is not None),
            "alarms_raised": len(header["alarms"]),
            "largest_score": -1e308,
        }
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"the snapshot of the guard is damaged ({error!r}); {STORED.when_damaged}") from error
    return pack_state({**header, **changed}, tensors, STORED)


MIGRATIONS: dict[int, Callable[[SqlStore, Transaction], None]] = {1: _from_journal}
"""What brings a store of a version to the next."""
