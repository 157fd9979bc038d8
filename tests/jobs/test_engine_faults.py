"""Workers killed in both passes, a driver killed, all workers gone: the right answer, nothing left behind."""

from __future__ import annotations

import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from jobs.parts import bytes_of, killer, logits_of, worker_ids, write_logits
from normscale import jobs
from normscale.jobs.local_engine import LocalEngine
from normscale.jobs.running import Engine, EngineFailed

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*matched by name:normscale.NumericalWarning"),
    pytest.mark.filterwarnings("ignore:.*no more than chance:normscale.NumericalWarning"),  # labels that mean nothing
]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, local: Engine) -> tuple[Path, ns.NormScaling, dict[str, bytes]]:
    """Sixteen pieces, a detector, and what a job that nobody disturbs makes of them."""
    folder = tmp_path_factory.mktemp("many")
    for number in range(4):
        write_logits(folder / f"{number}.parquet", logits_of(4000, number), group=1000)
    detector = ns.NormScaling().fit(logits_of(500, 9))
    jobs.score(folder, detector, folder / "_out", stream=True, engine=local, piece_rows=1000)
    return folder, detector, bytes_of(folder / "_out")


@pytest.mark.parametrize(
    ("name", "all_of_them"),
    [("local", False), ("ray_engine", False), ("ray_engine", True)],
    ids=["local", "ray", "ray, all workers at once"],
)
def test_workers_killed_in_both_passes(
    tmp_path: Path,
    many: tuple[Path, ns.NormScaling, dict[str, bytes]],
    request: pytest.FixtureRequest,
    name: str,
    all_of_them: bool,
) -> None:
    engine: Engine = request.getfixturevalue(name)
    folder, detector, wanted = many
    tick, killed = killer(engine, {"running statistics": 3, "scoring": 4}, all_of_them=all_of_them)
    result = jobs.score(folder, detector, tmp_path / "out", stream=True, engine=engine, piece_rows=1000, tick=tick)
    assert killed.keys() == {"running statistics", "scoring"}
    assert result.n_rows == 16_000
    assert bytes_of(tmp_path / "out") == wanted


def test_workers_killed_in_a_fit(many: tuple[Path, ns.NormScaling, dict[str, bytes]], engine: Engine) -> None:
    folder, _, _ = many
    wanted = jobs.fit(folder, "norm_scaling", engine=engine, piece_rows=1000).detector._pack()
    tick, killed = killer(engine, {"fitting norm_scaling": 2})
    assert jobs.fit(folder, "norm_scaling", engine=engine, piece_rows=1000, tick=tick).detector._pack() == wanted
    assert killed


DRIVER = """
import os, signal, sys
import normscale as ns
from normscale import jobs

def tick(progress):
    if progress.doing == doing and progress.pieces >= 6:
        os.kill(os.getpid(), signal.SIGKILL)

folder, saved, out, name, address, doing = sys.argv[1:]
if __name__ == "__main__":
    jobs.score(folder, ns.load_detector(saved), out, stream=True, engine=name, address=address or None,
                  workers=2, piece_rows=1000, tick=tick)
"""


@pytest.mark.parametrize(("name", "doing"), [("local", "scoring"), ("ray", "scoring")])
def test_a_job_whose_driver_was_killed_is_run_again(
    tmp_path: Path,
    many: tuple[Path, ns.NormScaling, dict[str, bytes]],
    request: pytest.FixtureRequest,
    name: str,
    doing: str,
) -> None:
    engine: Any = request.getfixturevalue({"local": "local", "ray": "ray_engine"}[name])
    folder, detector, wanted = many
    detector.save(tmp_path / "detector.safetensors")
    (tmp_path / "driver.py").write_text(DRIVER)
    address = engine._ray.get_runtime_context().gcs_address if name == "ray" else ""
    out = tmp_path / "out"
    command = [tmp_path / "driver.py", folder, tmp_path / "detector.safetensors", out, name, address, doing]
    killed = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=280)
    assert killed.returncode == -9, killed.stderr
    time.sleep(1.0)  # its workers end with it
    finished = len(list(out.glob("part-*")))
    result = jobs.score(folder, detector, out, stream=True, engine=engine, piece_rows=1000)
    assert bytes_of(out) == wanted
    assert result.n_done_before == finished >= 6


def test_after_an_error_nothing_more_is_written(
    tmp_path: Path, many: tuple[Path, ns.NormScaling, dict[str, bytes]], engine: Engine
) -> None:
    folder, detector, _ = many
    for number in range(4):
        (tmp_path / f"{number}.parquet").write_bytes((folder / f"{number}.parquet").read_bytes())
    rows = logits_of(4000)
    rows[100, 0] = np.nan
    write_logits(tmp_path / "05.parquet", rows)
    with pytest.raises(ns.InvalidInput, match=r"05\.parquet: row 100 holds NaN"):
        jobs.score(str(tmp_path / "*.parquet"), detector, tmp_path / "out", engine=engine, piece_rows=1000)
    there = bytes_of(tmp_path / "out")
    assert len(there) < 17
    time.sleep(0.5)
    assert bytes_of(tmp_path / "out") == there
    assert not [name for name in there if "tmp" in name]


def test_errors_beside_tasks_that_end_leave_this_process_alone(engine: Engine) -> None:
    """Many errors while other tasks end: cancelling these by Ray aborted the process that had asked."""
    for _ in range(40):
        with pytest.raises(ZeroDivisionError):
            list(engine.map(operator.truediv, 1, [4, 2, 0, 1, 1, 1, 1, 1]))  # workers cannot import this file
    assert dict(engine.map(operator.truediv, 6, [1, 2])) == {0: 6.0, 1: 3.0}


def test_a_worker_killed_while_it_sends_its_result(local: LocalEngine) -> None:
    """Half a result in a pipe that others write to, too, is waited for without end."""
    small, large = 1, 1 << 25  # the large one does not fit into a pipe, so its sender waits to be read
    results = local.map(operator.mul, b"\0", [small, large])
    assert next(results) == (0, bytes(small))
    time.sleep(1.0)
    os.kill(local.process_ids[0], signal.SIGKILL)
    assert dict(results) == {1: bytes(large)}


def test_workers_that_die_again_and_again_are_given_up(
    tmp_path: Path, many: tuple[Path, ns.NormScaling, dict[str, bytes]], local: Engine
) -> None:
    with pytest.raises(EngineFailed, match=r"worker processes died 4 times in a row. Is memory short\?"):
        list(local.map(_die, None, [1, 2]))
    assert dict(local.map(_add, 1, [1, 2])) == {0: 2, 1: 3}
    assert worker_ids(local)


def _die(shared: None, task: int) -> None:
    import os

    os._exit(1)


def _add(shared: int, task: int) -> int:
    return shared + task


def test_ray_gives_a_task_up_with_a_sentence(ray_engine: Engine) -> None:
    import os

    with pytest.raises(EngineFailed, match="Ray gave a task up after 3 new beginnings"):
        list(ray_engine.map(_exit_at_once(os), None, [1]))


def _exit_at_once(os: Any) -> Any:
    return lambda shared, task: os._exit(1)  # a function of its own is sent whole: workers cannot import this file


def test_workers_of_another_version_are_refused(local: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscale.jobs.local_engine.__version__", "0.0.1")
    with pytest.raises(EngineFailed, match=r"the job was started by 0\.0\.1; install the same everywhere"):
        list(local.map(_add, 1, [1]))
