"""Who may do what on a real server: every route with every role, hosts and origins, headers, a log without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from guard.server.conftest import Start
from guard.server.kills import SAMPLE
from guard.server.running import INFER, Server, refusal, tensors
from normscale.guard.server.routes import GUARD_ROUTES, SERVER_ROUTES
from normscale.guard.server.tokens import add_token

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ROW = tensors(SAMPLE.test.logits[0])
NEEDS = {
    ("POST", INFER): ("score", ROW),
    ("POST", "/v1/events"): ("score", {}),
    ("GET", "/v1/state"): ("read", None),
    ("GET", "/v1/live"): ("read", None),
    ("GET", "/metrics"): ("read", None),
    ("PUT", "/v1/threshold"): ("admin", {"value": 0.5}),
    ("POST", "/v1/freeze"): ("admin", {}),
    ("POST", "/v1/thaw"): ("admin", {}),
    ("POST", "/v1/reset"): ("admin", {}),
    ("GET", "/v2/health/live"): ("", None),
    ("GET", "/v2/health/ready"): ("", None),
    ("GET", "/v2"): ("", None),
    ("GET", "/v2/models/guard"): ("", None),
    ("GET", "/v2/models/guard/ready"): ("", None),
}
EVERY = [*SERVER_ROUTES, *(route.at("guard", "") for route in GUARD_ROUTES)]
MAY = {"score": {"", "score"}, "read": {"", "read"}, "admin": {"", "score", "read", "admin"}, "nobody": {""}}


class Guarded(NamedTuple):
    server: Server
    secrets: dict[str, str]
    """By role; of nobody too."""


@pytest.fixture(scope="module")
def guarded(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("server")
    secrets = {role: add_token(folder / "tokens.jsonl", f"{role}-client", role) for role in ("score", "read", "admin")}
    secrets["nobody"] = "nsk_" + "x" * 43
    options = ("--store", str(folder / "store.sqlite"), "--tokens", str(folder / "tokens.jsonl"))
    with Server(sample_guard, folder / "log", *options) as server:
        yield Guarded(server, secrets)
        assert "Traceback" not in server.log


def test_the_table_of_this_test_names_every_route() -> None:
    assert set(NEEDS) == {(route.method, route.path) for route in EVERY}


@pytest.mark.parametrize("role", MAY)
def test_each_role_may_do_what_it_is_for_and_nothing_else(guarded: Guarded, role: str) -> None:
    server, secrets = guarded
    admin = server.client(secrets["admin"])
    for (method, path), (need, body) in NEEDS.items():
        before = admin.state()["entry"]
        client = server.client(secrets[role], timeout=20)
        if path == "/v1/live" and need in MAY[role]:
            client.connection.request(method, path, headers={"Authorization": f"Bearer {secrets[role]}"})
            assert client.connection.getresponse().status == 200
            client.close()
            continue
        reply = client.ask(method, path, body)
        client.close()
        if path == "/v1/events" and need in MAY[role]:
            assert (reply.status, "no CloudEvent" in reply.json["error"]) == (400, True)
        elif need in MAY[role]:
            assert reply.status == 200, (method, path, reply)
        else:
            assert reply.status == (401 if role == "nobody" else 403), (method, path, reply)
            assert ("www-authenticate" in reply.headers) == (role == "nobody")
            assert admin.state()["entry"] == before  # nothing was written, not even the wish


def test_without_a_token_or_with_one_that_is_spoilt_nothing_opens(guarded: Guarded) -> None:
    server, secrets = guarded
    admin = secrets["admin"]
    client = server.client()
    nearly = (f"Bearer {admin[:-1]}", f"Bearer {admin}x", f"bearer\t{admin}", f"Basic {admin}")
    for value in ("", admin, "Bearer", "Bearer  ", *nearly):
        reply = client.ask("GET", "/v1/state", Authorization=value)
        assert reply.status == 401, value
        assert admin not in reply.body.decode()
    assert client.ask("GET", f"/v1/state?token={admin}").status == 401
    assert client.ask("GET", "/v1/state", Authorization=f"Bearer {admin}").status == 200


def test_clients_are_known_by_their_token_and_not_by_what_they_say(guarded: Guarded) -> None:
    server, secrets = guarded
    admin = server.client(secrets["admin"])
    sender, far = server.client(secrets["score"]), tensors(np.full((1, 8), 1e6))
    assert sender.ask("POST", INFER, far, X_Forwarded_For="10.1.2.3", Forwarded="for=10.1.2.3").status == 200
    assert admin.live()["flagged"][0]["client"] == "score-client"


def test_every_answer_has_the_security_headers(guarded: Guarded) -> None:
    server, secrets = guarded
    client = server.client(secrets["admin"])
    questions = (("GET", "/"), ("GET", "/v1/state"), ("GET", "/nowhere"), ("PUT", "/v1/state"))
    replies = [client.ask(*question) for question in questions]
    replies += [client.ask("POST", INFER, b"{"), client.ask("GET", "/v2/health/live", Host="evil.example")]
    replies.append(server.client().ask("GET", "/v1/state"))
    for reply in replies:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy  # nothing from elsewhere
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "frame-ancestors 'none'" in policy
        assert "server" not in reply.headers
    assert replies[1].headers["cache-control"] == "no-store"


def test_names_of_other_servers_and_pages_of_other_origins_are_refused(guarded: Guarded) -> None:
    server, secrets = guarded
    client = server.client(secrets["admin"])
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        reply = client.ask("GET", "/v1/state", Host=host)
        assert reply.status in (400, 421), host
        assert "rows" not in reply.json
    for host in (f"localhost:{server.port}", f"127.0.0.1:{server.port}", "[::1]"):
        assert client.ask("GET", "/v1/state", Host=host).status == 200, host
    entry = client.state()["entry"]
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{server.port + 1}"):
        assert client.ask("POST", "/v1/reset", {}, Origin=origin).status == 403
    assert client.state()["entry"] == entry
    assert client.ask("POST", "/v1/thaw", {}, Origin=f"http://127.0.0.1:{server.port}").status == 200


def test_the_log_tells_no_secret(guarded: Guarded) -> None:
    server, secrets = guarded
    for role, secret in secrets.items():
        client = server.client(secret)
        client.ask("POST", INFER, ROW, Cookie=f"token={secret}")
        client.ask("POST", INFER, b"\x93NUMPY", "application/octet-stream")
        client.ask("GET", f"/{role}/{secret}")
        client.ask("PUT", "/v1/threshold", {"value": secret})
        client.connection.close()
    for text in (*secrets.values(), "Authorization", "Bearer", "nsk_"):
        assert text not in server.log


def test_it_listens_on_the_loopback_and_nowhere_else_without_tokens(
    guarded: Guarded, sample_guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = f"{guarded.server.port:04X}"
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines() if line.split()[3] == "0A"]
    assert [address for address in listening if address.endswith(f":{port}")] == [f"0100007F:{port}"]
    store = ("--store", str(tmp_path / "store.sqlite"))
    for host in ("0.0.0.0", "::", "192.0.2.7"):
        code, said = refusal(monkeypatch, sample_guard, *store, "--host", host)
        assert (code, "without tokens" in said) == (1, True), said
    for wrong in ("127.0.0.1 ", "loopback"):
        assert refusal(monkeypatch, sample_guard, *store, "--host", wrong)[0] == 1
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    code, said = refusal(monkeypatch, sample_guard, *store, "--host", "0.0.0.0", "--tokens", str(empty))
    assert (code, "without tokens" in said) == (1, True), said


def test_told_otherwise_it_listens_everywhere_and_still_asks_for_tokens(start_server: Start) -> None:
    secret = "nsk_" + "s" * 43
    server = start_server("--host", "0.0.0.0", store=":memory:", environment={"NORMSCALE_TOKEN": secret})
    assert server.client().ask("GET", "/v1/state").status == 401
    assert server.client(secret).ask("GET", "/v1/state").status == 200
    assert server.client(secret).ask("GET", "/v1/state", Host="evil.example").status == 421
    assert server.client(secret).ask("POST", INFER, ROW).answer["taken_in"] == 1
    assert secret not in server.log
