"""Rows that were answered and not taken in, kept for a person: their moments, or the rows where order matters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from normscale._kernels import BlockState, combine
from normscale.guard.entries import Entry
from normscale.guard.judge import Cause, Part
from normscale.guard.stored_state import Session
from normscale.guard.stores import Quarantined

MOST_PARTS, MOST_PACKED_BYTES = 10_000, 64 << 20
"""Of all that is kept; beyond, the older half is dropped."""
_LOOK_EVERY = 50
"""Entries between two looks at its size."""


def set_aside(session: Session, entry: Entry, cause: Cause, part: Part) -> None:
    """Keep what a person may accept some day."""
    moments, minute = part.moments, int(entry.at // 60.0)
    earlier = None if part.packed_rows else session.transaction.quarantined_in_minute(minute, entry.client, cause)
    if earlier is not None:
        moments = combine(moments_of(earlier), moments)
    session.transaction.quarantine(
        Quarantined(
            entry.seq if earlier is None else earlier.seq,
            entry.at if earlier is None else earlier.at,
            minute,
            entry.client,
            cause.value,
            int(moments.weight),
            entry.flagged + (0 if earlier is None else earlier.flagged),
            moments.mean.tobytes(),
            moments.m2.tobytes(),
            part.packed_rows,
        )
    )
    if entry.seq % _LOOK_EVERY == 0 or len(part.packed_rows) > MOST_PACKED_BYTES // _LOOK_EVERY:
        drop(session, session.transaction.oldest_quarantined_beyond(MOST_PARTS, MOST_PACKED_BYTES))


def drop(session: Session, parts: Sequence[Quarantined]) -> int:
    """Take parts out of the quarantine; how many rows that were."""
    session.transaction.drop_quarantined(parts)
    rows = sum(part.rows for part in parts)
    session.state = session.state._replace(quarantined=session.state.quarantined - rows)
    return rows


def moments_of(part: Quarantined) -> BlockState:
    """Moments of the logits of quarantined rows."""
    return BlockState(float(part.rows), np.frombuffer(part.mean), np.frombuffer(part.m2))
