"""How many JSON rows a second a guard answers, beside servers that do less, for 1, 8 and 32 clients.

    python tests/soak/speed_guard.py --fastapi PYTHON     # a Python with fastapi and uvicorn; Debian's wrk sends

Three peers in one run, in turns: the same guard with its store in memory (nothing is written to disk), the same uvicorn
with an endpoint that parses the body and returns it, and FastAPI that does the same. Only ratios within the run mean
something: client and servers share the machine, whose load stands in the record, docs/results/guard-speed.json under
"clients".
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import normscale as ns  # noqa: E402
from guard.server.running import INFER, Server, tensors  # noqa: E402
from normscale._provenance import environment  # noqa: E402

TARGET = ROOT / "docs" / "results" / "guard-speed.json"
PEER = f"""
from typing import Any
from fastapi import FastAPI
app = FastAPI()

@app.post({INFER!r})
async def echo(body: dict[str, Any]) -> dict[str, Any]:
    return body
"""
EMPTY = ROOT / "benchmarks"
UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def measured(port: int, clients: int, seconds: int, folder: Path) -> dict[str, float]:
    """Requests a second, and the latency of half and of 99 per cent of them in milliseconds."""
    url = f"http://127.0.0.1:{port}{INFER}"
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--latency", "-s", str(folder / "post.lua"), url]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = re.search(r"50%\s+([\d.]+)(\w+).*99%\s+([\d.]+)(\w+).*Requests/sec:\s+([\d.]+)", said, re.DOTALL)
    assert found is not None, said
    assert "Non-2xx" not in said, said
    p50, p99 = float(found[1]) * UNITS[found[2]], float(found[3]) * UNITS[found[4]]
    return {"requests_per_second": float(found[5]), "p50_ms": p50, "p99_ms": p99}


def wait_for(port: int, seconds: float = 30.0) -> None:
    """Until somebody listens."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fastapi", default=sys.executable, help="the Python that has fastapi")
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    sample = ns.load_sample()
    with tempfile.TemporaryDirectory() as made, ExitStack() as stack:
        folder = Path(made)
        detector = folder / "detector.safetensors"
        ns.NormScaling().fit(sample.train).set_threshold(sample.validation).save(detector)
        body = json.dumps(tensors(sample.test.logits[:1])).replace("\\", "\\\\").replace("'", "\\'")
        head = "wrk.method = 'POST'\nwrk.headers['Content-Type'] = 'application/json'\n"
        (folder / "post.lua").write_text(f"{head}wrk.body = '{body}'\n")
        (folder / "peer.py").write_text(PEER)
        ports = {}
        peers = {
            "endpoint that writes nothing": (sys.executable, "empty_endpoint:app", EMPTY),
            "FastAPI, returns the body": (chosen.fastapi, "peer:app", folder),
        }
        for name, (python, app, where) in peers.items():
            with socket.create_server(("127.0.0.1", 0)) as free:
                ports[name] = free.getsockname()[1]
            command = [python, "-m", "uvicorn", app, "--port", str(ports[name]), "--no-access-log"]
            peer = subprocess.Popen(command, cwd=where, env={**os.environ, "PYTHONPATH": str(where)})
            stack.callback(peer.kill)
        # One row again and again is not the stream of training: alarms are off, so that every row is taken in.
        options = {"guard": str(folder / "store.sqlite"), "guard, store in memory": ":memory:"}
        for name, store in options.items():
            log = folder / f"{name}.log"
            server = Server(detector, log, "--store", store, "--on-drift", "ignore", kernels="auto")
            ports[name] = stack.enter_context(server).port
        for name in peers:
            wait_for(ports[name])
        for one in ports.values():
            measured(one, 8, 2, folder)  # until the compiled kernels are there
        before, rows = os.getloadavg()[0], list[dict[str, Any]]()
        for clients in (1, 8, 32):
            found: dict[str, list[dict[str, float]]] = {name: [] for name in ports}
            for _ in range(chosen.rounds):
                for name, one in ports.items():
                    found[name].append(measured(one, clients, chosen.seconds, folder))
            medians = {
                name: {key: round(statistics.median(one[key] for one in several), 2) for key in several[0]}
                for name, several in found.items()
            }
            own = medians["guard"]["requests_per_second"]
            ratios = {name: round(own / one["requests_per_second"], 3) for name, one in medians.items()}
            rows.append({"clients": clients, **medians, "guard_of": {k: v for k, v in ratios.items() if k != "guard"}})
            print(json.dumps(rows[-1]), flush=True)
    record = json.loads(TARGET.read_text())
    record["clients"] = {
        "command": "python tests/soak/speed_guard.py",
        "date": date.today().isoformat(),
        "seconds": chosen.seconds,
        "rounds": chosen.rounds,
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        "rows": rows,
        "made_with": environment(),
    }
    TARGET.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
