"""Time that never goes back, whatever is done to the machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Seconds since 1970 as they were at the start, counted on by the monotonic clock.

    Setting the machine's clock while a guard runs moves nothing. A guard that starts with a clock behind the last
    entry of its journal goes on from that entry.

    Examples
    --------
    >>> ticks = iter([5.0, 7.0, 7.0, 9.0])
    >>> clock = Clock(lambda: 1000.0, lambda: next(ticks))
    >>> clock.now()
    1002.0
    >>> clock.catch_up(2000.0)
    >>> clock.now()
    2002.0
    """

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()

    def now(self) -> float:
        """The time."""
        return self._offset + self._monotonic()

    def catch_up(self, at: float) -> None:
        """Go on from ``at`` if that is later: another process on the same store has a clock ahead of this one."""
        behind = at - self.now()
        if behind > 0.0:
            self._offset += behind
