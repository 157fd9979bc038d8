"""What operators rely on: several guards in one server, tokens that end, lines, counters, a webhook."""

from __future__ import annotations

import http.server
import json
import logging
import math
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import SAMPLE
from guard.server.running import Client, Server, refusal, tensors
from normscale.errors import FileFormatError, InvalidInput
from normscale.guard import Policy
from normscale.guard.server import events
from normscale.guard.server.events import CloudEvent, Lines, Refusals, Webhook, checked_webhook
from normscale.guard.server.request import Bounds
from normscale.guard.server.settings import read_guards
from normscale.guard.server.tokens import Tokens, add_token

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ROWS = SAMPLE.test.logits.astype(np.float64)
ONES = ROWS[ROWS.argmax(axis=1) == 1]
MAX_CONNECTIONS = Bounds().max_connections
MAX_REQUESTS = 12


def received(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """An event as the SDK of CloudEvents reads it."""
    from cloudevents.core.bindings.http import HTTPMessage, from_http_event

    event = from_http_event(HTTPMessage(headers, body))
    kind = event.get_type().removeprefix("normscale.guard.")
    about = {"kind": kind, "source": event.get_source(), "time": event.get_time(), "id": event.get_id()}
    data = event.get_data()
    assert isinstance(data, dict)
    return data | about


def message(kind: str, number: int = 0) -> CloudEvent:
    return CloudEvent(kind, "/v2/models/guard", "2026-11-18T00:00:00.000Z", {"number": number}, f"{kind} {number}")


class Hook:
    """A service that takes events; refuses the first few."""

    def __init__(self, refuse: int = 0, refusal: bytes = b"HTTP/1.1 500 no\r\n\r\n") -> None:
        self.got: list[Any] = []
        self.refused = 0
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = received(dict(self.headers), self.rfile.read(int(self.headers["Content-Length"])))
                failing = hook.refused < refuse
                hook.refused += failing
                if failing:
                    self.wfile.write(refusal)
                    self.close_connection = True
                    return
                self.send_response(204)
                self.end_headers()
                hook.got.append(body)

            def do_GET(self) -> None:
                hook.got.append("a redirection was followed")

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hooks/secret-path"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> Hook:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class Operated(NamedTuple):
    server: Server
    folder: Path
    secrets: dict[tuple[str, str], str]
    """By guard and role."""
    hook: Hook

    def client(self, guard: str, role: str) -> Client:
        return self.server.client(self.secrets[guard, role])

    def lines(self, **fields: Any) -> list[dict[str, Any]]:
        """Lines of the log with these fields."""
        found = [json.loads(line) for line in self.server.log.splitlines() if line.startswith("{")]
        return [line for line in found if all(line.get(name) == value for name, value in fields.items())]


@pytest.fixture(scope="module")
def operated(sample_guard: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    folder = tmp_path_factory.mktemp("operated")
    secrets = {
        (guard, role): add_token(folder / f"{guard}.jsonl", f"{guard}-{role}", role)
        for guard in ("cameras", "doors")
        for role in ("score", "read", "admin")
    }
    (folder / "guards.toml").write_text(
        f"""
        [cameras]
        detector = "{sample_guard}"
        store = "cameras.sqlite"
        tokens = "cameras.jsonl"
        [cameras.policy]
        window = 80
        evidence = 40
        shift = inf

        [doors]
        detector = "{sample_guard}"
        store = "doors.sqlite"
        tokens = "doors.jsonl"
        threshold = 0.125
        [doors.policy]
        on_drift = "ignore"

        [open]
        detector = "sample"
        store = ":memory:"
        """
    )
    with Hook() as hook:
        options = ("--log-format", "json", "--webhook", hook.url, "--trusted-proxy", "127.0.0.0/8")
        limits = ("--max-requests", str(MAX_REQUESTS), "--max-seconds", "10")
        with Server(folder / "guards.toml", folder / "log", *options, *limits) as server:
            yield Operated(server, folder, secrets, hook)
            assert "Traceback" not in server.log


def eventually(true: Callable[[], Any], seconds: float = 30.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


# ---------------------------------------------------------------- several guards


def test_guards_have_their_own_store_policy_and_tokens(operated: Operated) -> None:
    rows = tensors(ROWS[:5])
    for guard in ("cameras", "doors"):
        other = "doors" if guard == "cameras" else "cameras"
        mine, theirs = operated.client(guard, "score"), operated.client(other, "score")
        assert theirs.ask("POST", f"/v2/models/{guard}/infer", rows).status == 401
        before = operated.client(guard, "read").ask("GET", f"/{guard}/v1/state").json
        assert mine.ask("POST", f"/v2/models/{guard}/infer", rows).status == 200
        state = operated.client(guard, "read").ask("GET", f"/{guard}/v1/state").json
        assert state["rows"] == before["rows"] + 5
        assert state["store"] == str(operated.folder / f"{guard}.sqlite")
        assert state["on_drift"] == ("freeze" if guard == "cameras" else "ignore")
        assert (state["threshold"]["value"] == 0.125) == (guard == "doors")
    anyone = operated.server.client()
    assert anyone.ask("POST", "/v2/models/open/infer", rows).status == 200
    assert anyone.ask("GET", "/").json == {"guards": {"cameras": "/cameras/", "doors": "/doors/", "open": "/open/"}}
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/doors/ready",
        "/doors/",
        "/doors/page/main.js",
        "/openapi.json",
    ):
        assert anyone.ask("GET", path).status == 200, path
    seen = {role: operated.client("doors", role).ask("GET", "/metrics") for role in ("score", "read")}
    assert (seen["score"].status, seen["read"].status) == (200, 200)  # the guard that needs no token is anyone's
    for role, doors in (("score", False), ("read", True)):
        text = seen[role].body.decode()
        assert ('guard="open"' in text, 'guard="doors"' in text, 'guard="cameras"' in text) == (True, doors, False)
    for path in ("/v1/state", "/doors/metrics", "/nobody/v1/state", "/v2/models/nobody"):
        assert anyone.ask("GET", path).status == 404, path


def test_files_of_guards_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "guards.toml"
    wrong = {
        "": "names no guard",
        "a = 1": "must have a detector",
        "[a]\nstore = 'x'": "must have a detector",
        "[a]\ndetector = 'x'\nwindow = 3": "no other keys than",
        "['a b']\ndetector = 'x'": "a guard's name is",
        "[metrics]\ndetector = 'x'": "a guard's name is",
        "[a]\ndetector = 'x'\n[a.policy]\nwidow = 3": "is not a policy",
        "[a]\ndetector = 'x'\n[b]\ndetector = 'x'": "a and b have one store",
        "[a": "cannot read the guards",
        "[a]\ndetector = 'x'\nthreshold = '0.5'": "got `str` - at `$.threshold`.",
        "[a]\ndetector = 'x'\nthreshold = true": "got `bool` - at `$.threshold`",
        "[a]\ndetector = 3": "Expected `str`, got `int` - at `$.detector`",
        "[a]\ndetector = 'x'\npolicy = 3": "is not a policy",
    }
    for text, match in wrong.items():
        file.write_text(text)
        with pytest.raises(FileFormatError, match=re.escape(match)):
            read_guards(str(file), Policy())
    with pytest.raises(FileFormatError, match="No such file"):
        read_guards(str(tmp_path / "none.toml"), Policy())
    file.write_text("[a]\ndetector = 'x/d.safetensors'\n[b]\ndetector = 'sample'\nstore = 'postgresql://h/b'")
    found = read_guards(str(file), Policy(window=50.0, evidence=20.0))
    assert found["a"].detector == str(tmp_path / "x" / "d.safetensors")
    assert found["a"].store == str(tmp_path / "x" / "d.sqlite")
    assert (found["b"].detector, found["b"].store) == ("sample", "postgresql://h/b")
    assert found["a"].policy.window == 50.0
    assert refusal(monkeypatch, file, "--store", "s")[0] == 1


# ---------------------------------------------------------------- tokens


def test_a_removed_token_stops_working_at_once(operated: Operated) -> None:
    file = operated.folder / "doors.jsonl"
    before = file.read_text()
    reader, admin = operated.client("doors", "read"), operated.client("doors", "admin")
    assert reader.ask("GET", "/doors/v1/state").status == 200
    try:
        file.write_text("".join(line for line in before.splitlines(True) if "doors-read" not in line))
        assert reader.ask("GET", "/doors/v1/state").status == 401
        assert admin.ask("GET", "/doors/v1/state").status == 200
        file.write_text(before + "half a li")
        assert admin.ask("GET", "/doors/v1/state").status == 503  # nobody knows who was meant
        file.write_text("")
        assert admin.ask("GET", "/doors/v1/state").status == 401  # an emptied file lets nobody in
        assert operated.server.client().ask("GET", "/doors/v1/state").status == 401
        file.unlink()
        assert admin.ask("GET", "/doors/v1/state").status == 503
    finally:
        file.write_text(before)
        file.chmod(0o600)
    assert reader.ask("GET", "/doors/v1/state").status == 200
    added = add_token(file, "new", "read")
    assert operated.server.client(added).ask("GET", "/doors/v1/state").status == 200


def test_without_a_file_only_the_environment_counts() -> None:
    assert not Tokens(None, {}).required
    held = Tokens(None, {"NORMSCALE_TOKEN": "nsk_" + "x" * 43})
    assert held.required
    assert len(held) == 1


def test_names_for_strangers_need_tokens(sample_guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = refusal(monkeypatch, sample_guard, "--store", str(tmp_path / "s"), "--allow-host", "guard.example.com")
    assert (code, "without tokens" in said, "--allow-host" in said) == (1, True, True), said
    for *option, expected in (
        ("--trusted-proxy", "proxy", 1),
        ("--webhook", "ftp://x", 1),
        ("--log-format", "xml", 2),
    ):
        assert refusal(monkeypatch, sample_guard, "--store", str(tmp_path / "s"), *option)[0] == expected
    assert not (tmp_path / "s").exists()


# ---------------------------------------------------------------- crowds


def half_body(operated: Operated, declared: int, token: str = "", sent: bytes = b"{") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", operated.server.port), timeout=20)
    bearer = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"POST /v2/models/cameras/infer HTTP/1.1\r\nHost: localhost\r\n{bearer}Content-Length: {declared}\r\n\r\n"
    connection.sendall(head.encode() + sent)
    return connection


def test_slow_bodies_of_strangers_and_of_clients_leave_health_and_metrics_alone(operated: Operated) -> None:
    reader, sender = operated.client("cameras", "read"), operated.client("cameras", "score")
    row = tensors(ROWS[0])
    with ExitStack() as stack:
        strangers = [stack.enter_context(half_body(operated, 1000)) for _ in range(5 * MAX_REQUESTS)]
        assert all(one.recv(100).startswith(b"HTTP/1.1 401") for one in strangers)
        assert sender.ask("POST", "/v2/models/cameras/infer", row).status == 200
        secret = operated.secrets["cameras", "score"]
        for _ in range(2 * MAX_REQUESTS):
            stack.enter_context(half_body(operated, 1000, secret))
        time.sleep(0.5)  # until all of them are waited for
        assert sender.ask("POST", "/v2/models/cameras/infer", row).status == 503
        admin = operated.client("cameras", "admin")  # one token has half of the places, and none of those for decisions
        assert admin.ask("POST", "/v2/models/cameras/infer", row).status == 200
        assert admin.ask("POST", "/cameras/v1/freeze", {}).status == 200
        assert admin.ask("POST", "/cameras/v1/thaw", {}).status == 200
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/v2/models/cameras/ready"):
            assert reader.ask("GET", path).status == 200, path
    assert eventually(lambda: sender.ask("POST", "/v2/models/cameras/infer", row).status == 200)


def test_more_idle_connections_than_are_allowed_keep_nobody_out(operated: Operated) -> None:
    kept = operated.client("cameras", "score")
    row = tensors(ROWS[0])
    assert kept.ask("POST", "/v2/models/cameras/infer", row).status == 200
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 100):
            stack.enter_context(socket.create_connection(("127.0.0.1", operated.server.port), timeout=10))
        for path in ("/v2/health/live", "/v2/health/ready"):
            fresh = operated.server.client()
            assert fresh.ask("GET", path).status == 200, path
        assert operated.client("cameras", "admin").ask("POST", "/cameras/v1/thaw", {}).status == 200
        assert kept.ask("POST", "/v2/models/cameras/infer", row).status == 200


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
def test_metrics_tell_of_the_process_and_of_what_is_running(start_server: Start) -> None:
    client = start_server().client()
    for _ in range(10):
        fresh = {}
        for line in client.ask("GET", "/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                assert name not in fresh
                fresh[name] = float(value)
        client.connection.close()
    (build,) = [name for name in fresh if name.startswith("normscale_build_info{")]
    assert f'version="{ns.__version__}"' in build
    assert fresh["process_resident_memory_bytes"] > 20 << 20
    assert fresh["process_cpu_seconds_total"] > 0
    assert fresh["process_open_fds"] > 5
    assert 0 < time.time() - fresh["process_start_time_seconds"] < 3600


def processes_without_hangup(group: int) -> int:
    """How many processes of a group ignore SIGHUP."""
    found = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            in_group = int((folder / "stat").read_text().rpartition(")")[2].split()[2]) == group
            (ignored,) = re.findall(r"SigIgn:\s+(\w+)", (folder / "status").read_text())
            found += in_group and int(ignored, 16) & 1
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc here")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_hangup_ends_nothing(start_server: Start, workers: str) -> None:
    server = start_server("--workers", workers, "--log-format", "json")
    client = server.client()
    assert client.score(ROWS[:2]).status == 200
    if workers == "2":
        assert eventually(lambda: processes_without_hangup(server.process.pid) == 2)  # both workers are up
    os.killpg(server.process.pid, signal.SIGHUP)  # as a terminal that is closed does
    assert eventually(lambda: '"event": "hangup"' in server.log)
    for _ in range(20):
        assert client.score(ROWS[:2]).status == 200
    assert server.process.poll() is None
    assert '"event": "worker"' not in server.log


def resident(server: Server) -> float:
    """Megabytes that the server has now."""
    (line,) = re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    return int(line) / 1024


def test_bodies_in_flight_have_a_bound_on_their_memory(operated: Operated) -> None:
    before = resident(operated.server)
    megabytes = bytes(15 << 20)
    answered = 0
    with ExitStack() as stack:
        secret = operated.secrets["cameras", "score"]
        crowd = [stack.enter_context(half_body(operated, 16 << 20, secret)) for _ in range(MAX_REQUESTS)]
        for connection in crowd:
            connection.settimeout(2.0)
            with suppress(OSError):
                connection.sendall(megabytes)
        peak = resident(operated.server)
        for connection in crowd:
            with suppress(OSError):
                answered += connection.recv(12) == b"HTTP/1.1 503"
    assert answered > 0  # 12 times 15 MB are more than the 128 MB there are for them
    assert peak - before < 200
    row = tensors(ROWS[0])
    sender = operated.client("cameras", "score")
    assert eventually(lambda: sender.ask("POST", "/v2/models/cameras/infer", row).status == 200)


# ---------------------------------------------------------------- lines, counters, the webhook


def sample_value(client: Client, line: str) -> float:
    text = client.ask("GET", "/metrics").body.decode()
    found = [one.split()[-1] for one in text.splitlines() if one.startswith(line + " ")]
    return float(found[0]) if found else 0.0


def test_an_alarm_and_its_freeze_are_told_counted_and_sent(operated: Operated) -> None:
    admin = operated.client("cameras", "admin")
    assert admin.ask("POST", "/cameras/v1/reset").status == 200
    assert eventually(lambda: operated.lines(event="reset", by="cameras-admin"))
    before = len(operated.lines(event="alarm", reading="class_balance"))
    freezes = sample_value(admin, 'normscale_freezes_total{guard="cameras"}')
    rng = np.random.default_rng(5)
    for rows in (ROWS, ONES):
        for _ in range(12):
            body = tensors(rows[rng.integers(0, len(rows), 10)])
            mode = admin.ask("POST", "/v2/models/cameras/infer", body).answer["mode"]
    assert mode == "frozen"
    told = eventually(lambda: operated.lines(event="alarm", reading="class_balance")[before:])
    assert told[0]["guard"] == "cameras"
    assert told[0]["level"] == "warning"
    assert told[0]["value"] > told[0]["limit"]
    frozen = eventually(lambda: operated.lines(event="freeze", guard="cameras"))[-1]
    assert frozen["by_person"] is False
    assert sample_value(admin, 'normscale_freezes_total{guard="cameras"}') == freezes + 1
    assert sample_value(admin, 'normscale_alarms_total{guard="cameras",reading="class_balance"}') >= 1
    wanted = {"alarm", "freeze", "reset"}
    assert eventually(lambda: {one["kind"] for one in operated.hook.got} >= wanted), operated.hook.got
    sent = operated.hook.got
    assert {(one["guard"], one["source"]) for one in sent} == {("cameras", "/v2/models/cameras")}
    assert all(one["text"].startswith(f"{one['kind']} of guard cameras: ") for one in sent)
    for one in sent:
        assert abs((datetime.now(UTC) - one["time"]).total_seconds()) < 3600
    assert len({one["id"] for one in sent}) == len(sent)

    assert math.isnan(sample_value(admin, 'normscale_drift{guard="cameras",reading="running_shift"}'))  # nothing runs
    assert 'guard="doors"' not in admin.ask("GET", "/metrics").body.decode()

    assert admin.ask("POST", "/cameras/v1/thaw").status == 200
    assert eventually(lambda: operated.lines(event="thaw", guard="cameras"))
    assert admin.ask("POST", "/v2/models/cameras/infer", tensors(ROWS[:5])).answer["mode"] == "running"
    state = admin.ask("GET", "/cameras/v1/state").json["classes"]
    distance = np.abs(np.subtract(state["running_mean"], state["training_mean"])) / state["training_std"]
    assert sample_value(admin, 'normscale_drift{guard="cameras",reading="running_shift"}') == pytest.approx(
        distance.max()
    )
    assert admin.ask("PUT", "/cameras/v1/threshold", {"value": None}).status == 200
    assert operated.lines(event="threshold", by="cameras-admin")


def test_refused_requests_are_told_without_what_strangers_wrote(operated: Operated) -> None:
    nobody = operated.server.client("nsk_" + "y" * 43)
    time.sleep(1.1)  # of a crowd's refusals not all are told
    assert nobody.ask("GET", "/cameras/v1/state", X_Forwarded_For="203.0.113.9").status == 401
    assert nobody.ask("GET", "/hunter2").status == 404
    assert operated.client("cameras", "score").ask("GET", "/cameras/v1/state").status == 403
    (stranger,) = operated.lines(event="refused", address="203.0.113.9")
    assert (stranger["status"], stranger["path"], stranger["guard"]) == (401, "/cameras/v1/state", "cameras")
    assert operated.lines(event="refused", status=404, path="other")
    (known,) = operated.lines(event="refused", status=403, client="cameras-score")
    assert "may not do this" in known["because"]
    for text in ("hunter2", "nsk_", "Bearer", "secret-path"):
        assert text not in operated.server.log
    assert operated.lines(event="start")


def test_a_trusted_proxy_is_believed_and_anyone_else_is_not(operated: Operated) -> None:
    anyone = operated.server.client()
    body = tensors(np.full((1, 8), 1e6))
    assert anyone.ask("POST", "/v2/models/open/infer", body, X_Forwarded_For="198.51.100.7").status == 200
    # test_access has a server that trusts nobody
    assert anyone.live("/open")["flagged"][0]["client"] == "198.51.100.7"


def test_a_client_may_name_its_sources(operated: Operated) -> None:
    sender, admin = operated.client("cameras", "score"), operated.client("cameras", "admin")
    for client in ("camera-7", "camera-8"):
        far = tensors(np.full((1, 8), 1e6), client=client)
        assert sender.ask("POST", "/v2/models/cameras/infer", far).status == 200
    senders = {row["client"] for row in admin.live("/cameras")["flagged"]}
    assert {"cameras-score/camera-7", "cameras-score/camera-8"} <= senders
    for wrong in ("", "x" * 65, "a\nb", 7):
        assert sender.ask("POST", "/v2/models/cameras/infer", tensors(ROWS[:2], client=wrong)).status == 422


# ---------------------------------------------------------------- the parts alone


def record(**fields: Any) -> logging.LogRecord:
    made = logging.LogRecord("normscale.guard.server", logging.WARNING, "", 0, "alarm", (), None)
    made.normscale = fields
    return made


def test_lines_are_one_line_each_and_tell_no_token() -> None:
    fields = {"guard": "a", "because": "line\nbreak nsk_abc-DEF", "value": 0.5}
    line = Lines("json").format(record(**fields))
    assert "\n" not in line
    told = json.loads(line)
    assert (told["event"], told["level"], told["guard"], told["value"]) == ("alarm", "warning", "a", 0.5)
    assert told["because"] == "line\nbreak [token]"
    text = Lines("text").format(record(**fields))
    assert "\n" not in text
    assert text.endswith('alarm guard="a" because="line\\nbreak [token]" value=0.5')
    plain = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, "a %s", ("mistake",), None)
    assert json.loads(Lines("json").format(plain))["message"] == "a mistake"


def test_of_a_flood_of_refusals_only_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    now = [100.0]
    monkeypatch.setattr(events, "tell", lambda _, **fields: told.append(fields))
    monkeypatch.setattr("normscale.guard.server.events.time.monotonic", lambda: now[0])
    refusals = Refusals()
    for _ in range(1000):
        refusals.log(status=401)
    assert len(told) == 20
    now[0] += 1
    refusals.log(status=401)
    assert told[-1]["untold_before"] == 980


def test_a_webhook_is_tried_again_and_never_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with Hook(refuse=2) as hook:
        sender = Webhook(hook.url, pauses=(0.01, 0.01, 0.01))
        sender.send(message("alarm", 1))
        sender.send(message("alarm", 2))
        assert eventually(lambda: [one["number"] for one in hook.got] == [1, 2], 10)
        assert hook.refused == 2
        sender.stop(5)
    with Hook(refuse=99) as hook, caplog.at_level(logging.ERROR, "normscale.guard.server"):
        sender = Webhook(hook.url, pauses=(0.01,))
        sender.send(message("freeze"))
        assert eventually(lambda: caplog.records, 10)
        assert caplog.records[0].normscale == {"host": "127.0.0.1", "because": "status 500", "dropped": "freeze"}  # type: ignore[attr-defined]
        sender.stop(5)
    Webhook(None).send(message("alarm"))  # nowhere to send it


@pytest.mark.parametrize(
    ("refusal", "because"),
    [(b"nonsense\r\n\r\n", "BadStatusLine"), (b"HTTP/1.1 302 there\r\nLocation: /elsewhere\r\n\r\n", "status 302")],
)
def test_a_webhook_survives_any_reply(refusal: bytes, because: str, caplog: pytest.LogCaptureFixture) -> None:
    with Hook(refuse=2, refusal=refusal) as hook, caplog.at_level(logging.ERROR, "normscale.guard.server"):
        sender = Webhook(hook.url, pauses=(0.01,))
        for number in (1, 2):
            sender.send(message("alarm", number))
        assert eventually(lambda: [one["number"] for one in hook.got] == [2], 10), hook.got
        assert caplog.records[0].normscale["because"] == because  # type: ignore[attr-defined]
        sender.stop(5)


def test_a_freeze_does_not_wait_behind_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often alarms are tried again: the next try is the freeze's."""
    sent: list[str] = []

    def refuse(_: Webhook, message: Any) -> str:
        sent.append(message.type)
        return "status 500"

    monkeypatch.setattr(Webhook, "_post", refuse)
    sender = Webhook("http://refuses.example/x", pauses=(3600.0,) * 3)
    for number in range(5):
        sender.send(message("alarm", number))
    assert eventually(lambda: sent == ["alarm"])
    sender.send(message("freeze"))
    assert eventually(lambda: sent == ["alarm", "freeze"]), sent
    sender.stop(5)
    assert sent == ["alarm", "freeze", "freeze", *["alarm"] * 5]  # one more chance for each


def test_a_webhook_that_hangs_costs_a_bounded_queue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release, sent = threading.Event(), list[Any]()

    def hang(_: Webhook, message: Any) -> None:
        sent.append(message.type)
        release.wait(30)

    monkeypatch.setattr(Webhook, "_post", hang)
    sender = Webhook("http://hangs.example/x")
    with caplog.at_level(logging.ERROR, "normscale.guard.server"):
        sender.send(message("freeze"))
        assert eventually(lambda: sent == ["freeze"])
        for _ in range(events._MOST_WAITING + 9):
            sender.send(message("alarm"))
        assert len(caplog.records) == 9
        assert {one.normscale["dropped"] for one in caplog.records} == {"alarm"}  # type: ignore[attr-defined]
        caplog.clear()
        sender.stop(0.1)
    told = [(one.normscale["dropped"], one.normscale.get("count")) for one in caplog.records]  # type: ignore[attr-defined]
    assert told == [("freeze", None), ("alarm", events._MOST_WAITING)]
    assert sent == ["freeze"]
    release.set()
    for wrong in ("", "ftp://a/b", "https://", "hooks.example.com", "http://a/b c", "http://a/\n"):
        with pytest.raises(InvalidInput, match="a webhook is an address"):
            checked_webhook(wrong)


def test_a_store_that_is_lost_counts_for_its_own_guard_and_every_line_is_json(
    sample_guard: Path, tmp_path: Path
) -> None:
    guards = "".join(f'[{name}]\ndetector = "{sample_guard}"\nstore = "{name}.sqlite"\n' for name in ("cams", "doors"))
    (tmp_path / "guards.toml").write_text(guards)
    with Server(tmp_path / "guards.toml", tmp_path / "log", "--log-format", "json") as server:
        anyone = server.client()
        (tmp_path / "doors.sqlite").unlink()
        assert eventually(lambda: anyone.ask("GET", "/v2/health/ready").status == 503)  # it was written to a moment ago
        answer = anyone.ask("GET", "/v2/health/ready")
        assert answer.json["error"].startswith("doors: the store")

        def errors(guard: str) -> list[str]:
            text = anyone.ask("GET", "/metrics").body.decode()
            name = f'normscale_store_errors_total{{guard="{guard}"'
            return [line for line in text.splitlines() if line.startswith(name)]

        assert errors("cams") == ['normscale_store_errors_total{guard="cams"} 0.0']
        assert errors("doors") == ['normscale_store_errors_total{guard="doors"} 2.0']
        assert 'normscale_store_up{guard="doors"} 0.0' in anyone.ask("GET", "/metrics").body.decode()
        paths = anyone.ask("GET", "/openapi.json").json["paths"]
        assert {"/cams/v1/state", "/doors/v1/state", "/v2/models/cams/infer"} <= set(paths)
    lines = [json.loads(line) for line in server.log.splitlines()]  # nothing else goes to stderr
    assert [line["guard"] for line in lines if line["event"] == "guard"] == ["cams", "doors"]
    assert [(line["guard"], line["up"]) for line in lines if line["event"] == "store"] == [("doors", False)]
