"""The guard's server on loopback, durability on (SQLite, a flush to disk before every answer).

    single    one JSON row per request, 32 connections: time per request against an empty FastAPI endpoint
    batch     .npy batches of 10 000 x 10: time per batch against in-process ``stream`` of the same rows
    latency   single rows at half the load that ``single`` reaches: the 99th percentile against the median
    restart   a million journalled rows, then kill -9: seconds until ready, against one second

Loads come from wrk (Debian's package of that name); its share of the two cores weighs on both sides alike.
"""

from __future__ import annotations

import asyncio
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


@contextmanager
def running(command: list[str], ready: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=HERE)
    try:
        wait_for(ready, process)
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)


def guard_command(folder: Path, port: int) -> list[str]:
    path = folder / "guard.safetensors"
    if not path.exists():
        ns.NormScaling().fit(logits(5000)).calibrate(logits(2000, 1)).save(path)
    serve = [sys.executable, "-m", "normscale", "serve", str(path), "--port", str(port)]
    return [*serve, "--store", str(folder / "store.sqlite")]


def load(port: int, connections: int, seconds: float, headers: dict[str, str], body: bytes, folder: Path) -> float:
    """Requests per second that are answered with 200."""
    wrk = shutil.which("wrk")
    if wrk is None:
        sys.exit("wrk is not installed: apt-get install wrk")
    (folder / "body").write_bytes(body)
    lines = [f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items()]
    script = 'wrk.method = "POST"\n' + "\n".join(lines)
    script += f'\nlocal file = io.open("{folder / "body"}", "rb")\nwrk.body = file:read("*all")\nfile:close()\n'
    (folder / "post.lua").write_text(script)
    url = f"http://127.0.0.1:{port}/v1/score"
    command = [wrk, "-t1", f"-c{connections}", f"-d{seconds:g}s", "-s", str(folder / "post.lua"), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in said:
        sys.exit(f"not all requests were answered: {said}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", said)
    assert found is not None
    return float(found[1])


JSON = {"Content-Type": "application/json"}
NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}


def one_row() -> bytes:
    return ('{"logits": [[' + ", ".join(f"{value:.7f}" for value in logits(1)[0]) + "]]}").encode()


def single(folder: Path, quick: bool) -> dict[str, float]:
    ours_port, peer_port = free_port(), free_port()
    empty = [sys.executable, "-m", "uvicorn", "empty_endpoint:app", "--port", str(peer_port), "--no-access-log"]
    # One row again and again is not the stream of training: alarms are off so that every row is taken in.
    command = [*guard_command(folder, ours_port), "--on-drift", "ignore"]
    with (
        running(command, f"http://127.0.0.1:{ours_port}/readyz"),
        running([*empty, "--log-level", "warning"], f"http://127.0.0.1:{peer_port}/openapi.json"),
    ):
        ours, peer = [], []
        for _ in range(2 if quick else 5):
            peer.append(load(peer_port, 32, 1 if quick else 4, JSON, one_row(), folder))
            ours.append(load(ours_port, 32, 1 if quick else 4, JSON, one_row(), folder))
    return {"ours": 1 / max(ours), "peer": 1 / max(peer), "ratio": max(peer) / max(ours), "repeats": len(ours)}


def batch(folder: Path, quick: bool) -> dict[str, float]:
    import io

    port, rows = free_port(), logits(10_000, 2)
    buffer = io.BytesIO()
    np.save(buffer, rows)
    detector = ns.NormScaling().fit(logits(5000))
    detector.stream(rows)
    with running(guard_command(folder, port), f"http://127.0.0.1:{port}/readyz"):
        ours, peer = [], []
        for _ in range(2 if quick else 5):
            ours.append(load(port, 4, 1 if quick else 4, NPY, buffer.getvalue(), folder))
            start = time.perf_counter()
            for _ in range(200):
                detector.stream(rows)
            peer.append(200 / (time.perf_counter() - start))
    return {"ours": 1 / max(ours), "peer": 1 / max(peer), "ratio": max(peer) / max(ours), "repeats": len(ours)}


async def open_loop(port: int, rate: float, seconds: float, body: bytes) -> list[float]:
    """Requests at even intervals over 32 connections, whether or not the last ones were answered; latencies."""
    head = f"POST /v1/score HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    for _ in range(32):
        free.put_nowait(await asyncio.open_connection("127.0.0.1", port))
    latencies: list[float] = []

    async def one(due: float) -> None:
        reader, writer = await free.get()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", answer)
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert found is not None
        await reader.readexactly(int(found[1]))
        latencies.append(time.perf_counter() - due)  # waiting for a free connection counts
        free.put_nowait((reader, writer))

    start, tasks = time.perf_counter(), set()
    for i in range(int(rate * seconds)):
        due = start + i / rate
        delay = due - time.perf_counter()
        if delay > 0:
            await asyncio.sleep(delay)
        task = asyncio.create_task(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return latencies[len(latencies) // 10 :]


def latency(folder: Path, quick: bool) -> dict[str, float]:
    import uvloop

    port = free_port()
    command = [*guard_command(folder, port), "--on-drift", "ignore"]
    with running(command, f"http://127.0.0.1:{port}/readyz"):
        most = load(port, 32, 1 if quick else 4, JSON, one_row(), folder)
        rounds = []
        for _ in range(1 if quick else 3):
            times = uvloop.run(open_loop(port, most / 2, 2 if quick else 8, one_row()))
            rounds.append((np.quantile(times, 0.99), np.median(times)))
    high, middle = min(rounds, key=lambda pair: pair[0] / pair[1])
    result = {"ours": float(high), "peer": float(middle), "ratio": float(high / middle), "repeats": len(rounds)}
    return result | {"load": most / 2}


def restart(folder: Path, quick: bool) -> dict[str, float]:
    from normscale.guard import Guard, Policy, Request, open_store

    port = free_port()
    command = guard_command(folder, port)
    rows = logits(100_000 if quick else 1_000_000, 3)
    detector = ns.load_detector(folder / "guard.safetensors")
    store = open_store(folder / "store.sqlite")
    store.run("PRAGMA synchronous = OFF", ())  # only to fill it quickly; the files are the same
    guard = Guard(detector, store, Policy(on_drift="ignore"))
    for i in range(0, len(rows), 20):
        guard.process([Request(rows[i : i + 20])])
    behind = guard.state.seq % 1000  # entries since the last snapshot
    store.close()
    times = []
    for _ in range(2 if quick else 7):
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(f"http://127.0.0.1:{port}/readyz", process)
        times.append(time.perf_counter() - start)
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
    harness.report(result, "fastapi", "uvicorn", "numpy")


if __name__ == "__main__":
    main()
