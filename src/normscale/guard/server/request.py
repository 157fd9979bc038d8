"""One HTTP request, as far as its routes need to know it, the reply to it, and how much clients may ask for."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from normscale.encoding.json_text import write_json
from normscale.errors import NormscaleError

JSON = "application/json"
Body: TypeAlias = bytes | bytearray
Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_ONCE = (b"host", b"origin", b"authorization", b"content-type", b"content-encoding", b"ce-id")
"""Headers that mean nothing when they come twice."""
_LONGEST_QUOTE = 100
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 64 << 20


class Reply(NamedTuple):
    """What a client gets back."""

    content: bytes | AsyncIterator[bytes]
    content_type: str = JSON
    headers: Mapping[str, str] = {}
    status: int = 200


class ClientGone(Exception):
    """The client has hung up: there is nobody to answer."""


class BadRequest(NormscaleError):
    """A request that is refused with this status; nothing was taken in. Quote the client only through :func:`shown`."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def error_body(sentence: str) -> bytes:
    """The body of every response that is an error."""
    return write_json({"error": sentence}).encode()


def shown(text: object) -> str:
    """What a client sent, fit for an error message: plain ASCII on one line, at most 100 characters."""
    line = str(text)[: _LONGEST_QUOTE + 1].encode("unicode_escape").decode("ascii")
    return line if len(line) <= _LONGEST_QUOTE else line[: _LONGEST_QUOTE - 3] + "..."


class HttpRequest:
    """A request whose body is still to be read; headers are by name in lower case."""

    __slots__ = ("_receive", "body", "client", "headers", "method", "path", "scope", "unread")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.unread = b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"
        self.body: Body = b""
        self.client = ""

    @property
    def address(self) -> str:
        """Where it comes from."""
        address = self.scope.get("client")
        return str(address[0]) if address else "local"

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case."""
        value = self.headers.get(name)
        return None if value is None else str(value, "latin-1")

    def require_single_headers(self) -> None:
        """Refuse a header that comes twice and contradicts itself."""
        if len(self.headers) == len(self.scope["headers"]):
            return
        names = [name for name, _ in self.scope["headers"]]
        for name in _ONCE:
            if names.count(name) > 1:
                raise BadRequest(400, f"the request has two headers {name.decode().title()}; send one.")

    async def read_body(self, max_body: int, take: Callable[[int], None] = lambda _: None) -> None:
        """Read the body within its bounds of size and memory; ``take`` is told of every piece and may refuse it."""
        declared = self.headers.get(b"content-length", b"0")
        too_large = BadRequest(413, f"the body is larger than {max_body} bytes. Send fewer rows at once.")
        if not declared.isdigit() or int(declared) > max_body:
            raise too_large
        parts: list[bytes] = []
        size = 0
        while self.unread:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            self.unread = message.get("more_body", False)
            if size > max_body:
                raise too_large
            take(len(part))
        self.body = parts[0] if len(parts) == 1 else bytearray().join(parts)

    async def wait_until_gone(self) -> None:
        """Return when the client has hung up; the body must have been read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def drop_body(self) -> None:
        """Read what is left of the body for a while, or a client that is still sending would not see its answer."""
        left = _LINGER_BYTES
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while self.unread and left > 0:
                    message = await self._receive()
                    left -= len(message.get("body", b""))
                    self.unread = message["type"] == "http.request" and message.get("more_body", False)
        except TimeoutError:
            return


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[Reply]]


class Bounds(NamedTuple):
    """Bounds of one worker; the command line sets the first four."""

    max_body: int = 16 << 20
    max_rows: int = 100_000
    max_requests: int = 256
    """Requests with rows at once; one client has half of them at most."""
    max_seconds: float = 30.0
    """For a body to arrive, and again for its answer; the answer of a live stream may last."""
    max_bodies: int = 128 << 20
    """Bytes of all rows that are arriving or being answered; one client has half of them at most."""
    max_controls: int = 32
    """Other requests that need a token at once, such as a freeze, health and metrics aside; of one client half ..."""
    max_control_body: int = 1 << 16
    """... and the bytes of their bodies."""
    max_live: int = 32
    """Live streams at once; of one client half."""
    max_head: int = 16 << 10
    head_seconds: float = 10.0
    max_connections: int = 1024
    """Open connections; beyond, idle ones and those of strangers are closed first."""


class Shares:
    """So much for all clients, and half of it for any one of them: one token cannot keep all others out."""

    def __init__(self, most: int, full: str) -> None:
        self._most = most
        self._full = full
        self._by_client: Counter[str] = Counter()
        self.taken = 0

    def take(self, client: str, amount: int = 1) -> None:
        """Take a share, or raise :class:`BadRequest` 503."""
        if self.taken + amount > self._most or self._by_client[client] + amount > (self._most + 1) // 2:
            raise BadRequest(503, f"{self._full}. Try again in a second.")
        self.taken += amount
        self._by_client[client] += amount

    def give_back(self, client: str, amount: int = 1) -> None:
        """Give a share back."""
        self.taken -= amount
        self._by_client[client] -= amount
        if not self._by_client[client]:
            del self._by_client[client]
