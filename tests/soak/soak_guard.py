"""Run a guard's server for minutes under a mixed load: is its memory flat, and every acknowledged row in its state?

    python tests/soak/soak_guard.py --minutes 10

Four clients send single rows as JSON, batches in the binary form, requests with keys, and look at the state now and
then. Memory (resident size, in MB) is read every ten seconds; the slope is that of the second half. The result is
docs/results/guard-soak.json; exit code 1 when rows and state differ, or memory grows by more than 1 MB a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import normscale as ns  # noqa: E402
from guard.server.running import Server  # noqa: E402
from normscale import _progress  # noqa: E402
from normscale._provenance import environment  # noqa: E402
from normscale.moments import RunningMoments  # noqa: E402

TARGET = ROOT / "docs" / "results" / "guard-soak.json"
GROWTH = 1.0  # MB a minute


class Sender(threading.Thread):
    """One client, and the moments of the rows it was acknowledged."""

    def __init__(self, server: Server, number: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.client = server.client()
        self.random = np.random.default_rng(number)
        self.number = number
        self.stop = stop
        self.requests = 0
        self.sent = RunningMoments(8)
        self.error: BaseException | None = None

    def run(self) -> None:
        sample = ns.load_sample()
        rows = np.concatenate([sample.test.logits, sample.validation.logits])
        sizes = ((1, 2), (1, 2), (50, 500), (2, 20))[self.number]
        try:
            while not self.stop.is_set():
                block = rows[self.random.integers(0, len(rows), self.random.integers(*sizes))]
                key = f"{self.number}-{self.requests}" if self.number == 3 else None
                reply = self.client.score(block, binary=self.number >= 2, key=key)
                assert reply.status == 200, reply
                self.sent.update(block.astype(np.float64))
                self.requests += 1
                if self.requests % 200 == 0:
                    self.client.state()
        except BaseException as error:
            self.error = error


def resident(pid: int) -> float:
    """In MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) / 1024


def soak(folder: Path, minutes: float) -> dict[str, Any]:
    guard = folder / "detector.safetensors"
    detector = ns.NormScaling().fit(ns.load_sample().train).set_threshold(ns.load_sample().validation)
    detector.save(guard)
    options = ("--store", str(folder / "store.sqlite"), "--on-drift", "ignore", "--outlier", "inf")  # plain moments
    with Server(guard, folder / "log", *options, kernels="auto") as server:
        stop = threading.Event()
        senders = [Sender(server, number, stop) for number in range(4)]
        for sender in senders:
            sender.start()
        began, memory = time.monotonic(), []
        with _progress.bar("soaking", round(minutes * 6)) as bar:
            while time.monotonic() - began < minutes * 60:
                time.sleep(10)
                memory.append((time.monotonic() - began, resident(server.process.pid)))
                bar.advance()
        stop.set()
        for sender in senders:
            sender.join()
            if sender.error is not None:
                raise sender.error
        state = server.client().state()
    together = detector.running_
    for sender in senders:
        together = together.merge(sender.sent)
    late = np.array(memory[len(memory) // 2 :])
    slope = float(np.polyfit(late[:, 0] / 60, late[:, 1], 1)[0]) if len(late) > 2 else 0.0
    differences = [
        np.abs(np.array(state["classes"]["running_mean"]) - together.mean) / together.std,
        np.abs(np.array(state["classes"]["running_std"]) - together.std) / together.std,
    ]
    return {
        "minutes": minutes,
        "requests": sum(sender.requests for sender in senders),
        "acknowledged_rows": int(sum(sender.sent.weight for sender in senders)),
        "rows_in_the_state": state["rows"],
        "mode": state["mode"],
        "largest_difference_in_deviations": float(np.max(differences)),
        "memory_mb": {"first": memory[0][1], "middle": late[0, 1], "last": memory[-1][1]},
        "growth_mb_per_minute": slope,
        "store_mb": sum(path.stat().st_size for path in folder.glob("store.sqlite*")) / 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="normscale-soak-") as folder:
        result = soak(Path(folder), chosen.minutes)
    command = f"python tests/soak/soak_guard.py --minutes {chosen.minutes:g}"
    result = {"command": command, "date": date.today().isoformat(), **result, "made_with": environment()}
    print(json.dumps(result, indent=1))
    TARGET.write_text(json.dumps(result, indent=1) + "\n")
    exact = result["acknowledged_rows"] == result["rows_in_the_state"]
    return int(
        not exact or result["largest_difference_in_deviations"] > 1e-9 or result["growth_mb_per_minute"] > GROWTH
    )


if __name__ == "__main__":
    sys.exit(main())
