"""The state of a guard: a fold over the entries of its journal, and the form in which a snapshot keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from normscale.detectors.decision import Threshold
from normscale.errors import FileFormatError
from normscale.guard.entries import ASIDE, DISCARD, FREEZE, RESET, ROWS, TAKE_IN, THAW, THRESHOLD, Entry
from normscale.guard.monitor import Monitor
from normscale.guard.statistics import Statistics
from normscale.state import Kind, pack_state, unpack_state

SNAPSHOT = Kind(
    "normscale_guard",
    "snapshot of a guard",
    "",
    "restore the store from a copy, or start with a new one.",
)


class Frozen(NamedTuple):
    """Since when, and why, nothing is taken in."""

    since: float
    because: str
    by_person: bool = False
    """Then only a person ends it."""


class Alarm(NamedTuple):
    """A reading beyond its limit."""

    kind: str
    since: float
    value: float
    limit: float
    text: str


class Minute(NamedTuple):
    """Who has had how many rows taken in within the present minute."""

    number: int = -1
    total: int = 0
    by_client: Mapping[str, int] = {}

    def after(self, at: float, client: str, rows: int) -> Minute:
        """With some more rows of a client."""
        number = int(at // 60.0)
        before = self if number == self.number else Minute(number)
        mine = before.by_client.get(client, 0) + rows
        return Minute(number, before.total + rows, {**before.by_client, client: mine})

    def room(self, at: float, client: str, client_cap: int | None, minute_cap: int | None) -> int | None:
        """How many more rows of a client may be taken in; None: any number."""
        if client_cap is None and minute_cap is None:
            return None
        now = self if int(at // 60.0) == self.number else Minute()
        limits = []
        if client_cap is not None:
            limits.append(client_cap - now.by_client.get(client, 0))
        if minute_cap is not None:
            limits.append(minute_cap - now.total)
        return max(0, min(limits))


class GuardState(NamedTuple):
    """All that a guard knows; never changed, each entry makes a new one."""

    seq: int
    """The last entry it includes."""
    at: float
    statistics: Statistics
    monitor: Monitor
    threshold: Threshold
    rows: int = 0
    """Rows in the statistics."""
    scored: int = 0
    """Rows answered since the store began."""
    aside: int = 0
    """Rows recorded but not taken in, waiting for a person."""
    frozen: Frozen | None = None
    alarms: tuple[Alarm, ...] = ()
    calm_rows: int = 0
    """Rows since the last alarm."""
    minute: Minute = Minute()
    threshold_decided: bool = False
    """Whether a person drew the threshold; else it is the guard file's, or that of the command line, of today."""

    def after(
        self, entry: Entry, start: GuardState, window: float, statistics: Statistics | None = None, caps: bool = True
    ) -> GuardState:
        """The state with one more entry; ``start`` is that of an empty journal.

        Who has just made the entry knows the ``statistics`` after it already. Without ``caps`` nobody asks who has sent
        how much.
        """
        kind = entry.kind
        if kind in (ROWS, ASIDE):
            return self._after_rows(entry, window, statistics, caps)
        changed: dict[str, Any] = {}
        if kind == FREEZE:
            note = json.loads(entry.note)
            changed = {"frozen": Frozen(entry.at, note["because"], note.get("by_person", False))}
        elif kind == THAW:
            changed = {"frozen": None, "calm_rows": 0}
        elif kind == THRESHOLD:
            note = json.loads(entry.note)
            own = note.get("own", False)
            threshold = start.threshold if own else Threshold.from_header(note["threshold"])
            changed = {"threshold": threshold, "threshold_decided": not own}
        elif kind == RESET:
            changed = {
                "statistics": start.statistics,
                "rows": 0,
                "monitor": start.monitor,
                "frozen": None,
                "alarms": (),
                "calm_rows": 0,
            }
        elif kind == DISCARD:
            changed = {"aside": self.aside - entry.rows}
        elif kind == TAKE_IN:
            if statistics is None:
                raise AssertionError("a take-in is read from the snapshot that was written with it")
            changed = {"statistics": statistics, "rows": self.rows + entry.rows, "aside": self.aside - entry.rows}
        else:
            raise FileFormatError(f"the journal holds an entry of unknown kind {kind!r}; upgrade normscale.")
        return self._replace(seq=entry.seq, at=entry.at, **changed)

    def _after_rows(self, entry: Entry, window: float, statistics: Statistics | None, caps: bool) -> GuardState:
        n = entry.rows
        block = entry.block
        monitor = self.monitor.after(entry.flagged, np.frombuffer(entry.predicted, np.int64), block, window)
        alarms = self._alarms(entry)
        taken = entry.kind == ROWS
        if not taken:
            statistics = self.statistics
        elif statistics is None:
            statistics = self.statistics.again(block, entry.learned)
        return GuardState(
            entry.seq,
            entry.at,
            statistics,
            monitor,
            self.threshold,
            self.rows + n if taken else self.rows,
            self.scored + n,
            self.aside if taken else self.aside + n,
            self.frozen,
            alarms,
            0 if alarms else self.calm_rows + n,
            self.minute.after(entry.at, entry.client, n) if taken and caps else self.minute,
            self.threshold_decided,
        )

    def _alarms(self, entry: Entry) -> tuple[Alarm, ...]:
        if not entry.note:
            return ()
        since = {alarm.kind: alarm.since for alarm in self.alarms}
        told = json.loads(entry.note).get("alarms", ())
        return tuple(Alarm(kind, since.get(kind, entry.at), *rest) for kind, *rest in told)

    def pack(self) -> bytes:
        """The state as bytes."""
        header = {
            "seq": self.seq,
            "at": self.at,
            "threshold": self.threshold.to_header(),
            "threshold_decided": self.threshold_decided,
            "rows": self.rows,
            "scored": self.scored,
            "aside": self.aside,
            "frozen": None if self.frozen is None else list(self.frozen),
            "alarms": [list(alarm) for alarm in self.alarms],
            "calm_rows": self.calm_rows,
            "minute": [self.minute.number, self.minute.total, dict(self.minute.by_client)],
            "monitor": [self.monitor.weight, self.monitor.flagged],
        }
        tensors = {f"statistics.{name}": array for name, array in self.statistics.tensors().items()}
        for name in ("predicted", "mean", "m2"):
            tensors[f"monitor.{name}"] = getattr(self.monitor, name)
        return pack_state(header, tensors, SNAPSHOT)

    def unpacked(self, data: bytes) -> GuardState:
        """A state of the same guard, from bytes."""
        header, tensors = unpack_state(data, SNAPSHOT)
        own = {
            key.removeprefix("statistics."): array for key, array in tensors.items() if key.startswith("statistics.")
        }
        try:
            weight, flagged = header["monitor"]
            decided = header.get("threshold_decided", True)
            return GuardState(
                header["seq"],
                header["at"],
                self.statistics.restored(own),
                Monitor(weight, flagged, *(tensors[f"monitor.{name}"] for name in ("predicted", "mean", "m2"))),
                Threshold.from_header(header["threshold"]) if decided else self.threshold,
                header["rows"],
                header["scored"],
                header["aside"],
                None if header["frozen"] is None else Frozen(*header["frozen"]),
                tuple(Alarm(*alarm) for alarm in header["alarms"]),
                header["calm_rows"],
                Minute(*header["minute"]),
                decided,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"the snapshot of the guard is damaged ({error!r}); {SNAPSHOT.when_damaged}"
            ) from error
