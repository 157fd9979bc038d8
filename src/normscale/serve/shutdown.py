"""Knowing that the server was told to stop: streams that would last for ever end then, and nobody waits for them."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import suppress
from types import FrameType


class ShutdownSignal:
    """Listens to SIGTERM and SIGINT besides uvicorn, which says nothing to the application until all is answered."""

    def __init__(self) -> None:
        """Call it inside the event loop, once uvicorn has its handlers in place."""
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is not threading.main_thread():  # embedded: no signals reach it
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            self._join(number)

    def _join(self, number: signal.Signals) -> None:
        earlier = signal.getsignal(number)
        if not callable(earlier):
            return

        def told(received: int, frame: FrameType | None) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._event.set)
            earlier(received, frame)

        signal.signal(number, told)

    async def within(self, seconds: float) -> bool:
        """Whether it was told to stop; waits for that, but no longer."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()
