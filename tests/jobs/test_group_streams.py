"""Streams that take their rows in order: of every source, sorted, on every engine, killed and gone on with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

import normscale as ns
from jobs.parts import bytes_of, logits_of, scores_of, write_folder, write_logits
from normscale import jobs
from normscale.detectors import by_source
from normscale.jobs.running import Engine

N = 900
SIZES = (250, 1, 649)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Rows of forty cameras in three files, with times that do not come in order."""
    folder, rng = tmp_path_factory.mktemp("fleet"), np.random.default_rng(0)
    rows, cameras, times = logits_of(N), rng.integers(0, 40, N), rng.permutation(N) // 3
    start = 0
    for number, size in enumerate(SIZES):
        own = slice(start, start + size)
        more: Any = {"camera": cameras[own], "time": times[own].astype("M8[s]")}
        write_logits(folder / f"{number}.parquet", rows[own], **more)
        start += size
    return folder, rows, cameras, times


@pytest.fixture(scope="module")
def detector() -> ns.Detector:
    return ns.make_detector("stream_aware+energy").fit(logits_of(500, 9))


def streamed(
    detector: ns.Detector, rows: NDArray[Any], cameras: NDArray[Any] | None, times: NDArray[Any] | None
) -> NDArray[np.float64]:
    """Every source by itself, in the order of its times."""
    scores = np.empty(len(rows))
    for camera in [None] if cameras is None else np.unique(cameras):
        own = np.arange(len(rows)) if camera is None else np.flatnonzero(cameras == camera)
        own = own if times is None else own[np.argsort(times[own], kind="stable")]
        scores[own] = copy.copy(detector).stream(rows[own])
    return scores


@pytest.mark.parametrize("order_by", [None, "time"])
@pytest.mark.parametrize("by", [None, "camera"])
def test_the_same_bytes_here_on_processes_and_on_ray(
    tmp_path: Path, fleet: Any, detector: ns.Detector, local: Engine, ray_engine: Engine, by: Any, order_by: Any
) -> None:
    folder, rows, cameras, times = fleet
    wanted = streamed(detector, rows, cameras if by else None, times if order_by else None)
    options: Any = {"stream": True, "by": by, "order_by": order_by, "piece_rows": 200}
    for engine, name in (("here", "here"), (local, "local"), (ray_engine, "ray")):
        result = jobs.score(folder, detector, tmp_path / name, engine=engine, **options)
        np.testing.assert_allclose(scores_of(tmp_path / name), wanted, rtol=1e-12, atol=1e-12)
        assert not (tmp_path / name / "_job" / "states").exists()
    assert bytes_of(tmp_path / "here") == bytes_of(tmp_path / "local") == bytes_of(tmp_path / "ray")
    assert by is None or sorted(result.detector._sources or ()) == sorted(map(str, range(40)))
    jobs.score(folder, detector, tmp_path / "one.parquet", stream=True, by=by, order_by=order_by)
    np.testing.assert_allclose(pq.read_table(tmp_path / "one.parquet").column("score"), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("by", [None, "camera"])
def test_a_rerun_goes_on_behind_the_last_pieces_that_are_streamed(
    tmp_path: Path, fleet: Any, detector: ns.Detector, by: Any
) -> None:
    read: list[int] = []

    def stop(progress: jobs.Progress) -> None:
        if progress.doing == "streaming":
            read.append(progress.rows)
            if len(read) == 3:
                raise KeyboardInterrupt

    options: Any = {"stream": True, "by": by, "piece_rows": 200, "engine": "here"}
    with pytest.raises(KeyboardInterrupt):
        jobs.score(fleet[0], detector, tmp_path / "out", tick=stop, **options)
    done = read[-1]
    assert 0 < done < N
    result = jobs.score(fleet[0], detector, tmp_path / "out", tick=stop, **options)
    assert (result.n_done_before, read[-1]) == (0, N - done)
    jobs.score(fleet[0], detector, tmp_path / "at_once", **options)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "at_once")


def test_the_states_of_pieces_are_kept_for_a_rerun(tmp_path: Path) -> None:
    write_folder(tmp_path / "in")
    fitted = ns.NormScaling().fit(logits_of(300))
    rows: dict[str, int] = {}

    def stop(progress: jobs.Progress) -> None:
        rows[progress.doing] = progress.rows
        if progress.doing == "scoring" and progress.pieces == 2 and "again" not in rows:
            raise KeyboardInterrupt

    options: Any = {"stream": True, "piece_rows": 100, "engine": "here"}
    with pytest.raises(KeyboardInterrupt):
        jobs.score(tmp_path / "in", fitted, tmp_path / "out", tick=stop, **options)
    assert rows["running statistics"] == 1151
    rows["again"] = 1
    result = jobs.score(tmp_path / "in", fitted, tmp_path / "out", tick=stop, **options)
    assert (result.n_done_before, rows["running statistics"]) == (2, 0)
    jobs.score(tmp_path / "in", fitted, tmp_path / "at_once", **options)
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "at_once")


def test_states_beyond_a_number_are_in_a_file_and_change_nothing(
    tmp_path: Path, fleet: Any, detector: ns.Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = {"stream": True, "by": "camera", "piece_rows": 200, "engine": "here"}
    jobs.score(fleet[0], detector, tmp_path / "in_memory", **options)
    shapes: list[tuple[int, int]] = []
    in_a_file = by_source.in_a_file
    monkeypatch.setattr(by_source, "MEMORY", 1)
    monkeypatch.setattr(by_source, "in_a_file", lambda shape: shapes.append(shape) or in_a_file(shape))  # type: ignore[func-returns-value]
    jobs.score(fleet[0], detector, tmp_path / "on_disk", **options)
    assert len(shapes) > 4
    assert bytes_of(tmp_path / "in_memory") == bytes_of(tmp_path / "on_disk")


def test_texts_that_are_numbers_sort_as_numbers_and_gaps_are_refused(tmp_path: Path, detector: ns.Detector) -> None:
    rows, times = logits_of(12), np.random.default_rng(0).permutation(12)
    names = ",".join(f"logit_c{i}" for i in range(rows.shape[1]))

    def table(values: list[Any]) -> Path:
        lines = [",".join(map(str, [value, *row])) for value, row in zip(values, rows.tolist(), strict=True)]
        (tmp_path / "a.csv").write_text("\n".join([f"time,{names}", *lines, ""]))
        return tmp_path / "a.csv"

    wanted = streamed(detector, rows.astype(float), None, times)
    jobs.score(table(times.tolist()), detector, tmp_path / "b.parquet", stream=True, order_by="time")
    np.testing.assert_allclose(pq.read_table(tmp_path / "b.parquet").column("score"), wanted, rtol=1e-12)
    dates = [f"2026-11-{1 + value:02d}" for value in times.tolist()]
    jobs.score(table(dates), detector, tmp_path / "c.parquet", stream=True, order_by="time")
    np.testing.assert_allclose(pq.read_table(tmp_path / "c.parquet").column("score"), wanted, rtol=1e-12)
    with pytest.raises(ns.InvalidInput, match="row 3 has no time, so its place in the stream is not known"):
        jobs.score(table([*dates[:3], "", *dates[4:]]), detector, tmp_path / "d.parquet", stream=True, order_by="time")
    with pytest.raises(ns.InvalidInput, match=r"order_by='time' sorts all rows .* memory.* sort the tables before"):
        jobs.score(table(dates), detector, tmp_path / "d.csv", stream=True, order_by="time", memory=500)


@pytest.mark.parametrize("on_invalid", ["raise", "skip"])
@pytest.mark.parametrize("name", ["norm_scaling", "stream_aware+energy"])
def test_a_stream_for_every_source_goes_on_from_a_file(
    tmp_path: Path, local: Engine, name: str, on_invalid: str
) -> None:
    rows = logits_of(600)
    if on_invalid == "skip":
        rows[[3, 400], 1] = np.nan
    ids = np.array([f"camera {number}" for number in np.random.default_rng(0).integers(0, 9, 600)])
    for number, part in enumerate((slice(0, 250), slice(250, 600))):
        write_logits(tmp_path / f"{number}.parquet", rows[part], camera=ids[part])
    detector = ns.make_detector(name).fit(logits_of(500, 9))
    wanted = copy.copy(detector).stream(rows, by=ids, on_invalid=on_invalid)
    files = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    options: Any = {"stream": True, "by": "camera", "on_invalid": on_invalid}
    jobs.score(files, detector, tmp_path / "all.parquet", **options)
    table = pq.read_table(tmp_path / "all.parquet")
    np.testing.assert_allclose(table.column("score").to_numpy(), wanted, rtol=1e-12, atol=1e-12)
    assert table.column("camera").to_pylist() == ids.tolist()
    first = jobs.score(files[:1], detector, tmp_path / "first", engine=local, piece_rows=100, **options)
    first.detector.save(tmp_path / "moved.safetensors")
    moved = ns.load_detector(tmp_path / "moved.safetensors")
    jobs.score(files[1:], moved, tmp_path / "second", engine=local, piece_rows=100, **options)
    found = np.concatenate([scores_of(tmp_path / "first"), scores_of(tmp_path / "second")])
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_sources_need_a_stream_and_their_column(tmp_path: Path, detector: ns.Detector) -> None:
    write_logits(tmp_path / "a.parquet", logits_of(5))
    with pytest.raises(ns.InvalidInput, match="by='camera' is for streams; pass stream=True"):
        jobs.score(tmp_path / "a.parquet", detector, tmp_path / "b.csv", by="camera")
    with pytest.raises(ns.InvalidInput, match="camera"):
        jobs.score(tmp_path / "a.parquet", detector, tmp_path / "b.csv", by="camera", stream=True)
