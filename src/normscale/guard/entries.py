"""The log of a guard, for people: one entry for each block of rows that was answered, alarm and decision."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Event(StrEnum):
    """What an entry tells of."""

    ROWS = "rows"
    """Rows that the statistics took in."""
    QUARANTINE = "quarantine"
    """Rows that were answered and kept out of the statistics."""
    ALARM = "alarm"
    """A reading passed its limit."""
    CALM = "calm"
    """No reading is beyond its limit any more."""
    FREEZE = "freeze"
    THAW = "thaw"
    THRESHOLD = "threshold"
    RESET = "reset"
    ACCEPT = "accept"
    """Quarantined rows were taken in."""
    DISCARD = "discard"
    """Quarantined rows were dropped."""
    ADOPT = "adopt"
    """Another detector took the store over."""
    COMPARED = "compared"
    """A shadow has scored some more rows besides the serving guard."""
    SWITCH = "switch"
    """Another guard serves from now on, or this one again."""


class Entry(NamedTuple):
    """One line of the log."""

    seq: int
    at: float
    """Seconds since 1970, never going back."""
    event: str
    client: str = ""
    """Whose rows they were."""
    rows: int = 0
    flagged: int = 0
    display_sample: bytes = b""
    """A sample of the scores."""
    by: str = ""
    """Who decided; empty for what the guard does by itself."""
    note: str = ""
    """JSON: the cause of a quarantine or an alarm, the reason of a decision."""
