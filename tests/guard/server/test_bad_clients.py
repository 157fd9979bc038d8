"""Clients that are slow, vanish, shout or talk nonsense: the server lives on, and has no half of a request."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guard.server.kills import SAMPLE
from guard.server.running import HEADER, INFER, Server, binary_tensors, tensors

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ROW = SAMPLE.test.logits[0].astype(np.float64)
BODY = json.dumps(tensors(ROW)).encode()
HEAD = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
REQUEST = HEAD + BODY


@pytest.fixture(scope="module")
def server(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Few requests at once, and little patience with bodies."""
    folder = tmp_path_factory.mktemp("server")
    options = ("--store", str(folder / "store.sqlite"), "--on-drift", "ignore", "--outlier", "inf")
    with Server(sample_guard, folder / "log", *options, "--max-requests", "32", "--max-seconds", "2.5") as server:
        yield server


@pytest.fixture(autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """Whatever happened: it answers, said nothing of crashes, and lets go of every connection."""
    before = server.open_files()
    yield
    client = server.client()
    assert client.score(ROW).status == 200
    client.close()
    deadline = time.monotonic() + 15
    while server.open_files() > before + 1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert server.open_files() <= before + 1  # what is opened once and kept
    assert "Traceback" not in server.log


def state(server: Server) -> tuple[int, Any]:
    client = server.client()
    told = client.state()
    client.close()
    return told["rows"], told["classes"]["running_mean"]


def connect(server: Server, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection((server.host, server.port), timeout=20)
    connection.sendall(data)
    return connection


def everything(connection: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer
    return int(answer[9:12])


def test_a_body_that_comes_slowly_is_read_and_one_that_never_ends_is_not_waited_for(server: Server) -> None:
    rows, _ = state(server)
    with connect(server, HEAD) as slow, connect(server, HEAD + BODY[:-1]) as never:
        for start in range(0, len(BODY), 40):
            slow.sendall(BODY[start : start + 40])
            time.sleep(0.05)
        assert status(slow.recv(65536)) == 200
        answer = everything(never)
        assert status(answer) == 408
        assert b"did not arrive" in answer
    assert state(server)[0] == rows + 1


def test_a_client_that_vanishes_within_its_body_leaves_no_row(server: Server) -> None:
    before = state(server)
    for length in (0, 1, len(BODY) // 2, len(BODY) - 1):
        connect(server, HEAD + BODY[:length]).close()
        with connect(server, HEAD + BODY[:length]) as cut:
            cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    time.sleep(0.1)
    assert state(server) == before


def test_a_client_that_does_not_read_its_answer_has_sent_whole_requests_only(server: Server) -> None:
    rows, _ = state(server)
    batch, headers = binary_tensors(np.tile(ROW, (7, 1)))
    length = f"{HEADER}: {headers[HEADER]}\r\nContent-Length: {len(batch)}"
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n"
    for _ in range(20):
        with connect(server, head.encode() + batch) as cut:
            cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    deadline = time.monotonic() + 5
    while (taken := state(server)[0] - rows) < 20 * 7 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert taken % 7 == 0
    assert taken <= 20 * 7


def test_pipelined_requests_are_answered_in_order_and_counted_once(server: Server) -> None:
    rows, _ = state(server)
    with connect(server, REQUEST * 20 + REQUEST.replace(b"Host", b"Connection: close\r\nHost")) as connection:
        answers = everything(connection).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [200] * 21
    counts = [json.loads(answer.partition(b"\r\n\r\n")[2])["parameters"]["rows"] for answer in answers]
    assert counts == list(range(rows + 1, rows + 22))


def test_three_hundred_connections_at_once_are_answered_or_told_to_come_again(server: Server) -> None:
    rows, _ = state(server)
    with ExitStack() as stack:
        crowd = [stack.enter_context(connect(server, HEAD + BODY[:-1])) for _ in range(300)]
        # All of them wait with the last byte; more than --max-requests of them are not even listened to.
        for connection in crowd:
            try:
                connection.sendall(BODY[-1:])
            except OSError:
                continue
        counted: Counter[int] = Counter()
        for connection in crowd:
            try:
                counted[status(connection.recv(65536))] += 1
            except (ConnectionResetError, AssertionError):
                counted[503] += 1  # the refusal was cut off by the bytes that crossed it
    assert set(counted) <= {200, 503, 408}, counted
    assert counted[200] > 0
    assert counted[503] > 0
    assert state(server)[0] == rows + counted[200]


def test_many_threads_with_more_requests_than_allowed_at_once(server: Server) -> None:
    rows, _ = state(server)
    statuses: list[int] = []

    def send() -> None:
        client = server.client()
        statuses.extend(client.score(np.tile(ROW, (50, 1)), binary=True).status for _ in range(3))
        client.close()

    threads = [threading.Thread(target=send, daemon=True) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(statuses) == 120
    assert set(statuses) <= {200, 503}
    assert state(server)[0] == rows + 50 * statuses.count(200)


HEADS = {
    "a header of 100 000 bytes": (b"X-Long: " + b"x" * 100_000, {431}),
    "a thousand headers": (b"\r\n".join(b"X-%d: %s" % (n, b"y" * 30) for n in range(1000)), {431}),
    "no number as length": (b"Content-Length: ten", {400}),
    "two lengths": (b"Content-Length: 3\r\nContent-Length: 4", {400}),
    "a length and chunks": (b"Content-Length: 3\r\nTransfer-Encoding: chunked", {400}),
    "an encoding of no name": (b"Transfer-Encoding: gzip, x", {400}),
    "a huge length": (b"Content-Length: 99999999999999", {413}),
    "a compressed body": (b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", {415}),
    "a header without a name": (b": value", {400}),
    "bytes beyond ASCII in a name": (b"\xff\xfe: 1", {400}),
    "a null": (b"X: a\0b", {400}),
    "a folded header": (b"X: a\r\n  b\r\nContent-Length: 1\r\n\r\n{", {400, 422}),
}


@pytest.mark.parametrize("name", HEADS)
def test_bad_heads_are_refused(server: Server, name: str) -> None:
    before = state(server)
    lines, expected = HEADS[name]
    data = b"POST /v2/models/guard/infer HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n\r\n"
    with connect(server, data) as connection:
        answer = everything(connection)
    if answer or name not in ("a header of 100 000 bytes", "a thousand headers"):  # a reset may overtake the answer
        assert status(answer) in expected, answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert state(server) == before


def test_methods_that_do_not_exist_there_are_refused(server: Server) -> None:
    before = state(server)
    client = server.client()
    for path in (
        INFER,
        "/v1/state",
        "/v1/threshold",
        "/v1/reset",
        "/v2/health/live",
        "/metrics",
        "/",
        "/nowhere",
    ):
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "PROPFIND", "CONNECT"):
            if (method, path) in (("POST", "/v1/reset"), ("GET", "/v1/state")):
                continue
            reply = client.ask(method, path, BODY if method == "POST" and path != INFER else None)
            assert reply.status < 500, (method, path, reply)
            assert reply.status in (200, 400, 404, 405, 422), (method, path, reply)
    assert state(server) == before


def test_not_http_at_all(server: Server) -> None:
    before = state(server)
    tls, http2 = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for data in (tls, http2, b"hello\r\n\r\n", b"\0" * 99):
        with connect(server, data) as connection:
            connection.shutdown(socket.SHUT_WR)
            answer = everything(connection)
            assert not answer or status(answer) in (400, 505), (data, answer)
    assert state(server) == before
