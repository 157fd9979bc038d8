"""Run the same commands with ``--engine local`` and ``--engine ray`` on millions of rows, and compare their bytes.

    python tools/compare_engines.py --folder /tmp/engines-5m --output docs/results/engines-5m.json

Fits, scores frozen and with running statistics, and evaluates, each by the command line in a process of its own. The
rows are written first, always the same ones: Parquet files with columns in different orders and dtypes, one of a single
row and one of none. What was streamed is also compared with one process that takes row after row. The folder is removed
at the end unless ``--keep`` is given.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import normscale as ns
from normscale._provenance import environment
from normscale.jobs.sources import RowSource

FILE_ROWS = 250_000
GROUP = 25_000
ENGINES = ("local", "ray")
FIT, FROZEN, RUNNING, EVAL = "fit", "score", "score --stream", "eval"


def write_side(folder: Path, rows: int, classes: int, peak: float, seed: int) -> None:
    """Files of a quarter of a million rows; the second has one row, and the last none."""
    folder.mkdir(parents=True)
    sizes = [min(FILE_ROWS, rows - start) for start in range(0, rows, FILE_ROWS)]
    sizes = [sizes[0] - 1, 1, *sizes[1:], 0]
    for number, size in enumerate(sizes):
        rng = np.random.default_rng([seed, number])
        dtype = {3: np.float64, 5: np.float16}.get(number, np.float32)
        order = rng.permutation(classes) if number % 2 else np.arange(classes)
        schema = pa.schema([(f"logit_c{place}", pa.from_numpy_dtype(dtype)) for place in order])
        with pq.ParquetWriter(folder / f"{number:04d}.parquet", schema, use_dictionary=False) as writer:
            for start in range(0, size, GROUP):
                logits = 3.0 * rng.standard_normal((min(GROUP, size - start), classes), dtype=np.float32)
                logits[np.arange(len(logits)), rng.integers(0, classes, len(logits))] += peak
                columns = [np.ascontiguousarray(logits[:, place]).astype(dtype) for place in order]
                writer.write_table(pa.table(columns, schema=schema), row_group_size=GROUP)


def run(arguments: list[str]) -> tuple[str, float]:
    """The output of a command, and how long it took."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "normscale", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"normscale {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout, time.perf_counter() - start


def digest(path: Path) -> str:
    """Of a file, or of the names and bytes of all files in a folder but the lock."""
    found = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file() and file.name != ".lock":
            found.update(file.relative_to(path).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()


def without_seconds(text: str) -> bytes:
    """The rows of ``eval`` but for how long they took."""
    rows = [{**row, "seconds": ""} for row in csv.DictReader(io.StringIO(text))]
    return json.dumps(rows).encode()


def commands(engine: str, folder: Path, workers: int) -> dict[str, list[str]]:
    """What is run on an engine, in this order."""
    out, options = folder / engine, ["--engine", engine, "--workers", str(workers)]
    saved, inputs = str(out / "detector.safetensors"), str(folder / "id")
    return {
        FIT: ["fit", inputs, "-o", saved, "-d", "norm_scaling", *options],
        FROZEN: ["score", saved, inputs, "-o", str(out / "frozen"), *options],
        RUNNING: ["score", saved, inputs, "-o", str(out / "running"), "--stream", *options],
        EVAL: ["eval", "--saved", saved, "--id", inputs, "--ood", f"other={folder / 'ood'}", "-f", "csv", *options],
    }


def run_engine(engine: str, folder: Path, workers: int) -> tuple[dict[str, str], dict[str, float], str]:
    """Digests and seconds by command, and the metrics."""
    out = folder / engine
    out.mkdir()
    digests, seconds, text = {}, {}, ""
    for name, arguments in commands(engine, folder, workers).items():
        text, seconds[name] = run(arguments)
        made = {FIT: out / "detector.safetensors", FROZEN: out / "frozen", RUNNING: out / "running"}.get(name)
        digests[name] = hashlib.sha256(without_seconds(text)).hexdigest() if made is None else digest(made)
        print(f"{engine} {name}: {seconds[name]:.1f} s, {digests[name][:16]}", flush=True)
    return digests, seconds, text


def against_one_process(folder: Path) -> dict[str, float]:
    """The largest |a - b| / (1 + |b|) of running scores, against one detector that streams all rows."""
    detector = ns.load_detector(folder / "local" / "detector.safetensors")
    source = RowSource(folder / "id", ["logits"])
    worst, n_rows, parts = 0.0, 0, sorted((folder / "local" / "running").glob("part-*.parquet"))
    for piece, part in zip(source.file_pieces(), parts, strict=True):
        one = np.concatenate([detector.stream(chunk.outputs) for chunk in source.chunks(piece)])
        many = pq.read_table(part).column("score").to_numpy()
        worst = max(worst, float((np.abs(many - one) / (1.0 + np.abs(one))).max()))
        n_rows += one.size
    return {"rows": n_rows, "largest_difference": worst}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="a new folder outside the repository")
    parser.add_argument("--output", required=True, help="where the record goes, .json")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", action="store_true", help="leave the folder as it is")
    given = parser.parse_args()
    folder = Path(given.folder)
    if folder.exists():
        raise SystemExit(f"{folder} is there already; name a new folder.")
    sizes = {"id": given.rows, "ood": given.rows // 5}
    for number, (side, rows) in enumerate(sizes.items()):
        write_side(folder / side, rows, given.classes, (8.0, 5.0)[number], number)
    files = list(folder.rglob("*.parquet"))
    try:
        load = os.getloadavg()[0]
        digests, seconds, texts = {}, {}, {}
        for engine in ENGINES:
            digests[engine], seconds[engine], texts[engine] = run_engine(engine, folder, given.workers)
        metrics = next(csv.DictReader(io.StringIO(texts["ray"])))
        record: dict[str, Any] = {
            "command": " ".join(["python", "tools/compare_engines.py", f"--rows {given.rows}"])
            + f" --classes {given.classes} --workers {given.workers}",
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "environment": {**environment(), "ray": _ray_version(), "load_at_start": round(load, 2)},
            "rows": sizes,
            "classes": given.classes,
            "files": len(files),
            "bytes": sum(file.stat().st_size for file in files),
            "commands": {
                name: {"same_bytes": digests["local"][name] == digests["ray"][name]} for name in digests["ray"]
            },
            "metrics": {name: float(metrics[name]) for name in ("auroc", "fpr95_out", "fpr95_in")},
            "against_one_process": against_one_process(folder),
        }
        for name, entry in record["commands"].items():
            entry["sha256"] = digests["local"][name]
            entry["seconds"] = {engine: round(seconds[engine][name], 1) for engine in ENGINES}
            entry["ray_of_local"] = round(seconds["ray"][name] / seconds["local"][name], 2)
    finally:
        if not given.keep:
            shutil.rmtree(folder)
    Path(given.output).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))
    if not all(entry["same_bytes"] for entry in record["commands"].values()):
        raise SystemExit("the engines do not give the same bytes.")


def _ray_version() -> str:
    from importlib import metadata

    return metadata.version("ray")


if __name__ == "__main__":
    main()
