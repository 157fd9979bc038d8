"""`import normscale` against `import numpy`, each in a fresh interpreter that times the statement itself."""

from __future__ import annotations

import statistics
import subprocess
import sys

import harness

STATEMENTS = {
    "bare": "import normscale",
    "used": "import normscale; normscale.NormScaling; normscale.evaluate",
}
PEER = "import numpy"
TIMED = "import time; start = time.perf_counter(); {}; print(time.perf_counter() - start)"


def fresh(statement: str) -> float:
    done = subprocess.run([sys.executable, "-c", TIMED.format(statement)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def ours(what: str) -> float:
    return fresh(STATEMENTS[what])


def peer() -> float:
    return fresh(PEER)


def main() -> None:
    options = harness.arguments(__doc__, what="bare")
    ours(options.what), peer()  # the first run writes the .pyc files
    pairs = [(ours(options.what), peer()) for _ in range(15 if options.quick else 41)]
    mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    result = {"ours": mine, "peer": theirs, "ratio": mine / theirs, "repeats": len(pairs)}
    harness.report(result | {"peer_repeats": len(pairs)}, "numpy")


if __name__ == "__main__":
    main()
