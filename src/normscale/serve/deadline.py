"""``asyncio.timeout`` for those who enter one twice a request: the same rules in a fifth of the time."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadline:
    """Cancel what runs inside when ``seconds`` have passed, and turn the cancellation into ``TimeoutError``.

    A cancellation that comes from outside passes through as it is.

    Parameters
    ----------
    seconds : float or None
        None never ends.

    Examples
    --------
    >>> async def wait() -> str:
    ...     try:
    ...         with Deadline(0.01):
    ...             await asyncio.sleep(10)
    ...     except TimeoutError:
    ...         return "too late"
    ...     return "in time"
    >>> asyncio.run(wait())
    'too late'
    """

    __slots__ = ("_cancelling", "_handle", "_seconds", "_task", "expired")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._handle: asyncio.TimerHandle | None = None
        self.expired = False

    def __enter__(self) -> Deadline:
        """Start the clock; must run in a task."""
        if self._seconds is not None:
            task = asyncio.current_task()
            assert task is not None
            self._task = task
            self._cancelling = task.cancelling()
            self._handle = task.get_loop().call_later(self._seconds, self._expire)
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the clock."""
        if self._handle is None:
            return
        self._handle.cancel()
        # Someone else may have cancelled the task as well; then it is their cancellation that goes on.
        if self.expired and self._task.uncancel() <= self._cancelling and error_type is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self.expired = True
        self._task.cancel()
