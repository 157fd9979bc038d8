"""Many files on an engine: CPU seconds of its workers for fit, score and running statistics, against reading alone.

    python benchmarks/engines.py --rows 5000000 --engine ray --folder /tmp/engines

All times are CPU seconds of the workers, the smallest of several rounds of all four, so that other work on the machine
counts little. Reading alone: the same tasks read all columns and sum one.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import normscale as ns
from normscale import jobs
from normscale.rows.files import source_of
from normscale.rows.formats.parquet import open_parquet

GROUP = 25_000


def write_data(folder: Path, rows: int, classes: int) -> None:
    """Files of a quarter of a million rows, in row groups of a tenth; nothing is made that is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, rows, 10 * GROUP)):
        path = folder / f"{number:04d}.parquet"
        if path.exists():
            continue
        size = min(10 * GROUP, rows - start)
        rng = np.random.default_rng(number)
        names = [f"logit_{i}" for i in range(classes)]
        with pq.ParquetWriter(folder / "_half", pa.schema([(name, pa.float32()) for name in names])) as writer:
            for begin in range(0, size, GROUP):
                logits = rng.standard_normal((min(GROUP, size - begin), classes), dtype=np.float32)
                logits *= 3
                logits[np.arange(len(logits)), rng.integers(0, classes, len(logits))] += 8
                columns = [np.ascontiguousarray(column) for column in logits.T]
                writer.write_table(pa.table(columns, names=names), row_group_size=GROUP)
        (folder / "_half").rename(path)


class Timed:
    """An engine that adds up the CPU seconds of its workers, and keeps their largest memory."""

    def __init__(self, engine: Any) -> None:
        self._engine, self.workers = engine, engine.workers
        self.reset()

    def reset(self) -> None:
        self.cpu, self.peak = 0.0, 0

    def map(self, work: Any, shared: Any, tasks: Any) -> Any:
        for place, (result, cpu, peak) in self._engine.map(timed, (work, shared), tasks):
            self.cpu += cpu
            self.peak = max(self.peak, peak)
            yield place, result

    def close(self) -> None:
        self._engine.close()


def timed(shared: Any, task: Any) -> Any:
    work, own = shared
    start = time.process_time()
    result = work(own, task)
    return result, time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def read_and_sum(_: None, piece: Any) -> float:
    total = 0.0
    with open_parquet(source_of(piece.file.path)) as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
        starts = np.cumsum([0, *sizes[:-1]])
        rows = piece.spans[0].rows or range(sum(sizes))
        groups = [i for i, start in enumerate(starts.tolist()) if start in rows]  # pieces are whole row groups
        for batch in file.iter_batches(1 << 16, row_groups=groups, use_threads=False):
            total += float(batch.column(0).to_numpy().sum())
    return total


def measure(folder: Path, rows: int, engine: Timed, rounds: int) -> dict[str, Any]:
    files = sorted(folder.glob("*.parquet"))[: max(1, rows // (10 * GROUP))]
    source = jobs.RowSource(files)
    pieces = source.file_pieces()
    found: dict[str, Any] = {"rows": source.n_rows, "pieces": len(pieces)}

    def note(name: str, start: float) -> None:
        now = {"cpu": round(engine.cpu, 3), "wall": round(time.perf_counter() - start, 2), "peak": engine.peak}
        if name not in found or now["cpu"] < found[name]["cpu"]:
            found[name] = now
        engine.reset()

    for _ in range(rounds):
        start = time.perf_counter()
        for _ in engine.map(read_and_sum, None, pieces):
            pass
        note("read", start)
        start = time.perf_counter()
        detector = jobs.fit(files, ns.NormScaling(), engine=engine).detector
        note("fit", start)
        for name, stream in {"score": False, "running": True}.items():
            start = time.perf_counter()
            jobs.score(files, detector, folder / "_scores", stream=stream, engine=engine)
            note(name, start)
            shutil.rmtree(folder / "_scores")
    found["fit, of reading"] = round(found["read"]["cpu"] / found["fit"]["cpu"], 3)
    found["score, of reading"] = round(found["read"]["cpu"] / found["score"]["cpu"], 3)
    found["running, of score"] = round(found["running"]["cpu"] / found["score"]["cpu"], 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--engine", default="local")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", default="/tmp/normscale-engines")
    parser.add_argument("--growth", action="store_true", help="also an eighth, a quarter and a half of the rows")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    folder = Path(given.folder)
    write_data(folder, given.rows, given.classes)
    results = []
    with jobs.open_engine(given.engine, workers=given.workers) as engine:
        timed_engine = Timed(engine)
        measure(folder, given.rows // 2, timed_engine, 1)  # every worker loads what it needs
        for part in (8, 4, 2, 1) if given.growth else (1,):
            results.append(measure(folder, given.rows // part, timed_engine, given.rounds))
            print(json.dumps(results[-1]), flush=True)
    if given.growth:
        rows = np.log([result["rows"] for result in results])
        for name in ("read", "fit", "score", "running"):
            slope = np.polyfit(rows, np.log([result[name]["cpu"] for result in results]), 1)[0]
            last = results[-1]
            print(f"{name}: {1e6 * last[name]['cpu'] / last['rows']:.2f} us a row, slope {slope:.3f}")


if __name__ == "__main__":
    main()
