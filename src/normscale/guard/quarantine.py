"""Rows that were answered and not taken in, kept for a person: their moments, or the rows where order matters."""

from __future__ import annotations

from collections.abc import Sequence

from normscale._kernels import combine
from normscale.guard.entries import Entry
from normscale.guard.judge import Part
from normscale.guard.stored_state import Session
from normscale.guard.stores import Quarantined

MOST_PARTS, MOST_PACKED_BYTES = 10_000, 64 << 20
"""Of all that is kept; beyond, the older half is dropped."""
_LOOK_EVERY = 50
"""Entries between two looks at its size."""


def set_aside(session: Session, entry: Entry, part: Part) -> None:
    """Keep what a person may accept some day; moments join those of the same minute, client and cause."""
    cause, moments, minute = str(part.cause), part.moments, int(entry.at // 60.0)
    kept = Quarantined(entry.seq, entry.at, minute, entry.client, cause, 0, 0, b"", b"", part.packed_rows)
    earlier = None if part.packed_rows else session.transaction.quarantined_in_minute(minute, entry.client, cause)
    if earlier is not None:
        kept, moments = earlier, combine(earlier.moments, moments)
    rows, flagged = kept.rows + part.rows, kept.flagged + part.flagged
    mean, m2 = moments.mean.tobytes(), moments.m2.tobytes()
    session.transaction.quarantine(kept._replace(rows=rows, flagged=flagged, mean=mean, m2=m2))
    if entry.seq % _LOOK_EVERY == 0 or len(part.packed_rows) > MOST_PACKED_BYTES // _LOOK_EVERY:
        drop(session, session.transaction.oldest_quarantined_beyond(MOST_PARTS, MOST_PACKED_BYTES))


def drop(session: Session, parts: Sequence[Quarantined]) -> int:
    """Take parts out of the quarantine; how many rows that were."""
    session.transaction.drop_quarantined(parts)
    rows = sum(part.rows for part in parts)
    session.state = session.state._replace(quarantined=session.state.quarantined - rows)
    return rows
