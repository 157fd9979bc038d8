"""uvicorn's HTTP protocol, with bounds on everything that is not a body.

uvicorn waits for ever for the rest of a request's head (slow clients could hold every connection), its parser collects
a header line of any length, and headers that follow a chunked body join those that were already looked at.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from normscale.serve.bodies import error_body
from normscale.serve.bounds import Bounds
from normscale.serve.event_log import Refusals
from normscale.serve.hosts import SECURITY_HEADERS


class GuardProtocol(HttpToolsProtocol):
    """One connection. Errors are JSON, as everywhere, and close it.

    ======  =======================================================================================
    400     not HTTP
    408     the head of a request was begun and not finished in time; without a byte it just closes
    431     the head, or what stands between the pieces of a body, is too long
    503     too many connections
    ======  =======================================================================================
    """

    bounds: ClassVar[Bounds] = Bounds()
    refusals: ClassVar[Refusals] = Refusals()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_head = False  # a head has begun and is not complete
        self._in_message = False
        self._moved = False  # the last bytes began, ended or filled a message
        self._idle_bytes = 0  # bytes that did not
        self._head_timer: asyncio.TimerHandle | None = None
        self._refusal = (400, "this is not a request of HTTP/1.1.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head."""
        super().connection_made(transport)
        if len(self.connections) > self.bounds.max_connections:
            self._refuse(503, "the server has too many connections. Try again in a second.")
        else:
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Hand bytes to the parser; those that lead nowhere are counted."""
        if not self._in_message and data[0] in b"\r\n" and not data.strip(b"\r\n"):
            return  # empty lines are allowed before a request, but must not keep a connection open
        self._moved = False
        super().data_received(data)
        if self.transport.is_closing():
            return
        if not self._moved:
            self._idle_bytes += len(data)
            if self._idle_bytes > self.bounds.max_head:
                self._refuse(431, self._too_long())
                return
        if self._in_head:
            self._start_clock()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = self._in_message = True
        self._advance()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one that follows the body is dropped, for nobody would look at it again."""
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the size of the head, then let uvicorn start the request."""
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.bounds.max_head:
            self._refusal = 431, self._too_long()
            raise ValueError(self._refusal[1])  # uvicorn takes it for a request that cannot be parsed
        if any(name == b"transfer-encoding" and value.lower() != b"chunked" for name, value in self.headers):
            # The parser notices too, but only after the request was begun, and then there is nobody left to answer it.
            self._refusal = 400, "the only Transfer-Encoding that is understood is chunked."
            raise ValueError(self._refusal[1])
        self._in_head = False
        self._stop_clock()
        self._advance()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; the application bounds its size."""
        self._advance()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_message = False
        self._advance()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what could not be parsed, and say it in JSON."""
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

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer and close; when another answer is under way, only close."""
        self._stop_clock()
        self.refusals.tell(status=status, address=self.client and self.client[0], because=sentence)
        if self.cycle is None or self.cycle.response_complete:
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
