"""The state of a guard, and the form in which the store keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from normscale.detectors.threshold import Threshold
from normscale.errors import FileFormatError
from normscale.guard.drift import RecentRows
from normscale.guard.statistics import Statistics, Tensors
from normscale.state import Kind, pack_state, unpack_state

STORED = Kind("normscale_guard", "state of a guard", "", "restore the store from a copy, or start with a new one.")
_STATISTICS, _RECENT = "statistics.", "recent."


class Alarm(NamedTuple):
    """A reading that passed its limit, and has not stayed well below it for long since."""

    name: str
    since: float
    value: float
    """When it was last beyond the limit, as the text."""
    limit: float
    text: str
    calm_rows: int = 0


class Frozen(NamedTuple):
    """Since when, and why, nothing is taken in."""

    since: float
    because: str
    by_person: bool = False
    """Then only a person ends it."""
    alarms: tuple[Alarm, ...] = ()


class MinuteCounts(NamedTuple):
    """Who has had how many rows taken in within the present minute."""

    number: int = -1
    by_client: Mapping[str, int] = {}

    def at(self, time: float) -> MinuteCounts:
        """The counts of the minute that it is now."""
        number = int(time // 60.0)
        return self if number == self.number else MinuteCounts(number)

    def after(self, client: str, rows: int) -> MinuteCounts:
        """Count some more rows of a client."""
        return self._replace(by_client={**self.by_client, client: self.by_client.get(client, 0) + rows})


class GuardState(NamedTuple):
    """All that a guard knows. It is never changed: each block of rows and each decision makes a new one."""

    seq: int
    """The last entry of the log that it includes."""
    at: float
    statistics: Statistics
    recent: RecentRows
    threshold: Threshold
    rows: int = 0
    counted: int = 0
    """Rows in them of which it was counted what the stream alone flags; probation lasts so long."""
    scored: int = 0
    kept_out: int = 0
    """Rows answered but not taken in, since the store began."""
    frozen: Frozen | None = None
    alarms: tuple[Alarm, ...] = ()
    alarms_raised: int = 0
    largest_score: float = -1e308
    this_minute: MinuteCounts = MinuteCounts()
    threshold_decided: bool = False
    """Whether a person drew the threshold; else it is the detector file's, or that of the command line, of today."""

    def froze(self, because: str, alarms: tuple[Alarm, ...], start: GuardState) -> GuardState:
        """After an alarm: what was taken in since the start may be what raised it, so none of it is believed."""
        frozen = Frozen(self.at, because, alarms=alarms)
        recent = self.recent.without_stream_only()
        return self._replace(frozen=frozen, statistics=start.statistics, recent=recent, rows=0, counted=0)

    def pack(self) -> bytes:
        """Write the state as bytes."""
        recent = {name: value for name, value in self.recent._asdict().items() if isinstance(value, np.ndarray)}
        tensors = {_RECENT + name: array for name, array in recent.items()}
        tensors |= {_STATISTICS + name: array for name, array in self.statistics.tensors().items()}
        plain = {**self._asdict(), "recent": {k: v for k, v in self.recent._asdict().items() if k not in recent}}
        del plain["statistics"]
        return pack_state(plain, tensors, STORED)

    def unpacked(self, data: bytes, *, of_detector: bool = True) -> GuardState:
        """Read a state from bytes; ``self`` is that of an empty store.

        With ``of_detector`` the running statistics are read, too, which only those of the same detector can be.
        """
        parts, tensors = unpack_state(data, STORED)

        def arrays(prefix: str) -> Tensors:
            return {name.removeprefix(prefix): one for name, one in tensors.items() if name.startswith(prefix)}

        try:
            fields = {name: parts[name] for name in self._fields if name != "statistics"}
            value, per_class, *rest = fields["threshold"]
            stored = Threshold(value, None if per_class is None else tuple(per_class), *rest)
            fields["threshold"] = stored if fields["threshold_decided"] else self.threshold
            fields["recent"] = RecentRows(**(parts["recent"] | arrays(_RECENT)))
            fields["alarms"] = _alarms(parts["alarms"])
            if parts["frozen"] is not None:
                since, because, by_person, alarms = parts["frozen"]
                fields["frozen"] = Frozen(since, because, by_person, _alarms(alarms))
            fields["this_minute"] = MinuteCounts(*parts["this_minute"])
            statistics = self.statistics.restored(arrays(_STATISTICS)) if of_detector else self.statistics
            return GuardState(statistics=statistics, **fields)
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"the state of the guard is damaged ({error!r}); {STORED.when_damaged}") from error


def _alarms(parts: list[list[Any]]) -> tuple[Alarm, ...]:
    return tuple(Alarm(*one) for one in parts)
