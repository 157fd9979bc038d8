"""What is refused before the guard sees it, and what every response says: pure ASGI, a few microseconds a request.

A body is read here, whole, within its bounds of size and time, before the application is called: it gets bodies that
are there, and its own code needs no limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any, TypeAlias

from normscale.serve.bad_request import Body, error_body
from normscale.serve.bounds import Bounds
from normscale.serve.deadline import Deadline
from normscale.serve.hosts import Hosts, checked_origin

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_PRIVATE = (*SECURITY_HEADERS, (b"cache-control", b"no-store"))
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
BODY = "normscale.body"
"""Where in the scope the body is, for who does not want to wait for it once more."""
WHOLE = "normscale.whole"
"""Where in the scope our protocol leaves a body that came in one piece."""
SERVER_ERROR = (
    "the server made a mistake, and its log says which. Whether it happened before or after rows were taken in is not "
    "known: ask again with the same Idempotency-Key, or look at /v1/state."
)
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 64 << 20


class RequestLimits:
    """ASGI middleware that keeps requests within bounds.

    ======  ====================================================================================
    400     two headers Content-Length, or one that is no number; no header Host, or two
    403     a page of another origin asks for something that changes the guard
    408     the body did not arrive in time
    413     the body is too large; declared bodies are refused before a byte is read
    415     the body is compressed
    421     the header Host names another server
    500     the application raised; the error goes on to the server's log
    503     too many requests or live streams at once; ``Retry-After`` says when to try again
    504     the answer took too long
    ======  ====================================================================================

    Parameters
    ----------
    app : ASGI application
    hosts : Hosts
        By which names the server may be addressed.
    bounds : Bounds
    origins : collection of str
        Origins whose pages may change the guard, besides its own, such as ``https://guard.example.com``: needed
        behind a proxy that rewrites the header Host (``--allow-origin``).
    live : collection of str
        Paths of live streams: they may last, and are counted apart.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Hosts,
        bounds: Bounds | None = None,
        origins: Collection[str] = (),
        live: Collection[str] = ("/v1/live",),
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._bounds = bounds = Bounds() if bounds is None else bounds
        self._origins = frozenset(checked_origin(origin) for origin in origins)
        self._live = frozenset(live)
        self._requests = _Gate(bounds.max_requests)
        self._streams = _Gate(bounds.max_live)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            else:
                await self._app(scope, receive, send)
            return
        path = scope["path"]
        response = _Response(send, _PRIVATE if path.startswith("/v1") else SECURITY_HEADERS)
        is_live = path in self._live
        gate = self._streams if is_live else self._requests
        if gate.active >= gate.limit:
            await response.refuse(503, f"the server is busy with {gate.limit} others. Try again in a second.", retry=1)
            return
        gate.active += 1
        try:
            await self._within_bounds(scope, receive, response, is_live)
        finally:
            gate.active -= 1

    async def _within_bounds(self, scope: Scope, receive: Receive, response: _Response, is_live: bool) -> None:
        bounds = self._bounds
        has_body, refusal = self._look(scope)
        if refusal is not None:
            await response.refuse(*refusal, linger=receive if has_body else None)
            return
        if has_body:
            try:
                with Deadline(bounds.max_seconds):
                    body = await _read(receive, scope, bounds.max_body)
            except TimeoutError:
                await response.refuse(408, f"the body did not arrive within {bounds.max_seconds:g} seconds.")
                return
            except _TooLarge:
                await response.refuse(413, self._too_large(), linger=receive)
                return
            if body is None:  # the client is gone
                return
            scope[BODY] = body
            receive = _first_then(body, receive)
        try:
            with Deadline(None if is_live else bounds.max_seconds) as clock:
                await self._app(scope, receive, response.send)
        except TimeoutError:
            if not clock.expired:  # one of the application's own
                await response.fail()
                raise
            if not response.started:  # of half an answer the server sees that it stays unfinished, and hangs up
                await response.refuse(
                    504,
                    f"no answer within {bounds.max_seconds:g} seconds; it may still be done. Ask again with the same "
                    "Idempotency-Key, or look at /v1/state, and send fewer rows at once.",
                )
        except Exception:
            await response.fail()
            raise

    def _look(self, scope: Scope) -> tuple[bool, tuple[int, str] | None]:
        """Whether a body comes, and why the request is refused, from its headers alone."""
        host = origin = length = None
        has_body = False
        refusal: tuple[int, str] | None = None
        for name, value in scope["headers"]:
            if name == b"host":
                if host is not None:
                    refusal = 400, "the request has two headers Host; send one."
                host = value
            elif name == b"origin":
                origin = value
            elif name == b"content-length":
                if length is not None or not value.isdigit() or len(value) > 19:
                    refusal = 400, "the header Content-Length must be one whole number."
                    value = b"1"
                length = int(value)
                has_body = has_body or length > 0
            elif name == b"transfer-encoding":
                has_body = True
            elif name == b"content-encoding" and value.strip().lower() not in (b"identity", b""):
                refusal = refusal or (415, "compressed bodies are not read; send it without Content-Encoding.")
        if host is None:
            return has_body, (400, "the request has no header Host.")
        if refusal is None:
            if not self._hosts.allow(host):
                refusal = 421, "this server does not answer to that Host. Use its own name, or allow this one."
            elif origin is not None and scope["method"] not in _SAFE and not self._is_own(origin.lower(), host.lower()):
                refusal = 403, "pages of another origin may not do this; --allow-origin lets one that you trust."
            elif length is not None and length > self._bounds.max_body:
                refusal = 413, self._too_large()
        return has_body, refusal

    def _is_own(self, origin: bytes, host: bytes) -> bool:
        return origin in self._origins or origin.partition(b"://")[2] == host

    def _too_large(self) -> str:
        return f"the body is larger than {self._bounds.max_body} bytes. Send fewer rows at once."


class _Gate:
    """How many requests are being answered, and how many may be."""

    __slots__ = ("active", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.active = 0


class _Response:
    """One response: adds the headers of all, remembers whether it began, and can be a refusal."""

    __slots__ = ("_headers", "_send", "started")

    def __init__(self, send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._send = send
        self._headers = headers
        self.started = False

    def send(self, message: Message) -> Awaitable[None]:
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = [*message.get("headers", ()), *self._headers]
        return self._send(message)

    async def refuse(self, status: int, sentence: str, *, retry: int = 0, linger: Receive | None = None) -> None:
        """Answer with an error and close the connection, whose next bytes would be the rest of the body.

        ``linger`` reads that rest for a while: a client that is still sending when the connection is closed is told
        so by its system before it has read the answer.
        """
        body = error_body(sentence)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        if retry:
            headers.append((b"retry-after", str(retry).encode()))
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": linger is not None})
        if linger is not None:
            await _read_and_drop(linger)
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fail(self) -> None:
        """Answer for an application that raised."""
        if not self.started:
            await self.refuse(500, SERVER_ERROR)


class _TooLarge(Exception):
    """More bytes came than are allowed."""


async def _read(receive: Receive, scope: Scope, max_body: int) -> Body | None:
    """The body; None when the client is gone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part = message.get("body", b"")
        size += len(part)
        if size > max_body:
            raise _TooLarge
        parts.append(part)
        if not message.get("more_body", False):
            whole: bytearray | None = scope.pop(WHOLE, None)
            if whole is not None:
                if len(whole) > max_body:
                    raise _TooLarge
                return whole
            return part if len(parts) == 1 else b"".join(parts)


def _first_then(body: Body, receive: Receive) -> Receive:
    """Make a ``receive`` that gives the body once, and then what the server has to say."""
    waiting = [body]

    async def give() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return give


async def _read_and_drop(receive: Receive) -> None:
    """Read on and forget, for a while."""
    left = _LINGER_BYTES
    try:
        with Deadline(_LINGER_SECONDS):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return
    except TimeoutError:
        return
