"""A real server on the loopback, and clients that speak HTTP badly."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st

from normscale.guard.server.app import refusal, respond
from normscale.guard.server.protocol import KNOWN, GuardProtocol
from normscale.guard.server.request import BadRequest, Bounds, ClientGone, HttpRequest, Receive, Reply, Scope, Send

MAX_HEAD = 4000
BOUNDS = Bounds(max_body=300_000, max_seconds=20)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Tell the client what arrived; who asks for /known is."""
    request = HttpRequest(scope, receive)
    scope[KNOWN] = scope["path"] == "/known"
    try:
        await request.read_body(BOUNDS.max_body)
    except BadRequest as error:
        reply = refusal(error)
    except ClientGone:
        return
    else:
        names = [name.decode() for name, _ in scope["headers"]]
        told = {"size": len(request.body), "path": scope["path"][:20], "headers": names}
        reply = Reply(json.dumps(told).encode())
    await respond(request, reply, send)


@contextmanager
def running(loop: str = "uvloop", keep_alive: float = 60, **bounds: Any) -> Iterator[int]:
    """A server with these bounds; gives its port."""
    wanted = BOUNDS._replace(**{"max_head": MAX_HEAD, "head_seconds": 30.0, **bounds})
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        config = uvicorn.Config(
            echo,
            http=type("Bounded", (GuardProtocol,), {"bounds": wanted}),
            loop=loop,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # a number of seconds, whole or not
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                time.sleep(0.005)
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(10)


@pytest.fixture(scope="module", params=["uvloop", "asyncio"])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    with running(request.param) as number:
        yield number


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """A server that waits for a head only briefly."""
    with running(head_seconds=0.2) as number:
        yield number


class Connection:
    """One client."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=15)
        self._buffer = b""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> Connection:
        self.socket.sendall(data)
        return self

    def send_while_open(self, data: bytes, at_most: int) -> int:
        """Send a piece again and again until the server hangs up; how many went out."""
        for count in range(at_most):
            try:
                self.socket.sendall(data)
            except OSError:
                return count
        return at_most

    def answer(self) -> tuple[int, dict[str, str], Any]:
        """The next response: status, headers, and its body as JSON."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        length = int(headers["content-length"])
        while len(rest) < length:
            self._more()
            rest = self._buffer.partition(b"\r\n\r\n")[2]
        self._buffer = rest[length:]
        return int(first.split()[1]), headers, json.loads(rest[:length])

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, f"the server hung up after {self._buffer!r}"
        self._buffer += data

    def is_closed(self) -> bool:
        """Wait until the server hangs up; False when it says something instead."""
        try:
            return not self._buffer and self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def get(path: str = "/", extra: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{extra}\r\n".encode()


def post(body: bytes, extra: str = "", path: str = "/") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def refused(connection: Connection, status: int, words: str) -> None:
    got, headers, body = connection.answer()
    assert got == status
    assert words in body["error"]
    assert headers["connection"] == "close"
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert connection.is_closed()


# ---------------------------------------------------------------- what must go on working


def test_requests_one_after_the_other_and_in_a_row(port: int) -> None:
    with Connection(port) as client:
        for _ in range(3):
            assert client.send(get("/a")).answer()[2] == {"size": 0, "path": "/a", "headers": ["host"]}
        client.send(get("/1") + post(b"x" * 20_000) + get("/2"))
        assert [client.answer()[2]["size"] for _ in range(3)] == [0, 20_000, 0]
        client.send(b"\r\n").send(get())
        assert client.answer()[0] == 200


def test_a_head_in_pieces(port: int) -> None:
    with Connection(port) as client:
        for piece in (b"GE", b"T /a HTTP/1.1\r\nHo", b"st: localhost\r", b"\n", b"\r", b"\n"):
            client.send(piece)
            time.sleep(0.01)
        assert client.answer()[0] == 200


@pytest.mark.parametrize("size", [0, 1, 65_536, 300_000])
def test_bodies_may_be_longer_than_heads(port: int, size: int) -> None:
    with Connection(port) as client:
        assert client.send(post(b"x" * size)).answer()[2]["size"] == size
        client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for start in range(0, size, 50_000):
            piece = min(50_000, size - start)
            client.send(b"%x\r\n" % piece + b"x" * piece + b"\r\n")
        assert client.send(b"0\r\n\r\n").answer()[2]["size"] == size
        assert client.send(get()).answer()[0] == 200


def test_many_small_pieces_of_a_body(port: int) -> None:
    with Connection(port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(20):
            client.send(b"1;x=y\r\na\r\n" * 200)
        assert client.send(b"0\r\n\r\n").answer()[2]["size"] == 4000


def test_a_body_may_take_longer_than_a_head(hasty: int) -> None:
    with Connection(hasty) as client:
        client.send(post(b"x" * 10)[:-5])
        time.sleep(0.4)
        assert client.send(b"x" * 5).answer()[2]["size"] == 10
        time.sleep(0.4)  # idle between requests is uvicorn's matter
        assert client.send(get()).answer()[0] == 200


# ---------------------------------------------------------------- heads that are too long


def test_the_bound_on_a_head_is_exact(port: int) -> None:
    rest = len("/") + len("Hostlocalhost") + 4 + len("X") + 4
    with Connection(port) as client:
        assert client.send(get("/", f"X: {'a' * (MAX_HEAD - rest)}\r\n")).answer()[0] == 200
        refused(client.send(get("/", f"X: {'a' * (MAX_HEAD - rest + 1)}\r\n")), 431, "longer than 4000 bytes")


@pytest.mark.parametrize(
    "head",
    [
        get("/" + "a" * 5000),
        get("/", "".join(f"X-{index}: y\r\n" for index in range(1000))),
        get("/", f"X: {'a' * 100_000}\r\n"),
        post(b"body", f"X: {'a' * 5000}\r\n"),
    ],
)
def test_a_head_that_is_too_long(port: int, head: bytes) -> None:
    with Connection(port) as client:
        refused(client.send(head), 431, "longer than 4000 bytes")


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_head_without_end(port: int, start: bytes) -> None:
    with Connection(port) as client:
        client.send(start)
        sent = client.send_while_open(b"a" * 1000, 100_000)
        assert sent < 10_000  # far less than the 100 MB it has to say; most of it lies in the buffers of the system


@pytest.mark.parametrize("flood", [b"a" * 1000, b"X-A: b\r\n" * 100])
def test_headers_without_end_behind_a_body(port: int, flood: bytes) -> None:
    with Connection(port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ")
        assert client.send_while_open(flood, 100_000) < 10_000


def test_headers_behind_a_body_are_dropped(port: int) -> None:
    with Connection(port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n")
        client.send(b"Authorization: Bearer stolen\r\n\r\n")
        assert client.answer()[2]["headers"] == ["host", "transfer-encoding"]


# ---------------------------------------------------------------- heads that are too slow


def test_a_head_that_is_not_finished(hasty: int) -> None:
    with Connection(hasty) as client:
        refused(client.send(b"GET / HTTP/1.1\r\nHost: loc"), 408, "not complete within 0.2 seconds")
    with Connection(hasty) as client:  # also later on a connection that was used well
        assert client.send(get()).answer()[0] == 200
        refused(client.send(b"GET"), 408, "not complete")
    with Connection(hasty) as client:
        client.send(get() + b"GET / HT")
        assert client.answer()[0] == 200
        refused(client, 408, "not complete")


def test_a_head_that_drips(hasty: int) -> None:
    with Connection(hasty) as client:
        client.send(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(200):
            time.sleep(0.02)
            if not client.send_while_open(b"a", 1):
                break
        else:
            pytest.fail("the server waits for ever")


@pytest.mark.parametrize("drip", [b"", b"\r\n", b"\n"])
def test_a_connection_that_asks_nothing(hasty: int, drip: bytes) -> None:
    with Connection(hasty) as client:

        def drips() -> None:
            while drip and client.send_while_open(drip, 1):
                time.sleep(0.02)

        thread = threading.Thread(target=drips, daemon=True)
        thread.start()
        assert client.is_closed()
    thread.join(15)
    assert not thread.is_alive()


def test_empty_lines_do_not_keep_a_used_connection_open() -> None:
    with running(keep_alive=0.1) as port, Connection(port) as client:
        assert client.send(get()).answer()[0] == 200
        for _ in range(100):
            time.sleep(0.02)
            if not client.send_while_open(b"\r\n", 1):
                break
        else:
            pytest.fail("the server waits for ever")


# ---------------------------------------------------------------- what is no HTTP


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"CONNECT a:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\n"[:-4] + b"\0\r\n\r\n",
    ],
)
def test_what_is_no_http(port: int, request_: bytes) -> None:
    with Connection(port) as client:
        refused(client.send(request_), 400, "not a request of HTTP/1.1")


def test_an_upgrade_is_answered_like_any_request(port: int) -> None:
    with Connection(port) as client:
        assert client.send(get("/", "Connection: Upgrade\r\nUpgrade: websocket\r\n")).answer()[0] == 200


@settings(max_examples=40)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40), st.sampled_from([get(), post(b"abc"), b"\r\n", b"Transfer-Encoding: chunked\r\n"])
        ),
        max_size=5,
    )
)
def test_after_any_bytes_the_server_answers_others(port: int, pieces: list[bytes]) -> None:
    with Connection(port) as client:
        for piece in pieces:
            client.send_while_open(piece, 1)
    with Connection(port) as client:
        assert client.send(get()).answer()[0] == 200


# ---------------------------------------------------------------- together with the limits


def test_a_client_that_is_still_sending_can_read_why_it_was_refused(port: int) -> None:
    with Connection(port) as client:
        client.send(post(b"x" * 5_000_000))
        refused(client, 413, "larger than 300000 bytes")


def test_a_client_that_asks_first_is_refused_before_it_sends(port: int) -> None:
    with Connection(port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\nExpect: 100-continue\r\n\r\n")
        assert client.answer()[0] == 413
    with Connection(port) as client:
        client.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert client.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert client.send(b"12345").answer()[2]["size"] == 5


def test_of_too_many_connections_idle_ones_of_strangers_go_first_and_the_oldest_of_them() -> None:
    with running(max_connections=4, head_seconds=30) as port, ExitStack() as stack:

        def connect(data: bytes = b"") -> Connection:
            return stack.enter_context(Connection(port)).send(data)

        known, at_work = connect(get("/known")), connect(post(b"12345", path="/known")[:-1])
        assert known.answer()[0] == 200
        old = connect(get())
        assert old.answer()[0] == 200
        time.sleep(0.1)  # the next must be younger by the clock of the event loop, which counts milliseconds
        young = connect()
        time.sleep(0.1)  # until the one that says nothing was accepted
        assert connect(get()).answer()[0] == 200
        assert old.is_closed()
        assert connect(get()).answer()[0] == 200
        assert young.is_closed()
        assert known.send(get("/known")).answer()[0] == 200
        assert at_work.send(b"5").answer()[2]["size"] == 5


def test_connections_on_which_known_clients_wait_are_never_closed_for_others() -> None:
    with running(max_connections=3, head_seconds=30) as port, ExitStack() as stack:
        half = post(b"12345", path="/known")[:-1]
        clients = [stack.enter_context(Connection(port)).send(half) for _ in range(3)]
        time.sleep(0.1)
        with Connection(port) as late:
            refused(late, 503, "too many connections")
        assert all(client.send(b"5").answer()[0] == 200 for client in clients)
        with Connection(port) as again:  # now they are idle
            assert again.send(get()).answer()[0] == 200


def test_who_is_refused_and_goes_on_sending_makes_room(port: int) -> None:
    with running(max_connections=3, head_seconds=30) as port, ExitStack() as stack:
        large = b"POST /known HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000000\r\n\r\n"
        for _ in range(6):
            client = stack.enter_context(Connection(port)).send(large)
            assert client.answer()[0] == 413


@pytest.mark.parametrize("size", [b"-1", b"fffffffffffffffff1", b"1 2", b"zz", b""])
def test_a_chunk_of_no_size_is_refused_in_a_sentence(port: int, size: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Connection(port) as client:
        refused(client.send(head + b"3\r\nabc\r\n" + size + b"\r\n"), 400, "not a request of HTTP/1.1")
    with Connection(port) as client:
        client.send(head)
        time.sleep(0.05)  # until the application waits for it
        refused(client.send(size + b"\r\nabc\r\n"), 400, "not a request of HTTP/1.1")


def test_what_stands_beside_the_size_of_a_chunk_has_a_bound(port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Connection(port) as client:
        assert client.send(head + b"3;name=value\r\nabc\r\n0\r\n\r\n").answer()[2]["size"] == 3
    for length in (3 * MAX_HEAD, 70_000):
        with Connection(port) as client:
            client.send_while_open(head + b"3;" + b"x" * length + b"\r\nabc\r\n0\r\n\r\n", 1)
            refused(client, 431, "longer than")
