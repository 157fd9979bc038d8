"""Files to work on, engines to work with, and how to kill their workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from normscale.jobs import Progress
from normscale.jobs.local_engine import LocalEngine

CLASSES = 5


def logits_of(n: int, seed: int = 0, dtype: Any = np.float32) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    rows = 3.0 * rng.normal(size=(n, CLASSES)) + np.arange(CLASSES)
    return rows.astype(dtype)


def write_logits(path: Path, logits: NDArray[Any], group: int = 100, order: Any = None, **more: Any) -> None:
    """A Parquet file with a column for each class, in some order."""
    places = range(logits.shape[1]) if order is None else order
    columns = {f"logit_c{i}": np.ascontiguousarray(logits[:, i]) for i in places}
    pq.write_table(pa.table({**columns, **more}), path, row_group_size=group)


def write_features(path: Path, features: NDArray[Any]) -> None:
    """A Parquet file with a column for each feature, and some logits."""
    columns: dict[str, Any] = {f"feature_{i}": np.ascontiguousarray(column) for i, column in enumerate(features.T)}
    write_logits(path, logits_of(len(features)), **columns)


def write_folder(folder: Path, sizes: tuple[int, ...] = (450, 1, 0, 700), group: int = 100) -> NDArray[Any]:
    """Files of different sizes (one row, none), orders of columns and dtypes; the rows of all of them."""
    folder.mkdir()
    dtypes = (np.float32, np.float64, np.float32, np.float16)
    parts = []
    for number, size in enumerate(sizes):
        part = logits_of(size, number, dtypes[number % 4])
        order = np.random.default_rng(number).permutation(CLASSES) if number else None
        write_logits(folder / f"{number}.parquet", part, group, order, label=np.arange(size) % CLASSES)
        parts.append(part.astype(np.float64))
    return np.concatenate(parts)


def scores_of(folder: Path) -> NDArray[np.float64]:
    files = sorted(folder.glob("part-*.parquet"))
    return np.concatenate([pq.read_table(file).column("score").to_numpy() for file in files])


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All that a job leaves but the lock."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def worker_ids(engine: Any) -> list[int]:
    """Processes that work for an engine now."""
    if isinstance(engine, LocalEngine):
        return engine.process_ids
    session = engine._ray._private.worker._global_node.get_session_dir_path()
    raylets = [pid for pid, command, _ in _processes() if session in command and "raylet" in command.split("\0")[0]]
    titles = ("ray::run_task", "ray::IDLE")  # Ray's own agents are called ray:: too
    workers = [(pid, command) for pid, command, up in _processes() if up in raylets and command.startswith(titles)]
    busy = [pid for pid, command in workers if command.startswith(titles[0])]
    return busy or [pid for pid, _ in workers]


def _processes() -> list[tuple[int, str, int]]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found.append((int(entry.name), (entry / "cmdline").read_text(), parent))
            except (OSError, ValueError):
                continue
    return found


def killer(
    engine: Any, at: dict[str, int], *, all_of_them: bool = False
) -> tuple[Callable[[Progress], None], dict[str, list[int]]]:
    """A tick that kills workers once in each pass, when it has done so many pieces; and whom it killed in which."""
    killed: dict[str, list[int]] = {}

    def tick(progress: Progress) -> None:
        doing = progress.doing
        if doing in at and doing not in killed and progress.pieces >= at[doing] and (ids := worker_ids(engine)):
            killed[doing] = ids if all_of_them else ids[:1]
            for pid in killed[doing]:
                os.kill(pid, signal.SIGKILL)

    return tick, killed
