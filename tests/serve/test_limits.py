"""The middleware, driven as a server would: what is refused before the application, and what every response says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normscale.errors import InvalidInput
from normscale.serve import limits
from normscale.serve.bounds import Bounds
from normscale.serve.deadline import Deadline
from normscale.serve.hosts import Hosts
from normscale.serve.limits import SECURITY_HEADERS, Message, Receive, RequestLimits, Scope, Send

HOST = (b"host", b"localhost:8000")
SMALL = Bounds(max_body=10, max_seconds=0.05, max_requests=2, max_live=1)


class Response:
    """What a server was told to send."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def send(self, message: Message) -> None:
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


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Say what came in."""
    message = await receive()
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": message["body"]})


def scope(method: str = "GET", path: str = "/v1/score", headers: Any = (HOST,)) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": list(headers)}


def body_of(*parts: bytes, then: str = "disconnect") -> Receive:
    """A client that sends these parts, and then is gone or silent."""
    left = list(parts)

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or then == "silence"}
        if then == "silence":
            await asyncio.sleep(60)
        return {"type": "http.disconnect"}

    return receive


def ask(
    request: dict[str, Any],
    *parts: bytes,
    then: str = "disconnect",
    app: Callable[..., Awaitable[None]] = echo,
    bounds: Bounds = SMALL,
    **options: Any,
) -> Response:
    response = Response()
    options.setdefault("hosts", Hosts("127.0.0.1"))
    guarded = RequestLimits(app, bounds=bounds, **options)
    asyncio.run(guarded(request, body_of(*(parts or (b"",)), then=then), response.send))
    return response


def post(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return scope("POST", headers=[HOST, *headers])


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


def test_after_the_body_the_client_is_heard_again() -> None:
    monitored = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        monitored.extend([(await receive())["type"], (await receive())["type"]])
        await send({"type": "http.response.start", "status": 204})

    assert ask(post(length(3)), b"abc", app=app).status == 204
    assert monitored == ["http.request", "http.disconnect"]


@pytest.mark.parametrize("path", ["/", "/page/live.js", "/v1/score"])
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
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "lifespan.startup.complete"})

    assert ask({"type": "lifespan"}, app=app).messages == [{"type": "lifespan.startup.complete"}]
    assert ask({"type": "websocket"}, app=app).messages == [{"type": "websocket.close"}]


# ---------------------------------------------------------------- bodies


def never(_: Scope, receive: Receive, send: Send) -> Awaitable[None]:
    raise AssertionError("the application must not be called")


@pytest.mark.parametrize(
    ("request_", "parts"),
    [
        (post(length(11)), (b"01234567890",)),
        (post(length(10**18)), (b"0",)),
        (post(CHUNKED), (b"0123", b"4567", b"890")),
        (scope("GET", headers=[HOST, length(11)]), (b"01234567890",)),
    ],
)
def test_a_body_that_is_too_large(request_: dict[str, Any], parts: tuple[bytes, ...]) -> None:
    response = ask(request_, *parts, app=never)
    assert response.status == 413
    assert "larger than 10 bytes" in response.error
    assert response.headers["connection"] == "close"
    assert response.is_complete


def test_a_declared_size_is_refused_before_a_byte_is_read() -> None:
    events: list[str] = []
    response = Response()

    async def receive() -> Message:
        events.append("read" if response.messages else "read too early")
        return {"type": "http.disconnect"}

    asyncio.run(RequestLimits(never, hosts=Hosts(""), bounds=SMALL)(post(length(11)), receive, response.send))
    assert response.status == 413
    assert events == ["read"]  # what a client goes on sending is read after the answer, and forgotten


def test_what_follows_a_refusal_is_not_read_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_LINGER_SECONDS", 0.05)
    assert ask(post(length(11)), b"0", then="silence", app=never).is_complete
    monkeypatch.setattr(limits, "_LINGER_SECONDS", 60)
    monkeypatch.setattr(limits, "_LINGER_BYTES", 100)
    reads = []

    async def receive() -> Message:
        reads.append(True)
        assert len(reads) <= 4
        return {"type": "http.request", "body": b"0" * 30, "more_body": True}

    response = Response()
    asyncio.run(RequestLimits(never, hosts=Hosts(""), bounds=SMALL)(post(length(11)), receive, response.send))
    assert response.is_complete
    assert len(reads) == 4


def test_a_body_that_does_not_arrive() -> None:
    response = ask(post(length(5)), b"012", then="silence", app=never)
    assert response.status == 408
    assert response.error == "the body did not arrive within 0.05 seconds."
    assert ask(post(CHUNKED), b"012", then="silence", app=never).status == 408


def test_a_client_that_is_gone_gets_no_answer() -> None:
    response = Response()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    asyncio.run(RequestLimits(never, hosts=Hosts(""), bounds=SMALL)(post(length(5)), receive, response.send))
    assert response.messages == []


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"identity, gzip", b"deflate"])
def test_compressed_bodies(encoding: bytes) -> None:
    response = ask(post(length(5), (b"content-encoding", encoding)), b"01234", app=never)
    assert response.status == 415
    assert "without Content-Encoding" in response.error


@pytest.mark.parametrize("value", ["-1", "+1", "1.0", "abc", "", "1" * 30, "1, 1", "\u0661"])
def test_lengths_that_are_none(value: str) -> None:
    response = ask(post((b"content-length", value.encode())), b"0", app=never)
    assert response.status == 400
    assert "Content-Length" in response.error


def test_two_lengths() -> None:
    assert ask(post(length(1), length(1)), b"0", app=never).status == 400


# ---------------------------------------------------------------- time and number


def test_an_answer_that_takes_too_long() -> None:
    cancelled = []

    async def slow(_: Scope, receive: Receive, send: Send) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    for request in (scope(), post(length(1))):
        response = ask(request, b"0", app=slow)
        assert response.status == 504
        assert "no answer within 0.05 seconds" in response.error
    assert cancelled == [True, True]


def test_half_an_answer_is_left_unfinished() -> None:
    async def slow(_: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await asyncio.sleep(60)

    response = ask(scope(), app=slow)
    assert [message["type"] for message in response.messages] == ["http.response.start"]


def test_live_streams_may_last() -> None:
    async def live(_: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.15)
        await send({"type": "http.response.start", "status": 200})

    assert ask(scope(path="/v1/live"), app=live).status == 200
    assert ask(scope(path="/v1/score"), app=live).status == 504


def test_a_timeout_of_the_application_is_its_own() -> None:
    async def raises(_: Scope, receive: Receive, send: Send) -> None:
        raise TimeoutError("a database")

    response = Response()
    with pytest.raises(TimeoutError, match="a database"):
        asyncio.run(RequestLimits(raises, hosts=Hosts(""))(scope(), body_of(b""), response.send))
    assert response.status == 500


def test_an_error_of_the_application_is_json_and_goes_on() -> None:
    async def raises(_: Scope, receive: Receive, send: Send) -> None:
        raise KeyError("secret detail")

    async def begins(_: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        raise KeyError("secret detail")

    for app, status in ((raises, 500), (begins, 200)):
        response = Response()
        with pytest.raises(KeyError):
            asyncio.run(RequestLimits(app, hosts=Hosts(""))(scope(), body_of(b""), response.send))
        assert response.status == status
        assert b"secret" not in response.body


async def waiting_clients(paths: list[str]) -> tuple[list[int], int]:
    """Statuses of clients that come while the earlier ones wait, and of one that comes after all."""
    gate = asyncio.Event()

    async def wait(_: Scope, receive: Receive, send: Send) -> None:
        await gate.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    guarded = RequestLimits(wait, hosts=Hosts(""), bounds=SMALL._replace(max_seconds=10))
    responses = [Response() for _ in paths]
    tasks = []
    for path, response in zip(paths, responses, strict=True):
        tasks.append(asyncio.create_task(guarded(scope(path=path), body_of(b""), response.send)))
        await asyncio.sleep(0)
    for response in responses:
        if response.messages:
            assert response.headers["retry-after"] == "1"
            assert "Try again" in response.error
    gate.set()
    await asyncio.gather(*tasks)
    last = Response()
    await guarded(scope(path=paths[0]), body_of(b""), last.send)
    return [response.status for response in responses], last.status


@pytest.mark.parametrize(
    ("paths", "statuses"),
    [
        (["/v1/score"] * 4, [200, 200, 503, 503]),
        (["/v1/live"] * 2, [200, 503]),
        (["/v1/live", "/v1/score", "/", "/v1/live", "/"], [200, 200, 200, 503, 503]),
    ],
)
def test_more_than_can_be_served(paths: list[str], statuses: list[int]) -> None:
    assert asyncio.run(waiting_clients(paths)) == (statuses, 200)


def test_whoever_fails_leaves_the_room() -> None:
    guarded = RequestLimits(echo, hosts=Hosts("127.0.0.1"), bounds=SMALL)
    for _ in range(5):
        for request, parts in ((post(length(11)), b"0"), (scope(headers=[]), b""), (post(length(5)), b"0")):
            asyncio.run(guarded(request, body_of(parts), Response().send))
    response = Response()
    asyncio.run(guarded(scope(), body_of(b""), response.send))
    assert response.status == 200


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


def test_only_so_many_hosts_are_remembered() -> None:
    hosts = Hosts("127.0.0.1", ["*"])
    assert all(hosts.allow(f"h{index}".encode()) for index in range(1000))
    assert len(hosts._known) == 256


@given(st.binary(max_size=40))
def test_no_other_host_gets_through(host: bytes) -> None:
    allowed = Hosts("127.0.0.1").allow(host)
    names = (b"localhost", b"127.0.0.1", b"[::1]")
    assert not allowed or host.lower().rsplit(b":", 1)[0].rstrip(b".") in names or host.lower().rstrip(b".") in names


@pytest.mark.parametrize(
    ("method", "origin", "status"),
    [
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
        ("POST", b"https://guard.example.com", 200),
        ("GET", b"https://evil.example", 200),
        ("HEAD", b"https://evil.example", 200),
        ("OPTIONS", b"https://evil.example", 200),
    ],
)
def test_pages_of_other_origins(method: str, origin: bytes, status: int) -> None:
    request = scope(method, headers=[HOST, (b"origin", origin)])
    response = ask(request, origins=["https://guard.example.com/"])
    assert response.status == status
    assert "access-control-allow-origin" not in response.headers
    if status == 403:
        assert "another origin" in response.error


# ---------------------------------------------------------------- the clock


def test_a_cancellation_from_outside_is_not_a_timeout() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def work() -> None:
            try:
                with Deadline(60):
                    await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return seen

    assert asyncio.run(main()) == ["cancelled"]


def test_both_at_once_is_a_cancellation() -> None:
    async def main() -> None:
        async def work() -> None:
            with Deadline(0.01):
                await asyncio.sleep(60)

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.01, task.cancel)
        await asyncio.sleep(0.05)
        assert task.cancelled()

    asyncio.run(main())


def test_after_a_timeout_the_task_goes_on_and_can_be_timed_again() -> None:
    async def main() -> int:
        timeouts = 0
        for _ in range(3):
            try:
                with Deadline(0.005) as clock:
                    await asyncio.sleep(60)
            except TimeoutError:
                timeouts += clock.expired
        with Deadline(0.005):
            pass
        await asyncio.sleep(0.02)  # the clock that was left in time does not ring
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        return timeouts

    assert asyncio.run(main()) == 3
