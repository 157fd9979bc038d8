"""The guard's server on loopback, durability on (SQLite, a flush to disk before every answer).

    single    one JSON row per request, 32 connections: time per request against an empty endpoint on uvicorn
    batch     binary tensors of 10 000 x 10: time per batch against in-process ``stream`` of the same rows
    latency   single rows at half the load that ``single`` reaches: the 99th percentile against the median
    restart   a million journalled rows, then kill -9: seconds until ready, against one second

Loads come from wrk (Debian's package of that name); its share of the two cores weighs on both sides alike.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import harness
import numpy as np

import normscale as ns

HERE = Path(__file__).parent
CLASSES = 10


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(2000):
        try:
            with urlopen(url, timeout=1) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.005)
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}")
    sys.exit("the server did not get ready")


def logits(n: int, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    rows = random.normal(size=(n, CLASSES))
    rows[np.arange(n), random.integers(0, CLASSES, n)] += 6.0
    return rows.astype(np.float32)


def start(command: list[str]) -> subprocess.Popen[bytes]:
    # As installed: compiled modules are kept, whatever this machine's habit is.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE, env=variables)


@contextmanager
def running(command: list[str], ready: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(command)
    try:
        wait_for(ready, process)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def guard_command(folder: Path, port: int) -> list[str]:
    path = folder / "detector.safetensors"
    if not path.exists():
        ns.NormScaling().fit(logits(5000)).set_threshold(logits(2000, 1)).save(path)
    serve = [sys.executable, "-m", "normscale", "serve", str(path), "--port", str(port)]
    return [*serve, "--store", str(folder / "store.sqlite")]


class Load(NamedTuple):
    """What wrk saw."""

    rate: float
    """Requests per second, all answered with 200."""
    median: float
    """Of their latencies, in seconds."""
    high: float
    """Their 99th percentile."""


def load(
    port: int, connections: int, seconds: float, headers: dict[str, str], body: bytes, folder: Path, pause: int = 0
) -> Load:
    """Put a load on a server; a connection pauses ``pause`` milliseconds between requests, on average."""
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    (folder / "body").write_bytes(body)
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    script = 'wrk.method = "POST"\n' + "\n".join(lines)
    script += f'\nlocal file = io.open("{folder / "body"}", "rb")\nwrk.body = file:read("*all")\nfile:close()\n'
    if pause:
        script += f"function delay() return math.random(0, {2 * pause}) end\n"
    (folder / "post.lua").write_text(script)
    url = f"http://127.0.0.1:{port}/v2/models/guard/infer"
    command = [wrk, "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(folder / "post.lua"), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said:
        sys.exit(f"not all requests were answered: {said}")
    found = re.search(r"50%\s+([\d.]+)(\w+).*99%\s+([\d.]+)(\w+).*Requests/sec:\s+([\d.]+)", said, re.DOTALL)
    assert found is not None, said
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
    return Load(float(found[5]), float(found[1]) * unit[found[2]], float(found[3]) * unit[found[4]])


JSON = {"Content-Type": "application/json"}


def one_row() -> bytes:
    """As the Open Inference Protocol has it."""
    tensor = {"name": "logits", "shape": [1, CLASSES], "datatype": "FP32", "data": logits(1)[0].round(7).tolist()}
    return json.dumps({"inputs": [tensor]}).encode()


def many_rows(rows: np.ndarray) -> tuple[bytes, dict[str, str]]:
    """In the binary form, answers too; the body and its headers."""
    tensor = {"name": "logits", "shape": list(rows.shape), "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": rows.nbytes}
    text = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return text + rows.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def single(folder: Path, quick: bool) -> dict[str, float]:
    ours_port, peer_port = free_port(), free_port()
    empty = [sys.executable, "-m", "uvicorn", "empty_endpoint:app", "--port", str(peer_port), "--no-access-log"]
    # One row again and again is not the stream of training: alarms are off so that every row is taken in.
    command = [*guard_command(folder, ours_port), "--on-drift", "ignore"]
    with (
        running(command, f"http://127.0.0.1:{ours_port}/v2/health/ready"),
        running([*empty, "--log-level", "warning"], f"http://127.0.0.1:{peer_port}/openapi.json"),
    ):
        ours, peer = [], []
        for _ in range(2 if quick else 5):
            peer.append(load(peer_port, 32, 1 if quick else 4, JSON, one_row(), folder).rate)
            ours.append(load(ours_port, 32, 1 if quick else 4, JSON, one_row(), folder).rate)
    return {"ours": 1 / max(ours), "peer": 1 / max(peer), "ratio": max(peer) / max(ours), "repeats": len(ours)}


def batch(folder: Path, quick: bool) -> dict[str, float]:
    port, rows = free_port(), logits(10_000, 2)
    body, headers = many_rows(rows)
    detector = ns.NormScaling().fit(logits(5000))
    detector.stream(rows)
    with running(guard_command(folder, port), f"http://127.0.0.1:{port}/v2/health/ready"):
        ours, peer = [], []
        for _ in range(2 if quick else 5):
            ours.append(load(port, 16, 1 if quick else 4, headers, body, folder).rate)
            start = time.perf_counter()
            for _ in range(200):
                detector.stream(rows)
            peer.append(200 / (time.perf_counter() - start))
    return {"ours": 1 / max(ours), "peer": 1 / max(peer), "ratio": max(peer) / max(ours), "repeats": len(ours)}


def latency(folder: Path, quick: bool) -> dict[str, float]:
    port = free_port()
    command = [*guard_command(folder, port), "--on-drift", "ignore"]
    with running(command, f"http://127.0.0.1:{port}/v2/health/ready"):
        time.sleep(2)  # until the compiled kernels are there
        most = load(port, 32, 1 if quick else 4, JSON, one_row(), folder).rate
        # 32 connections that pause between requests, so that together they ask for half of that.
        pause = round(32 / (most / 2) * 1000)
        rounds = [load(port, 32, 2 if quick else 8, JSON, one_row(), folder, pause) for _ in range(1 if quick else 5)]
    best = min(rounds, key=lambda one: one.high / one.median)
    ratios = sorted(one.high / one.median for one in rounds)
    result = {"ours": best.high, "peer": best.median, "ratio": best.high / best.median, "repeats": len(rounds)}
    return result | {"load": best.rate, "most": most, "ratios": ratios}  # type: ignore[dict-item]


def restart(folder: Path, quick: bool) -> dict[str, float]:
    from normscale.guard import Guard, Policy, open_store

    port = free_port()
    command = guard_command(folder, port)
    rows = logits(100_000 if quick else 1_000_000, 3)
    detector = ns.load_detector(folder / "detector.safetensors")
    store = open_store(folder / "store.sqlite")
    store.run("PRAGMA synchronous = OFF", ())  # only to fill it quickly; the files are the same
    guard = Guard(detector, store, Policy(on_drift="ignore"))
    for i in range(0, len(rows), 20):
        guard.score(rows[i : i + 20])
    behind = guard.state.seq % 1000  # entries since the last snapshot
    store.close()
    times = []
    for _ in range(2 if quick else 7):
        began = time.perf_counter()
        process = start(command)
        wait_for(f"http://127.0.0.1:{port}/v2/health/ready", process)
        times.append(time.perf_counter() - began)
        with urlopen(f"http://127.0.0.1:{port}/v1/state") as answer:
            assert f'"rows":{len(rows)},'.encode() in answer.read()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return {"ours": min(times), "peer": 1.0, "ratio": min(times), "repeats": len(times), "unread_entries": behind}


WHAT = {"single": single, "batch": batch, "latency": latency, "restart": restart}


def main() -> None:
    options = harness.arguments(__doc__, what="single")
    with tempfile.TemporaryDirectory(dir=os.environ.get("NORMSCALE_BENCH_FOLDER")) as folder:
        result = WHAT[options.what](Path(folder), options.quick)
    harness.report(result, "uvicorn", "numpy")


if __name__ == "__main__":
    main()
