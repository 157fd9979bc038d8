"""A real ``normscale serve`` in a process of its own, and a plain client for it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import typer

from guard.server.warm_start import start_program

PATIENCE = 60.0
IDLE = 2.0
"""Seconds after which the server may hang up at any moment, and rightly so."""
JSON = "application/json"
HEADER = "Inference-Header-Content-Length"
INFER = "/v2/models/guard/infer"
DATATYPES = {"f8": "FP64", "f4": "FP32", "f2": "FP16", "i8": "INT64"}
_ADDRESS = re.compile(r"http://([^/\s]+):(\d+)/")


class Reply(NamedTuple):
    """What a server answered."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def answer(self) -> Any:
        """Of an inference: outputs and parameters by their names."""
        document = self.json
        assert self.status == 200, document
        return {one["name"]: one["data"] for one in document["outputs"]} | document["parameters"]


class Client:
    """One connection that is kept; opened again when it broke, or was idle for so long that it may be closed."""

    def __init__(self, port: int, host: str = "127.0.0.1", token: str = "", timeout: float = PATIENCE) -> None:
        self.connection = http.client.HTTPConnection(host, port, timeout=timeout)
        self._used = 0.0
        self._own = {"Authorization": f"Bearer {token}"} if token else {}

    def ask(self, method: str, path: str, body: Any = None, kind: str = "", **headers: str) -> Reply:
        """Send bytes as they are, anything else as JSON; ``_`` in a header's name stands for a dash."""
        sent = self._own | {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            sent.setdefault("Content-Type", kind or JSON)
        if time.monotonic() - self._used > IDLE:
            self.connection.close()
        try:
            self.connection.request(method, path, body, sent)
            response = self.connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            self._used = time.monotonic()
            return Reply(response.status, found, response.read())
        except BaseException:
            self.connection.close()  # or the next answer would be that to this question
            raise

    def score(
        self,
        rows: Any,
        binary: bool = False,
        key: str | None = None,
        guard: str = "guard",
        source: str | None = None,
        **headers: str,
    ) -> Reply:
        """Logits, or arrays by name, as JSON or in the binary form; one row or many."""
        named = {"idempotency_key": key, "client": source}
        parameters = {name: value for name, value in named.items() if value is not None}
        body, more = (binary_tensors if binary else tensors)(rows, **parameters), {}
        if isinstance(body, tuple):
            body, more = body
        return self.ask("POST", f"/v2/models/{guard}/infer", body, **headers, **more)

    def state(self) -> Any:
        reply = self.ask("GET", "/v1/state")
        assert reply.status == 200, reply
        return reply.json

    def live(self, prefix: str = "") -> Any:
        """The first view of the live stream, on a connection of its own."""
        other = http.client.HTTPConnection(self.connection.host, self.connection.port, timeout=20)
        other.request("GET", f"{prefix}/v1/live", headers=self._own)
        response = other.getresponse()
        assert response.status == 200, response.status
        while not (line := response.readline()).startswith(b"data: "):
            assert line, "the live stream ended"  # or its end would be read for ever
        other.close()
        return json.loads(line.removeprefix(b"data: "))

    def close(self) -> None:
        self.connection.close()


class Server:
    """The program, from its start until it is ready; what it said is in ``log``.

    Parameters
    ----------
    guard : a detector file, or ``sample``
    log : where its output goes; a second server may go on with the same file
    options : further arguments of the command
    environment : further variables; ``NORMSCALE_TOKEN`` of the caller's own is left out
    kernels : "numpy" starts faster than the compiled ones
    """

    def __init__(
        self,
        guard: str | Path,
        log: Path,
        *options: str,
        environment: dict[str, str] | None = None,
        kernels: str = "numpy",
        wait: bool = True,
    ) -> None:
        words = ["serve", str(guard), *options]
        if "--port" not in options:
            words += ["--port", "0"]
        variables = {name: value for name, value in os.environ.items() if name != "NORMSCALE_TOKEN"}
        variables |= {"NORMSCALE_KERNELS": kernels, **(environment or {})}
        self._log = log
        began = time.monotonic()
        self._begin = log.stat().st_size if log.exists() else 0
        log.touch()
        self.process = start_program(words, variables, log)
        self.host, self.port = "", 0
        self.seconds = 0.0
        self._clients: list[Client] = []
        if wait:
            self._wait_until_ready()
            self.seconds = time.monotonic() - began

    @property
    def log(self) -> str:
        """What this process said."""
        return self._log.read_bytes()[self._begin :].decode()

    def client(self, token: str = "", **options: Any) -> Client:
        """A new one; its connection ends with the server at the latest."""
        self._clients.append(Client(self.port, token=token, **options))
        return self._clients[-1]

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end, and wait; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(PATIENCE)
        finally:
            self.kill()

    def kill(self) -> None:
        """No warning; its workers too."""
        for client in self._clients:
            client.close()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait(PATIENCE)

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        try:
            while self.process.poll() is None and time.monotonic() < deadline:
                told = _ADDRESS.search(self.log)
                if told is None:
                    time.sleep(0.02)
                    continue
                self.host, self.port = told[1], int(told[2])
                try:
                    if self.client(timeout=5).ask("GET", "/v2/health/ready").status == 200:
                        return
                except OSError:
                    time.sleep(0.02)
        except BaseException:
            self.kill()
            raise
        self.kill()
        raise AssertionError(f"the server did not start:\n{self.log}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def refusal(monkeypatch: pytest.MonkeyPatch, guard: str | Path, *options: str) -> tuple[object, str]:
    """Exit code and sentence of the command for a server that must not start; in this process, which is faster."""
    from normscale.cli import main
    from normscale.guard.server import run

    said: list[str] = []
    monkeypatch.setattr(sys, "argv", ["normscale", "serve", str(guard), "--port", "0", *options])
    monkeypatch.setattr(run, "serve", lambda *_: pytest.fail("the server would have started"))
    monkeypatch.setattr(typer, "echo", lambda message, **_: said.append(message))
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, "\n".join(said)


def tensors(arrays: Any, **parameters: Any) -> Any:
    """Logits, or arrays by name, as the JSON of the Open Inference Protocol; one row is a batch of one."""
    made = []
    for name, array in (arrays if isinstance(arrays, dict) else {"logits": arrays}).items():
        rows = np.atleast_2d(np.asarray(array))
        about = {"name": name, "shape": list(rows.shape), "datatype": DATATYPES[rows.dtype.str[1:]]}
        made.append({**about, "data": rows.ravel().tolist()})
    return {"inputs": made, **({"parameters": parameters} if parameters else {})}


def binary_tensors(arrays: Any, **parameters: Any) -> tuple[bytes, dict[str, str]]:
    """The same in the binary form: the body, and the header that it needs."""
    document, data = tensors(arrays, **parameters), b""
    for one, array in zip(document["inputs"], arrays.values() if isinstance(arrays, dict) else [arrays], strict=True):
        del one["data"]
        part = np.ascontiguousarray(array).tobytes()
        one["parameters"] = {"binary_data_size": len(part)}
        data += part
    text = json.dumps(document).encode()
    return text + data, {HEADER: str(len(text)), "Content-Type": "application/octet-stream"}
