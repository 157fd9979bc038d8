"""Kill a guard's server again and again while clients send rows, and compare its state with the acknowledged rows.

    python tests/soak/kill_guard.py --kills 200                   # SQLite
    python tests/soak/kill_guard.py --kills 40 --store postgres   # a PostgreSQL of its own, which is killed too

Half of the clients send every request with an idempotency key until it is acknowledged; the others send without, and
never again. After every kill the state must consist of exactly the acknowledged blocks, and of whole blocks of those
whose answer was lost. The result joins docs/results/guard-kills.json; exit code 1 when a row was lost or made up.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
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
from guard.server.kills import SAMPLE, Block, Restarting, Sender, explain, wait_for_answers  # noqa: E402
from guard.server.postgres import Postgres, programs  # noqa: E402
from guard.server.running import Server  # noqa: E402
from normscale._provenance import environment  # noqa: E402

TARGET = ROOT / "docs" / "results" / "guard-kills.json"
OPTIONS = ("--on-drift", "ignore", "--outlier", "inf")
DATABASE_KILLED_EVERY = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", default="numpy", help="of the server; the compiled ones start more slowly")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="normscale-kills-")))
        guard = folder / "detector.safetensors"
        ns.NormScaling().fit(SAMPLE.train).set_threshold(SAMPLE.validation).save(guard)
        database: Postgres | None = None
        store = str(folder / "store.sqlite")
        if chosen.store == "postgres":
            found = programs()
            if found is None:
                sys.exit("no PostgreSQL on this machine (apt-get install postgresql)")
            database = stack.enter_context(Postgres(found))
            store = database.new_database("kills")

        def start() -> Server:
            return Server(guard, folder / "log", "--store", store, *OPTIONS, kernels=chosen.kernels)

        system = Restarting(start)
        stack.callback(lambda: system.kill())
        result = torment(system, database, chosen.kills, chosen.clients, chosen.seed)
    result = {
        "command": "python tests/soak/kill_guard.py "
        f"--kills {chosen.kills} --store {chosen.store} --seed {chosen.seed}",
        "date": date.today().isoformat(),
        "server_kernels": chosen.kernels,
        **result,
        "made_with": environment(),
    }
    print(json.dumps(result, indent=1))
    known = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    TARGET.write_text(json.dumps({**known, chosen.store: result}, indent=1) + "\n")
    return 1 if result["lost_rows"] or result["doubled_rows"] or result["largest_difference"] > 1e-9 else 0


def torment(system: Restarting, database: Postgres | None, kills: int, clients: int, seed: int) -> dict[str, Any]:
    """Kill, look, go on."""
    moments = random.Random(seed)
    senders = [Sender(number, system.port, keyed=number % 2 == 0) for number in range(clients)]
    in_doubt: list[Block] = []  # found in the state although their answer was lost
    looked_at = [0] * clients
    largest, lost, made_up, database_kills = 0.0, 0, 0, 0
    for sender in senders:
        sender.start()
    for kill in range(1, kills + 1):
        wait_for_answers(senders)
        time.sleep(moments.uniform(0.0, 0.5))
        if database is not None and kill % DATABASE_KILLED_EVERY == 0:
            database.kill()
            database_kills += 1
            time.sleep(moments.uniform(0.0, 0.5))
            database.start()
            wait_for_answers(senders)
        system.kill()
        system.replay()
        for sender in senders:  # or the state would move while it is looked at
            sender.pause()
        fresh = [block for sender, seen in zip(senders, looked_at, strict=True) for block in sender.unknown[seen:]]
        looked_at = [len(sender.unknown) for sender in senders]
        sure = [block for sender in senders for block in sender.acknowledged] + in_doubt
        state = system.server.client().state()
        found, distance = explain(state, ns.NormScaling(), sure, fresh)
        largest = max(largest, distance)
        print(f"{kill} kills, {count_rows(sure)} rows, difference {largest:.1e}", file=sys.stderr)
        if distance > 1e-9:
            lost = max(0, count_rows(sure) - state["rows"])
            made_up = max(0, state["rows"] - count_rows(sure + fresh))
            break
        in_doubt += found
        for sender in senders:
            sender.go_on()
    acknowledged = [block for sender in senders for block in sender.acknowledged]
    return {
        "kills": kill,
        "database_kills": database_kills,
        "acknowledged_requests": len(acknowledged),
        "acknowledged_rows": count_rows(acknowledged),
        "answers_given_again": sum(sender.replayed for sender in senders),
        "answers_lost": sum(len(sender.unknown) for sender in senders),
        "of_which_taken_in": len(in_doubt),
        "lost_rows": lost,
        "doubled_rows": made_up,
        "largest_difference": largest,
        "restart_seconds": {
            "median": round(statistics.median(system.restarts), 3),
            "largest": round(max(system.restarts), 3),
        },
    }


def count_rows(blocks: list[Block]) -> int:
    return sum(len(block.rows) for block in blocks)


if __name__ == "__main__":
    sys.exit(main())
