"""The application, driven as a server would: what is refused before a body is read, and what every response says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscale.errors import InvalidInput
from normscale.guard.server import request as request_module
from normscale.guard.server.app import GuardApp
from normscale.guard.server.hosts import SECURITY_HEADERS, Hosts
from normscale.guard.server.request import Bounds, HttpRequest, Receive, Reply
from normscale.guard.server.settings import GuardSettings, ServerSettings
from normscale.guard.server.tokens import add_token

HOST = (b"host", b"localhost:8000")
SMALL = Bounds(max_body=10, max_seconds=0.05, max_requests=2, max_live=1, max_bodies=25)
Handler = Callable[[HttpRequest], Awaitable[Reply]]


class Response:
    """What a server was told to send."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def error(self) -> str:
        error: str = json.loads(self.body)["error"]
        assert self.headers["content-type"] == "application/json"
        assert int(self.headers["content-length"]) == len(self.body)
        return error

    @property
    def is_complete(self) -> bool:
        return self.messages[-1]["type"] == "http.response.body" and not self.messages[-1].get("more_body")


async def echo(request: HttpRequest) -> Reply:
    """Say what came in."""
    return Reply(bytes(request.body), "text/plain")


async def never(_: HttpRequest) -> Reply:
    raise AssertionError("the handler must not be called")


def make(handler: Handler = echo, bounds: Bounds = SMALL, **options: Any) -> GuardApp:
    """An application whose routes all do this; its guard is never opened."""
    guard = GuardSettings("sample", ":memory:", tokens=options.pop("tokens", None))
    app = GuardApp(ServerSettings({"guard": guard}, bounds=bounds, **options))
    for methods in app._routes.values():
        for method, (route, guards, _) in methods.items():
            methods[method] = (route, guards, handler)
    return app


def scope(method: str = "GET", path: str = "/v1/state", headers: Any = (HOST,)) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": list(headers), "query_string": b""}


def body_of(*parts: bytes, then: str = "disconnect") -> Receive:
    """A client that sends these parts, and then is gone or silent."""
    left = list(parts)

    async def receive() -> Any:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or then == "silence"}
        if then == "silence":
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    return receive


def ask(
    request: dict[str, Any], *parts: bytes, then: str = "disconnect", handler: Handler = echo, **options: Any
) -> Response:
    response = Response()
    asyncio.run(make(handler, **options)(request, body_of(*(parts or (b"",)), then=then), response.send))
    return response


def post(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return scope("POST", "/v2/models/guard/infer", headers=[HOST, *headers])


def length(number: object) -> tuple[bytes, bytes]:
    return b"content-length", str(number).encode()


CHUNKED = (b"transfer-encoding", b"chunked")


# ---------------------------------------------------------------- what passes


def test_a_request_passes_whole() -> None:
    response = ask(post(length(10)), b"01234", b"", b"56789")
    assert response.status == 200
    assert response.body == b"0123456789"
    assert ask(post(CHUNKED), b"0123456789").body == b"0123456789"
    assert ask(post(length(0))).body == b""
    assert ask(scope()).body == b""
    assert ask(scope(headers=[HOST, (b"content-encoding", b"Identity")])).status == 200


@pytest.mark.parametrize("path", ["/", "/page/live.js", "/v1/state", "/nowhere"])
def test_every_response_has_the_security_headers(path: str) -> None:
    for request in (scope(path=path), scope(path=path, headers=[(b"host", b"evil.example")])):
        headers = ask(request).headers
        for name, value in SECURITY_HEADERS:
            assert headers[name.decode()] == value.decode()
        assert (headers.get("cache-control") == "no-store") == path.startswith("/v1")
    assert "content-type" in headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_other_kinds_of_connection() -> None:
    assert ask({"type": "websocket"}).messages == [{"type": "websocket.close"}]


# ---------------------------------------------------------------- who comes before what


def reads_nothing() -> tuple[Receive, list[bool]]:
    reads: list[bool] = []

    async def receive() -> Any:
        reads.append(True)
        return {"type": "http.disconnect"}

    return receive, reads


def test_tokens_roles_and_routes_are_looked_at_before_a_byte_of_a_body(tmp_path: Any) -> None:
    path = str(tmp_path / "tokens.jsonl")
    reader = add_token(path, "watcher", "read")
    bearer = (b"authorization", f"Bearer {reader}".encode())
    cases = (
        (post(length(5)), 401),
        (post(length(5), bearer), 403),
        (scope("POST", "/nowhere", [HOST, length(5)]), 404),
        (scope("DELETE", "/v2/models/guard/infer", [HOST, length(5)]), 405),
        (post(length(11), bearer), 403),
    )
    for request, status in cases:
        response = Response()
        answered: list[bool] = []

        async def receive(answered: list[bool] = answered, response: Response = response) -> Any:
            answered.append(bool(response.messages))
            return {"type": "http.disconnect"}

        asyncio.run(make(never, tokens=path)(request, receive, response.send))
        assert response.status == status
        assert response.headers["connection"] == "close"
        assert answered == [True]  # read and forgotten, after the answer


def test_health_metrics_and_decisions_are_answered_when_rows_are_refused() -> None:
    async def main() -> None:
        app = make()
        full = [asyncio.create_task(app(post(length(5)), body_of(b"0", then="silence"), Response().send)) for _ in "12"]
        await asyncio.sleep(0)
        response = Response()
        await app(post(length(1)), body_of(b"0"), response.send)
        assert response.status == 503
        for path in ("/v1/state", "/v2/health/live", "/v2/health/ready", "/metrics", "/"):
            response = Response()
            await app(scope(path=path), body_of(b""), response.send)
            assert response.status == 200, path
        response = Response()
        await app(scope("POST", "/v1/freeze", [HOST, length(2)]), body_of(b"{}"), response.send)
        assert response.status == 200
        await asyncio.gather(*full)

    asyncio.run(main())


def test_bodies_in_flight_share_a_budget_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "_LINGER_SECONDS", 0.01)

    async def main() -> None:
        app = make(bounds=SMALL._replace(max_requests=10, max_bodies=50))
        slow = [Response() for _ in range(4)]
        tasks = [
            asyncio.create_task(app(post(CHUNKED), body_of(b"01234567", then="silence"), one.send)) for one in slow
        ]
        await asyncio.sleep(0.01)
        assert [one.status for one in slow if one.messages] == [503]  # 3 times 8 bytes are within half of 50, 4 are not
        refused = next(one for one in slow if one.messages)
        assert "memory" in refused.error
        assert refused.headers["retry-after"] == "1"
        await asyncio.gather(*tasks)
        assert sorted(one.status for one in slow) == [408, 408, 408, 503]
        assert app._memory.taken == 0
        response = Response()
        await app(post(length(10)), body_of(b"0123456789"), response.send)
        assert response.status == 200

    asyncio.run(main())


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (post(length(11)), (b"01234567890",)),
        (post(length(10**18)), (b"0",)),
        (post(CHUNKED), (b"0123", b"4567", b"890")),
    ],
)
def test_a_body_that_is_too_large(request_: dict[str, Any], parts: tuple[bytes, ...]) -> None:
    response = ask(request_, *parts, handler=never)
    assert response.status == 413
    assert "larger than 10 bytes" in response.error
    assert response.is_complete


def test_what_follows_a_refusal_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "_LINGER_SECONDS", 0.05)
    assert ask(post(length(11)), b"0", then="silence", handler=never).is_complete
    monkeypatch.setattr(request_module, "_LINGER_SECONDS", 60)
    monkeypatch.setattr(request_module, "_LINGER_BYTES", 100)
    reads = []

    async def receive() -> Any:
        reads.append(True)
        assert len(reads) <= 4
        return {"type": "http.request", "body": b"0" * 30, "more_body": True}

    response = Response()
    asyncio.run(make(never)(post(length(11)), receive, response.send))
    assert response.is_complete
    assert len(reads) == 4


def test_a_body_that_does_not_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "_LINGER_SECONDS", 0.01)
    for header in (length(5), CHUNKED):
        response = ask(post(header), b"012", then="silence", handler=never)
        assert response.status == 408
        assert response.error == "the body did not arrive within 0.05 seconds."


def test_a_client_that_is_gone_gets_no_answer() -> None:
    receive, _ = reads_nothing()
    response = Response()
    asyncio.run(make(never)(post(length(5)), receive, response.send))
    assert response.messages == []


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"deflate"])
def test_compressed_bodies(encoding: bytes) -> None:
    response = ask(post(length(5), (b"content-encoding", encoding)), b"01234", handler=never)
    assert response.status == 415
    assert "without Content-Encoding" in response.error


@pytest.mark.parametrize("name", [b"host", b"authorization", b"content-type", b"ce-id", b"origin"])
def test_headers_that_may_come_once(name: bytes) -> None:
    response = ask(scope("POST", "/v2/models/guard/infer", [HOST, (name, b"localhost"), (name, b"b")]), handler=never)
    assert response.status == 400
    assert name.decode().title() in response.error


# ---------------------------------------------------------------- time and number


def test_an_answer_that_takes_too_long() -> None:
    cancelled = []

    async def slow(_: HttpRequest) -> Reply:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return Reply(b"")

    for request in (scope(), post(length(1))):
        response = ask(request, b"0", handler=slow)
        assert response.status == 504
        assert "no answer within 0.05 seconds" in response.error
    assert cancelled == [True, True]


def test_streams_may_last_and_end_with_their_client() -> None:
    ended = []

    async def live(_: HttpRequest) -> Reply:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                for number in range(50):
                    yield b"%d " % number
                    await asyncio.sleep(0.005)
            finally:
                ended.append(True)

        return Reply(pieces(), "text/event-stream")

    response = ask(scope(path="/v1/live"), b"", handler=live, then="silence")
    assert response.is_complete
    assert response.body == b"".join(b"%d " % number for number in range(50))
    gone = ask(scope(path="/v1/live"), b"", handler=live)  # hangs up at once
    assert len(gone.body) < len(response.body)
    assert ended == [True, True]


def test_a_mistake_of_a_handler_is_json_and_tells_no_detail() -> None:
    for error in (KeyError("secret detail"), TimeoutError("secret detail")):

        async def raises(_: HttpRequest, error: Exception = error) -> Reply:
            raise error

        response = ask(scope(), handler=raises)
        assert response.status == 500
        assert "is not known" in response.error
        assert b"secret" not in response.body


@pytest.mark.parametrize(
    ("paths", "statuses"),
    [
        (["/v1/state"] * 4, [200, 200, 503, 503]),
        (["/v1/live"] * 2, [200, 503]),
        (
            ["/v1/live", "/v1/state", "/v1/state", "/v1/live", "/v1/state", "/v2/health/live"],
            [200, 200, 200, 503, 503, 200],
        ),
    ],
)
def test_more_than_can_be_served(paths: list[str], statuses: list[int]) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        async def wait(_: HttpRequest) -> Reply:
            await gate.wait()
            return Reply(b"")

        app = make(wait, SMALL._replace(max_seconds=10, max_controls=4))
        responses = [Response() for _ in paths]
        tasks = []
        for path, response in zip(paths, responses, strict=True):
            tasks.append(asyncio.create_task(app(scope(path=path), body_of(b""), response.send)))
            await asyncio.sleep(0)
        for response in responses:
            if response.messages:
                assert response.headers["retry-after"] == "1"
                assert "Try again" in response.error
        gate.set()
        await asyncio.gather(*tasks)
        assert [response.status for response in responses] == statuses
        last = Response()
        await app(scope(path=paths[0]), body_of(b""), last.send)
        assert last.status == 200

    asyncio.run(main())


# ---------------------------------------------------------------- hosts and origins


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"host", b"localhost")], 200),
        ([(b"host", b"LOCALHOST:1")], 200),
        ([(b"host", b"localhost.:8000")], 200),
        ([(b"host", b"127.0.0.1:8000")], 200),
        ([(b"host", b"[::1]:8000")], 200),
        ([(b"host", b"evil.example")], 421),
        ([(b"host", b"localhost.evil.example")], 421),
        ([(b"host", b"evil.example:localhost")], 421),
        ([(b"host", b"localhost@evil.example")], 421),
        ([(b"host", b"localhost/")], 421),
        ([(b"host", b"192.168.1.1")], 421),
        ([(b"host", b"\xff")], 421),
        ([(b"host", b"")], 421),
        ([], 400),
        ([HOST, HOST], 400),
    ],
)
def test_hosts(headers: Any, status: int) -> None:
    response = ask(scope(headers=headers))
    assert response.status == status
    if status != 200:
        assert "Host" in response.error


def test_hosts_that_are_named() -> None:
    named = Hosts("127.0.0.1", ["Guard.Example.com.", "10.0.0.1", "[fe80::1]", "fe80::2"])
    allowed = [b"guard.example.com:443", b"10.0.0.1", b"[fe80::1]", b"[fe80::2]:80", b"localhost"]
    assert all(named.allow(host) for host in allowed * 2)
    assert not any(named.allow(host) for host in (b"example.com", b"10.0.0.2", b"[fe80::3]", b"fe80::1") * 2)
    assert Hosts("192.168.0.7").allow(b"192.168.0.7:8000")
    everywhere = Hosts("0.0.0.0")
    assert everywhere.allow(b"10.1.2.3:80")
    assert everywhere.allow(b"[2001:db8::1]")
    assert not everywhere.allow(b"evil.example")
    assert not everywhere.allow(b"[::g]")
    assert Hosts("127.0.0.1", ["*"]).allow(b"anything.example:1")
    for wrong in ("http://a", "a:80", "a b", "", "a/b"):
        with pytest.raises(InvalidInput, match="without port or scheme"):
            Hosts("127.0.0.1", [wrong])


@given(st.binary(max_size=40))
def test_no_other_host_gets_through(host: bytes) -> None:
    allowed = Hosts("127.0.0.1").allow(host)
    names = (b"localhost", b"127.0.0.1", b"[::1]")
    assert not allowed or host.lower().rsplit(b":", 1)[0].rstrip(b".") in names or host.lower().rstrip(b".") in names


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
        ("POST", b"evil://localhost:8000", 403),
        ("POST", b"https://localhost:8000", 200),
        ("POST", b"localhost:8000", 403),
        ("POST", b"http://localhost:8000", 200),
        ("POST", b"https://LOCALHOST:8000", 200),
        ("POST", b"http://localhost:3000", 403),
        ("POST", b"http://localhost", 403),
        ("POST", b"https://evil.example", 403),
        ("POST", b"http://localhost:8000.evil.example", 403),
        ("POST", b"null", 403),
        ("POST", b"", 403),
        ("PUT", b"https://evil.example", 403),
        ("DELETE", b"https://evil.example", 403),
        ("PATCH", b"https://evil.example", 403),
        ("GET", b"https://evil.example", 200),
        ("HEAD", b"https://evil.example", 405),
        ("OPTIONS", b"https://evil.example", 405),
    ],
)
def test_pages_of_other_origins(method: str, origin: bytes, status: int) -> None:
    path = "/v1/threshold" if method == "PUT" else "/v1/thaw" if method == "POST" else "/v1/state"
    request = scope(method, path, headers=[HOST, (b"origin", origin)])
    response = ask(request)
    assert response.status == status
    assert "access-control-allow-origin" not in response.headers
    if status == 403:
        assert "another origin" in response.error
