"""The state of a guard, and the form in which the store keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from normscale._validate import BoolArray
from normscale.detectors.threshold import Threshold
from normscale.errors import FileFormatError
from normscale.guard.drift import RecentRows
from normscale.guard.statistics import Statistics, Tensors
from normscale.state import Kind, pack_state, unpack_state

STORED = Kind("normscale_guard", "state of a guard", "", "restore the store from a copy, or start with a new one.")
_STATISTICS = "statistics."


class Alarm(NamedTuple):
    """A reading that passed its limit, and has not stayed well below it for long since."""

    name: str
    since: float
    value: float
    """When it was last beyond the limit, as the text."""
    limit: float
    text: str
    calm_rows: int = 0
    """Rows for which the reading has stayed well below the limit."""


class Frozen(NamedTuple):
    """Since when, and why, nothing is taken in."""

    since: float
    because: str
    by_person: bool = False
    """Then only a person ends it."""
    alarms: tuple[Alarm, ...] = ()
    """Those that stood when it froze."""


class MinuteCounts(NamedTuple):
    """Who has had how many rows taken in within the present minute."""

    number: int = -1
    total: int = 0
    by_client: Mapping[str, int] = {}

    def at(self, time: float) -> MinuteCounts:
        """The counts of the minute that it is now."""
        number = int(time // 60.0)
        return self if number == self.number else MinuteCounts(number)

    def after(self, time: float, client: str, rows: int) -> MinuteCounts:
        """Count some more rows of a client."""
        now = self.at(time)
        mine = now.by_client.get(client, 0) + rows
        return MinuteCounts(now.number, now.total + rows, {**now.by_client, client: mine})

    def room(self, time: float, client: str, client_cap: int | None, minute_cap: int | None) -> int | None:
        """Say how many more rows of a client may be taken in; None: any number."""
        now = self.at(time)
        used = ((client_cap, now.by_client.get(client, 0)), (minute_cap, now.total))
        left = [cap - rows for cap, rows in used if cap is not None]
        return max(0, min(left)) if left else None


class Successor(NamedTuple):
    """The guard that serves instead of this one, and who decided so."""

    fingerprint: str
    store: str
    at: float
    by: str


class ShadowAgreement(NamedTuple):
    """How far a shadow and the guard that it stands behind flag the same rows."""

    rows: int = 0
    both: int = 0
    serving_only: int = 0
    shadow_only: int = 0

    def after(self, serving: BoolArray, shadow: BoolArray) -> ShadowAgreement:
        """Count some more rows, by whether they were flagged."""
        return ShadowAgreement(
            self.rows + shadow.size,
            self.both + int(np.count_nonzero(serving & shadow)),
            self.serving_only + int(np.count_nonzero(serving & ~shadow)),
            self.shadow_only + int(np.count_nonzero(shadow & ~serving)),
        )


class GuardState(NamedTuple):
    """All that a guard knows. It is never changed: each block of rows and each decision makes a new one."""

    seq: int
    """The last entry of the log that it includes."""
    at: float
    statistics: Statistics
    recent: RecentRows
    threshold: Threshold
    rows: int = 0
    """Rows in the statistics."""
    counted: int = 0
    """Rows in them of which it was counted what the stream alone flags; probation lasts so long."""
    scored: int = 0
    """Rows answered since the store began."""
    quarantined: int = 0
    """Rows answered but not taken in, waiting for a person."""
    frozen: Frozen | None = None
    alarms: tuple[Alarm, ...] = ()
    alarms_raised: int = 0
    """Alarms since the store began."""
    largest_score: float = -1e308
    """Of all rows answered."""
    this_minute: MinuteCounts = MinuteCounts()
    threshold_decided: bool = False
    """Whether a person drew the threshold; else it is the detector file's, or that of the command line, of today."""
    successor: Successor | None = None
    """Set: nothing is taken in or changed here any more."""
    agreement: ShadowAgreement = ShadowAgreement()
    """Since it became a shadow."""

    def froze(self, because: str, alarms: tuple[Alarm, ...], start: GuardState) -> GuardState:
        """After an alarm: what was taken in since the start may be what raised it, so none of it is believed."""
        frozen = Frozen(self.at, because, alarms=alarms)
        recent = self.recent.without_stream_only()
        return self._replace(frozen=frozen, statistics=start.statistics, recent=recent, rows=0, counted=0)

    def pack(self) -> bytes:
        """Write the state as bytes."""
        tensors = {_STATISTICS + name: array for name, array in self.statistics.tensors().items()}
        parts = {name: _split(value, name, tensors) for name, value in self._asdict().items() if name != "statistics"}
        return pack_state(parts, tensors, STORED)

    def unpacked(self, data: bytes, *, of_detector: bool = True) -> GuardState:
        """Read a state from bytes; ``self`` is that of an empty store.

        With ``of_detector`` the running statistics are read, too, which only those of the same detector can be.
        """
        parts, tensors = unpack_state(data, STORED)
        own = {name[len(_STATISTICS) :]: array for name, array in tensors.items() if name.startswith(_STATISTICS)}
        try:
            fields = {name: _joined(hint, parts[name], name, tensors) for name, hint in _hints(GuardState)}
            if not fields["threshold_decided"]:
                fields["threshold"] = self.threshold
            return GuardState(statistics=self.statistics.restored(own) if of_detector else self.statistics, **fields)
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"the state of the guard is damaged ({error!r}); {STORED.when_damaged}") from error


@cache
def _hints(record: type) -> list[tuple[str, Any]]:
    return [(name, hint) for name, hint in get_type_hints(record).items() if hint is not Statistics]


def _split(value: Any, name: str, tensors: Tensors) -> Any:
    """A record as plain values; its arrays are put among ``tensors`` by their dotted names."""
    if isinstance(value, np.ndarray):
        tensors[name] = value
        return None
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", range(len(value)))
        return [_split(part, f"{name}.{field}", tensors) for field, part in zip(fields, value, strict=True)]
    return value


def _joined(hint: Any, value: Any, name: str, tensors: Mapping[str, NDArray[Any]]) -> Any:
    """What :func:`_split` was given, of a declared type."""
    if value is None:
        return tensors.get(name)
    wanted = next((one for one in (hint, *get_args(hint)) if hasattr(one, "_fields")), None)
    if get_origin(hint) is tuple:
        return tuple(_joined(get_args(hint)[0], part, f"{name}.{i}", tensors) for i, part in enumerate(value))
    if wanted is not None:
        pairs = zip(_hints(wanted), value, strict=True)
        return wanted(*(_joined(inner, part, f"{name}.{field}", tensors) for (field, inner), part in pairs))
    return tuple(value) if isinstance(value, list) else value
