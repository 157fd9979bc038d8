"""uvicorn's HTTP protocol, with bounds on everything that is not a body.

uvicorn waits for ever for the rest of a request's head (slow clients could hold every connection), its parser collects
a header line of any length, and headers that follow a chunked body join those that were already looked at.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from normscale.guard.server.events import Refusals
from normscale.guard.server.hosts import SECURITY_HEADERS
from normscale.guard.server.request import Bounds, error_body

KNOWN, DROPPED, LIVE = "normscale.known", "normscale.dropped", "normscale.live"
"""What the application says of a request in its scope: who sent it is known; it was answered, and its body is not read
but dropped; its answer goes on until somebody hangs up."""


class GuardProtocol(HttpToolsProtocol):
    """One connection. Errors are JSON, as everywhere, and close it."""

    bounds: ClassVar[Bounds] = Bounds()
    refusals: ClassVar[Refusals] = Refusals()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False  # a head has begun and is not complete
        self._in_message = False
        self._moved = False  # the last bytes began, ended or filled a message
        self._idle_bytes = 0  # bytes that did not
        self._has_length = False  # the body that is arriving has no chunks
        self._since = self.loop.time()  # it was opened, or a request on it began
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal = (400, "this is not a request of HTTP/1.1.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head; where there are too many connections, another one has to go."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.max_connections and not self._make_room():
            self._refuse(503, "the server has too many connections. Try again in a second.")
        else:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """End with the server; an answer without an end would keep it waiting."""
        super().shutdown()
        if self.cycle is not None and self.cycle.scope.get(LIVE, False) and not self.cycle.response_complete:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the parser; those that lead nowhere are counted."""
        if not self._in_message and data[0] in b"\r\n" and not data.strip(b"\r\n"):
            return  # empty lines are allowed before a request, but must not keep a connection open
        # In pieces, unless all of it belongs to a body: what stands between two chunks must not hide in a large read.
        step = len(data) if self._has_length else self.bounds.max_head
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            self._moved = False
            super().data_received(piece)
            if self.transport.is_closing():
                return
            if not self._moved:
                self._idle_bytes += len(piece)
                if self._idle_bytes > self.bounds.max_head:
                    self._refuse(431, self._too_long())
                    return
        if self._in_head:
            self._start_clock()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._since = self.loop.time()
        self._advance()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that follows the body is dropped, for nobody would look at it again."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.bounds.max_head:
            self._refusal = 431, self._too_long()
            raise ValueError(self._refusal[1])  # uvicorn takes it for a request that cannot be parsed
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            # The parser notices too, but only after the request was begun, and then there is nobody left to answer it.
            self._refusal = 400, "the only Transfer-Encoding that is understood is chunked."
            raise ValueError(self._refusal[1])
        self._in_head = False
        self._has_length = not any(name == b"transfer-encoding" for name, _ in self.headers)
        self._stop_clock()
        self._advance()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._advance()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = self._has_length = False
        self._advance()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(*self._refusal)

    def _advance(self) -> None:
        self._moved = True
        self._idle_bytes = 0

    def _start_clock(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.bounds.head_seconds, self._head_is_late)

    def _stop_clock(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        if self._in_head:
            self._refuse(408, f"the head of the request was not complete within {self.bounds.head_seconds:g} seconds.")
        else:
            self.transport.close()

    def _rank(self) -> int:
        """How much the connection is worth; of those of one rank the oldest goes first, of rank 3 none."""
        cycle = self.cycle
        if cycle is None:
            return 0
        is_known = cycle.scope.get(KNOWN, False)
        if cycle.response_complete:
            return 2 if is_known else 0
        if cycle.scope.get(DROPPED, False):
            return 0
        return 3 if is_known else 1

    def _make_room(self) -> bool:
        """Close the connection that is worth least; False when each of them has a request of a known client."""
        ranked = [(one._rank(), one._since, one) for one in self.connections if isinstance(one, GuardProtocol)]
        ranked = [item for item in ranked if item[0] < 3 and item[2] is not self and not item[2].transport.is_closing()]
        if not ranked:
            return False
        transport = min(ranked, key=lambda item: item[:2])[2].transport
        if transport.get_write_buffer_size():  # whoever does not read its answer would stay
            transport.abort()
        else:
            transport.close()
        return True

    def _refuse(self, status: int, sentence: str) -> None:
        self._stop_clock()
        self.refusals.log(status=status, address=self.client and self.client[0], because=sentence)
        cycle = self.cycle
        is_free = cycle is None or cycle.response_complete
        in_body = self._in_message and not self._in_head
        if is_free or (in_body and not cycle.response_started and not self.pipeline):
            if not is_free:  # its body is being read: to the application its client is gone
                cycle.disconnected = True
                cycle.message_event.set()
            body = error_body(sentence)
            headers = (
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
                *SECURITY_HEADERS,
            )
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()

    def _too_long(self) -> str:
        return f"the head of the request is longer than {self.bounds.max_head} bytes."
