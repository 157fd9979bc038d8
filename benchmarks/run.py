"""Run the speed comparisons and print them as one table.

    python benchmarks/run.py [--only NAME] [--quick] [--json FILE]

Every row is a script of this directory in a process of its own, so that threads, kernels and memory of one row
never touch another. Exit code 1 when a row misses its "must" or could not be measured; rows that need a program which
is not installed are left out with a sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent


class Row(NamedTuple):
    """A line of the table; without ``must`` it is there for information."""

    name: str
    work: str
    against: str
    command: str
    must: float | None = None
    aim: float | None = None
    why: str = ""
    """Why the bound is where it is."""
    needs: str = ""
    """A program besides Python that the row cannot do without."""


ROBUST = {  # the bound, and why
    "10": (5.0, "the cost that does not depend on the classes shows most: 0.2 us a row, which no caller feels"),
    "100": (2.0, "it keeps two groups of statistics where norm-scaling keeps one"),
    "1000": (2.0, "it keeps two groups of statistics where norm-scaling keeps one"),
}
AS_FAST = "it computes more than its peer (running statistics) and must not be slower for it"
SIZES = {
    "10": "--rows 1000000 --classes 10",
    "100": "--rows 1000000 --classes 100",
    "1000": "--rows 100000 --classes 1000",
}
SHAPES = {"10": "1e6 x 10", "100": "1e6 x 100", "1000": "1e5 x 1000"}
SOFTMAX = "torch softmax(1).max(1), one thread"


def _stream_rows(name: str, how: str, options: str, must: float, aim: float) -> list[Row]:
    return [
        Row(
            f"{name}-{c}",
            f"stream {SHAPES[c]} float32, {how}",
            SOFTMAX,
            f"stream.py {SIZES[c]} {options}",
            must,
            aim,
            AS_FAST if must < 1 else "without numba: slower, and still within what a fallback may cost",
        )
        for c in SIZES
    ]


ROWS = [
    *_stream_rows("stream", "one thread", "", 0.8, 0.35),
    *_stream_rows("two-threads", "two threads", "--threads 2", 0.5, 0.2),
    *_stream_rows("numpy", "numpy reference, one thread", "--kernels numpy", 3.0, 1.5),
    *(Row(f"robust-{c}", f"RobustNormScaling.stream {SHAPES[c]} float32, one thread", "NormScaling.stream, one thread",
          f"robust_stream.py {SIZES[c]}", ROBUST[c][0], 1.5, ROBUST[c][1]) for c in SIZES),
    Row("row", "stream one row at a time, 10 classes", "river StandardScaler learn_one + transform_one",
        "stream_row.py", 0.5, 0.2,
        "a guard pays it for every request; checks before the kernel must stay below the work"),
    Row("evaluate", "evaluate, 5e6 + 5e6 float32 scores", "pytorch-ood OODMetrics, one thread",
        "evaluate.py", 0.1, 0.02,
        "ten times the peer's speed: ten million scores in half a second, which a reader waits for"),
    Row("mahalanobis", "Mahalanobis score per row, 512 features, 100 classes", "pytorch-ood Mahalanobis, one thread",
        "mahalanobis.py", 0.05, 0.005,
        "twenty times the peer's speed, in float64 where the peer is off by 0.2 % in float32"),
    Row("import", "import normscale", "import numpy", "import_time.py", 1.3, 1.1,
        "whoever imports it has numpy anyway; the rest must be next to nothing"),
    Row("stress", "normscale stress, 1 700 rows x 214 classes, eight OoD sets", "a minute of processor time",
        "stress_grid.py", 1.0, 0.5, "docs/stress.md promises a minute"),
    Row("memory", "peak extra memory of stream, 1e6 x 100 float32", SOFTMAX, "memory.py", 64.0, 16.0,
        "blocks, not a copy of the rows"),
    Row("memory-two-threads", "the same, two threads", SOFTMAX, "memory.py --threads 2", 64.0, 16.0,
        "blocks, not a copy of the rows"),
    Row("memory-numpy", "the same, numpy reference", SOFTMAX, "memory.py --kernels numpy", 64.0, 16.0,
        "blocks, not a copy of the rows"),
    Row("memory-fit", "peak extra memory of RobustNormScaling.fit, 3e5 x 100 float32", "the table itself",
        "memory.py --what fit --rows 300000", 400.0, 300.0, "2.4 times the table, as docs/scale.md says"),
    Row("odin", "ODIN over images, ResNet-18 of width 16", "plain forward pass, one thread",
        "network_detectors.py --what odin", 3.5, 3.2, "a forward pass, a gradient and another forward pass"),
    Row("mahalanobis-blocks", "Mahalanobis over all blocks, ResNet-18 of width 16", "plain forward pass, one thread",
        "network_detectors.py --what mahalanobis", 1.3, 1.1, "one forward pass and little else"),
    Row("extract", "logits and features of images, ResNet-18 of width 16", "plain forward pass, one thread",
        "network_detectors.py --what extract --images 1024", 1.1, 1.05, "the network's own time, and copies"),
    Row("extract-onnx", "the same of an ONNX file", "plain passes in onnxruntime",
        "network_detectors.py --what extract-onnx --images 1024", 1.15, 1.1, "the network's own time, and copies"),
    Row("augmentation", "crop, flip and normalise CIFAR batches", "torch DataLoader with Pillow, two workers",
        "augmentation.py", 0.2, 0.1, "pictures must not keep a network waiting on one core"),
    Row("six-methods", "score and evaluate six methods, 10 000 + 26 032 rows", "pytorch-ood, the four of them it has",
        "six_methods.py", 0.2, 0.05, "six methods in a fifth of the time of the peer's four, all of it in float64"),
    Row("six-methods-fit", "the same with fitting on 50 000 rows", "pytorch-ood, the four of them it has",
        "six_methods.py --fit 1"),
    Row("guard-single", "the guard's server, one JSON row per request, 32 connections", "empty endpoint",
        "guard_server.py --what single", 1.25, 1.0,
        "a row that is flushed to disk may cost a quarter more than an endpoint that does nothing", "wrk"),
    Row("guard-batch", "the guard's server, .npy batches of 10 000 x 10", "in-process stream",
        "guard_server.py --what batch", 1.667, 1.25,
        "HTTP and the store together may take two fifths of a batch's time", "wrk"),
    Row("guard-latency", "99th percentile of single rows at half load", "their median",
        "guard_server.py --what latency", 3.0, 2.0, "no request waits for three others", "wrk"),
    Row("guard-restart", "until ready, with a million journalled rows, after kill -9", "one second",
        "guard_server.py --what restart", 1.0, 0.7, "a restart is shorter than a client's patience"),
    Row("training-step", "training step, ResNet-18 of width 16, batch 128", "its forward and backward pass, one thread",
        "training_step.py", 1.11, 1.05, "batches and optimiser may take a tenth of a step"),
    Row("channels-last", "the same step, channels-last", "the usual layout", "training_step.py --what layout"),
    Row("training-threads", "the same step, two threads", "one thread", "training_step.py --what threads"),
    Row("import-used", "import normscale; NormScaling; evaluate", "import numpy", "import_time.py --what used"),
    Row("two-and-two-100", "stream 1e6 x 100 float32, two threads", "torch softmax(1).max(1), two threads",
        f"stream.py {SIZES['100']} --threads 2 --peer_threads 2"),
    Row("confident-100", "stream 1e6 x 100, one thread, very confident logits", SOFTMAX,
        f"stream.py {SIZES['100']} --margin 30"),
    Row("confident-1000", "stream 1e5 x 1000, one thread, very confident logits", SOFTMAX,
        f"stream.py {SIZES['1000']} --margin 30"),
    Row("row-numpy", "stream one row at a time, numpy reference", "river StandardScaler learn_one + transform_one",
        "stream_row.py --kernels numpy"),
    Row("evaluate-two-threads", "evaluate, 5e6 + 5e6 float32 scores", "pytorch-ood OODMetrics, two threads",
        "evaluate.py --peer_threads 2"),
    Row("sklearn", "evaluate, 1e6 + 1e6 float64 scores", "scikit-learn roc_auc_score + average_precision_score",
        "evaluate_sklearn.py"),
    Row("torchmetrics", "evaluate, 5e5 + 5e5 float32 scores", "torchmetrics binary_auroc", "evaluate_torchmetrics.py"),
    Row("ece", "expected_calibration_error, 1e6", "torchmetrics binary_calibration_error", "calibration.py"),
]  # fmt: skip


def measure(row: Row, quick: bool) -> dict[str, Any]:
    """Run the script of a row; on failure the last line of its error takes the place of the numbers."""
    script, *options = row.command.split()
    command = [sys.executable, str(HERE / script), *options, *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def value(result: dict[str, Any]) -> float:
    """What must and aim are compared with: the ratio, or megabytes."""
    return float(result["ours"] if result.get("unit") == "MB" else result["ratio"])


def verdict(row: Row, result: dict[str, Any]) -> str:
    if "error" in result:
        return "not measured"
    if row.must is None or row.aim is None:
        return ""
    return "met aim" if value(result) <= row.aim else "met must" if value(result) <= row.must else "MISSED"


def amount(number: float, unit: str) -> str:
    """A time or size for people."""
    if unit == "MB":
        return f"{number:.1f} MB"
    for factor, name in ((1.0, "s"), (1e3, "ms")):
        if number * factor >= 1.0:
            return f"{number * factor:.3g} {name}"
    return f"{number * 1e6:.3g} us"


def line(row: Row, result: dict[str, Any]) -> list[str]:
    if "error" in result:
        return [row.work, row.against, "", "", "", _bound(row.must), _bound(row.aim), verdict(row, result)]
    unit = result.get("unit", "s")
    measured = amount(value(result), "MB") if unit == "MB" else f"{value(result):.3g}"
    ours, peer = amount(result["ours"], unit), amount(result["peer"], unit)
    bounds = [_bound(row.must, unit), _bound(row.aim, unit)]
    return [row.work, row.against, ours, peer, measured, *bounds, verdict(row, result)]


def _bound(bound: float | None, unit: str = "s") -> str:
    return "" if bound is None else f"{bound:g} MB" if unit == "MB" else f"{bound:g}"


def table(results: dict[Row, dict[str, Any]]) -> str:
    """The results in Markdown, gated rows first."""
    head = ["work", "against", "ours", "peer", "ratio", "must", "aim", "verdict"]
    cells = [head, *(line(row, result) for row, result in results.items())]
    widths = [max(len(x[i]) for x in cells) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(x, widths, strict=True)) + " |"
        for x in [head, rule, *cells[1:]]
    )


def machine() -> dict[str, Any]:
    """What the numbers depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
    commit = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "commit": commit.stdout.strip() or None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME", action="append", help="a row, or the start of its name; repeatable")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work: to see that it runs, not to cite")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write everything measured to this file")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.only or any(row.name.startswith(name) for name in options.only)]
    if not rows:
        parser.error(f"no row begins with {options.only}; rows: {', '.join(row.name for row in ROWS)}")

    left_out = [row for row in rows if row.needs and shutil.which(row.needs) is None]
    rows = [row for row in rows if row not in left_out]
    about = machine()
    results: dict[Row, dict[str, Any]] = {}
    columns = (TextColumn("{task.description:50}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(rows))
        for row in rows:
            progress.update(task, description=row.name)
            results[row] = measure(row, options.quick)
            progress.advance(task)

    versions = {name: number for result in results.values() for name, number in result.get("versions", {}).items()}
    print(table(results))
    print()
    print(
        f"{about['date']}, {about['cpu']}, {about['cores']} cores, load {about['load']} at the start, "
        f"commit {about['commit']}, python {about['python']}, "
        + ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    )
    if options.quick:
        print("--quick: a tenth of the work; the ratios are not those of the table in README.md.")
    for row in left_out:
        print(f"{row.name}: left out, since {row.needs} is not installed here (apt-get install {row.needs}).")
    for row, result in results.items():
        if "error" in result:
            print(f"{row.name}: {result['error']} (peers: see benchmarks/requirements.txt)")
        elif verdict(row, result) == "MISSED":
            print(f"{row.name}: {value(result):.3g} instead of at most {row.must:g}. Why that bound: {row.why}.")
    if options.json:
        record = {
            "command": " ".join(["python", "benchmarks/run.py", *(["--quick"] if options.quick else [])]),
            "machine": about | {"versions": versions},
            "rows": [row._asdict() | result | {"verdict": verdict(row, result)} for row, result in results.items()],
        }
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return int(any(verdict(row, result) in ("MISSED", "not measured") for row, result in results.items()))


if __name__ == "__main__":
    sys.exit(main())
