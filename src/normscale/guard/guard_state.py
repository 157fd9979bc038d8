"""The state of a guard: a fold over the entries of its journal, and the form in which a snapshot keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from normscale.detectors.threshold import Threshold
from normscale.encoding.json_text import read_json
from normscale.errors import FileFormatError
from normscale.guard.drift import RecentRows
from normscale.guard.entries import Entry, Event
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
    """A drift reading beyond its limit."""

    name: str
    since: float
    value: float
    limit: float
    text: str


class MinuteCounts(NamedTuple):
    """Who has had how many rows taken in within the present minute."""

    number: int = -1
    total: int = 0
    by_client: Mapping[str, int] = {}

    def after(self, at: float, client: str, rows: int) -> MinuteCounts:
        """Count some more rows of a client."""
        number = int(at // 60.0)
        before = self if number == self.number else MinuteCounts(number)
        mine = before.by_client.get(client, 0) + rows
        return MinuteCounts(number, before.total + rows, {**before.by_client, client: mine})

    def room(self, at: float, client: str, client_cap: int | None, minute_cap: int | None) -> int | None:
        """Say how many more rows of a client may be taken in; None: any number."""
        if client_cap is None and minute_cap is None:
            return None
        now = self if int(at // 60.0) == self.number else MinuteCounts()
        limits = []
        if client_cap is not None:
            limits.append(client_cap - now.by_client.get(client, 0))
        if minute_cap is not None:
            limits.append(minute_cap - now.total)
        return max(0, min(limits))


class Known(NamedTuple):
    """What the process that makes an entry has computed of the state after it."""

    statistics: Statistics
    recent: RecentRows | None = None
    """None: as before."""


class GuardState(NamedTuple):
    """All that a guard knows. It is never changed: each entry makes a new one."""

    seq: int
    """The last entry it includes."""
    at: float
    statistics: Statistics
    recent: RecentRows
    threshold: Threshold
    rows: int = 0
    """Rows in the statistics."""
    scored: int = 0
    """Rows answered since the store began."""
    quarantined: int = 0
    """Rows answered but not taken in, waiting for a person."""
    frozen: Frozen | None = None
    alarms: tuple[Alarm, ...] = ()
    calm_rows: int = 0
    """Rows since the last alarm."""
    this_minute: MinuteCounts = MinuteCounts()
    threshold_decided: bool = False
    """Whether a person drew the threshold; else it is the detector file's, or that of the command line, of today."""

    def after(
        self, entry: Entry, start: GuardState, window: float, known: Known | None = None, caps: bool = True
    ) -> GuardState:
        """Apply one more entry; ``start`` is the state of an empty journal.

        The process that made the entry passes what it ``known`` of the state after it, which saves computing it twice.
        Without ``caps`` nobody asks who has sent how much.
        """
        event = entry.event
        if event in (Event.ROWS, Event.QUARANTINE):
            return self._after_rows(entry, window, known, caps)
        changed: dict[str, Any] = {}
        if event == Event.FREEZE:
            note = read_json(entry.note)
            changed = {"frozen": Frozen(entry.at, note["because"], note.get("by_person", False))}
        elif event == Event.THAW:
            changed = {"frozen": None, "calm_rows": 0}
        elif event == Event.THRESHOLD:
            note = read_json(entry.note)
            own = note.get("own", False)
            threshold = start.threshold if own else Threshold.from_header(note["threshold"])
            changed = {"threshold": threshold, "threshold_decided": not own}
        elif event == Event.RESET:
            changed = {
                "statistics": start.statistics,
                "rows": 0,
                "recent": start.recent,
                "frozen": None,
                "alarms": (),
                "calm_rows": 0,
            }
        elif event == Event.DISCARD:
            changed = {"quarantined": self.quarantined - entry.rows}
        elif event == Event.ACCEPT:
            if known is None:
                raise AssertionError("accepted rows are read from the snapshot that was written with them")
            changed = {
                "statistics": known.statistics,
                "rows": self.rows + entry.rows,
                "quarantined": self.quarantined - entry.rows,
            }
        else:
            raise FileFormatError(f"the journal holds an unknown entry {event!r}; upgrade normscale.")
        return self._replace(seq=entry.seq, at=entry.at, **changed)

    def _after_rows(self, entry: Entry, window: float, known: Known | None, caps: bool) -> GuardState:
        n = entry.rows
        alarms = self._alarms(entry)
        taken = entry.event == Event.ROWS
        if known is None:
            block = entry.block
            counts = np.frombuffer(entry.predicted, np.int64)
            statistics = self.statistics.replay(block, entry.replay_rows) if taken else self.statistics
            known = Known(statistics, self.recent.after(entry.flagged, counts, block, window))
        return GuardState(
            entry.seq,
            entry.at,
            known.statistics if taken else self.statistics,
            self.recent if known.recent is None else known.recent,
            self.threshold,
            self.rows + n if taken else self.rows,
            self.scored + n,
            self.quarantined if taken else self.quarantined + n,
            self.frozen,
            alarms,
            0 if alarms else self.calm_rows + n,
            self.this_minute.after(entry.at, entry.client, n) if taken and caps else self.this_minute,
            self.threshold_decided,
        )

    def _alarms(self, entry: Entry) -> tuple[Alarm, ...]:
        if not entry.note:
            return ()
        since = {alarm.name: alarm.since for alarm in self.alarms}
        noted = read_json(entry.note).get("alarms", ())
        return tuple(Alarm(name, since.get(name, entry.at), *rest) for name, *rest in noted)

    def pack(self) -> bytes:
        """Write the state as bytes."""
        header = {
            "seq": self.seq,
            "at": self.at,
            "threshold": self.threshold.to_header(),
            "threshold_decided": self.threshold_decided,
            "rows": self.rows,
            "scored": self.scored,
            "quarantined": self.quarantined,
            "frozen": None if self.frozen is None else list(self.frozen),
            "alarms": [list(alarm) for alarm in self.alarms],
            "calm_rows": self.calm_rows,
            "this_minute": [*self.this_minute[:2], dict(self.this_minute.by_client)],
            "recent": [self.recent.weight, self.recent.flagged],
        }
        tensors = {f"statistics.{name}": array for name, array in self.statistics.tensors().items()}
        for name in ("predicted", "mean", "m2"):
            tensors[f"recent.{name}"] = getattr(self.recent, name)
        return pack_state(header, tensors, SNAPSHOT)

    def unpacked(self, data: bytes) -> GuardState:
        """Read a state of the same guard from bytes."""
        header, tensors = unpack_state(data, SNAPSHOT)
        own = {
            key.removeprefix("statistics."): array for key, array in tensors.items() if key.startswith("statistics.")
        }
        try:
            weight, flagged = header["recent"]
            decided = header.get("threshold_decided", True)
            return GuardState(
                header["seq"],
                header["at"],
                self.statistics.restored(own),
                RecentRows(weight, flagged, *(tensors[f"recent.{name}"] for name in ("predicted", "mean", "m2"))),
                Threshold.from_header(header["threshold"]) if decided else self.threshold,
                header["rows"],
                header["scored"],
                header["quarantined"],
                None if header["frozen"] is None else Frozen(*header["frozen"]),
                tuple(Alarm(*alarm) for alarm in header["alarms"]),
                header["calm_rows"],
                MinuteCounts(*header["this_minute"]),
                decided,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"the snapshot of the guard is damaged ({error!r}); {SNAPSHOT.when_damaged}"
            ) from error
