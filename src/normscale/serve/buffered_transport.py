"""A response in one piece: what is written within one turn of the event loop goes out with one call to the system."""

from __future__ import annotations

import asyncio
from typing import Any


class BufferedTransport:
    """Stands before a transport. uvicorn writes the head and the body of a response apart, each a system call.

    Only what uvicorn asks of a transport is here; everything but writing is the transport's own.
    """

    __slots__ = ("_loop", "_parts", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing waits yet."""
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write before the event loop turns to anything new."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Write what waits, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(parts[0] if len(parts) == 1 else b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        """Whatever else a transport can do."""
        return getattr(self._transport, name)
