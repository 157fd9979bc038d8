"""Scores of many files: one file a piece, the same bytes on every engine, and what is left of a job."""

from __future__ import annotations

import copy
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import normscale as ns
from jobs.parts import CLASSES, bytes_of, logits_of, scores_of, write_features, write_folder, write_logits
from normscale import jobs
from normscale._lock import locked
from normscale.jobs.running import Engine
from normscale.metrics.thresholds import Threshold
from running_norm import RunningNorm, Shifted

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*matched by name:normscale.NumericalWarning"),
    pytest.mark.filterwarnings("ignore:.*no more than chance:normscale.NumericalWarning"),  # labels that mean nothing
]


@pytest.fixture
def fitted() -> ns.NormScaling:
    detector = ns.NormScaling().fit(logits_of(500, 9))
    detector.threshold_ = Threshold(0.5)
    return detector


@pytest.mark.parametrize("stream", [False, True])
def test_every_engine_writes_the_same_bytes(
    tmp_path: Path, fitted: ns.NormScaling, local: Engine, ray_engine: Engine, stream: bool
) -> None:
    rows = write_folder(tmp_path / "in")
    before = fitted._pack()
    found = {}
    for name, engine in {"local": local, "ray": ray_engine}.items():
        result = jobs.score(tmp_path / "in", fitted, tmp_path / name, stream=stream, engine=engine, piece_rows=100)
        assert (result.n_rows, result.n_pieces, result.n_done_before) == (1151, 13, 0)
        found[name] = bytes_of(tmp_path / name)
    assert found["local"] == found["ray"]
    assert [name for name in found["ray"] if not name.startswith("part-")] == ["_job/detector.safetensors"] * stream + [
        "_job/plan.json"
    ]
    one_process = copy.copy(fitted)
    wanted = one_process.stream(rows) if stream else fitted.score(rows)
    scores = scores_of(tmp_path / "ray")
    assert (np.abs(scores - wanted) <= 1e-12 * (1 + np.abs(wanted))).all()
    table = pq.read_table(sorted((tmp_path / "ray").glob("part-*")))
    np.testing.assert_array_equal(table.column("predicted").to_numpy(), rows.argmax(axis=1))
    np.testing.assert_array_equal(table.column("is_ood").to_numpy(), scores > 0.5)
    assert result.n_flagged == int((scores > 0.5).sum())
    assert fitted._pack() == before
    assert isinstance(result.detector, ns.NormScaling)
    assert result.detector.n_streamed_ == (1151 if stream else 0)
    np.testing.assert_allclose(result.detector.running_.mean, one_process.running_.mean, rtol=1e-12)
    np.testing.assert_allclose(result.detector.running_.m2, one_process.running_.m2, rtol=1e-12)


@pytest.mark.parametrize("score", ["msp", "max_logit", "energy"])
def test_every_score_of_running_statistics(tmp_path: Path, local: Engine, score: str) -> None:
    rows = write_folder(tmp_path / "in")
    detector = ns.NormScaling(score=score, prior_weight=20.0).fit(logits_of(100, 9))
    result = jobs.score(tmp_path / "in", detector, tmp_path / "out", stream=True, engine=local, piece_rows=200)
    wanted = detector.stream(rows)
    assert (np.abs(scores_of(tmp_path / "out") - wanted) <= 1e-12 * (1 + np.abs(wanted))).all()
    assert result.n_flagged is None


def test_the_order_of_files_is_the_order_of_the_stream(tmp_path: Path, fitted: ns.NormScaling, local: Engine) -> None:
    for number in range(3):
        write_logits(tmp_path / f"{number}.parquet", logits_of(50, number))
    order = [2, 0, 1]
    paths = [tmp_path / f"{number}.parquet" for number in order]
    jobs.score(paths, fitted, tmp_path / "out", stream=True, engine=local)
    wanted = fitted.stream(np.concatenate([logits_of(50, number) for number in order]))
    np.testing.assert_allclose(scores_of(tmp_path / "out"), wanted, rtol=1e-11)


@pytest.mark.parametrize("stream", [False, True])
def test_columns_in_another_order_than_at_the_fit(tmp_path: Path, local: Engine, stream: bool) -> None:
    write_logits(tmp_path / "train.parquet", logits_of(300, 9))
    detector = jobs.fit(tmp_path / "train.parquet", "norm_scaling", engine=local).detector
    assert detector.class_names == ("c0", "c1", "c2", "c3", "c4")
    rows = logits_of(90)
    write_logits(tmp_path / "tonight.parquet", rows, order=[3, 0, 4, 2, 1])
    jobs.score(tmp_path / "tonight.parquet", detector, tmp_path / "out", stream=stream, engine=local)
    wanted = copy.copy(detector).stream(rows) if stream else detector.score(rows)
    np.testing.assert_allclose(scores_of(tmp_path / "out"), wanted, rtol=1e-11)
    predicted = pq.read_table(tmp_path / "out" / "part-000000.parquet").column("predicted").to_numpy()
    np.testing.assert_array_equal(predicted, rows.argmax(axis=1))


def test_running_statistics_of_another_kind_are_merged(tmp_path: Path, local: Engine) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(330, 4)) * np.linspace(1.0, 3.0, 330)[:, None]
    for number, part in enumerate(np.split(rows, [100, 101, 250])):
        write_features(tmp_path / f"{number}.parquet", part)
    detector = RunningNorm().fit(rng.normal(size=(200, 4)))
    result = jobs.score(tmp_path, detector, tmp_path / "out", stream=True, engine=local, piece_rows=60)
    wanted = detector.stream(rows)
    np.testing.assert_allclose(scores_of(tmp_path / "out"), wanted, rtol=1e-9)
    np.testing.assert_allclose(result.detector.state_, detector.state_, rtol=1e-12)


def test_a_step_of_ones_own_is_what_scores(tmp_path: Path, local: Engine) -> None:
    rows = write_folder(tmp_path / "in")
    detector = Shifted().fit(logits_of(100, 9))
    jobs.score(tmp_path / "in", detector, tmp_path / "out", stream=True, engine=local, piece_rows=200)
    wanted = detector.stream(rows)
    assert wanted.min() > 900.0
    np.testing.assert_allclose(scores_of(tmp_path / "out"), wanted, rtol=1e-12)


def test_what_depends_on_the_order_is_streamed_in_order_and_goes_on(tmp_path: Path, local: Engine) -> None:
    rows = write_folder(tmp_path / "in")
    robust = ns.RobustNormScaling().fit(logits_of(300))
    out = tmp_path / "out"

    def run() -> jobs.ScoreResult:
        return jobs.score(tmp_path / "in", robust, out, stream=True, engine=local, piece_rows=200)

    result = run()
    twin = copy.copy(robust)
    wanted = twin.stream(rows)
    assert (np.abs(scores_of(out) - wanted) <= 1e-12 * (1 + np.abs(wanted))).all()
    np.testing.assert_allclose(result.detector.score(rows), twin.score(rows), rtol=1e-12)
    before = bytes_of(out)
    (out / "part-000005.parquet").unlink()
    again = run()
    assert again.n_done_before == result.n_pieces - 1  # type: ignore[operator]
    assert bytes_of(out) == before
    jobs.score(tmp_path / "in", robust, tmp_path / "one.parquet", stream=True)
    np.testing.assert_array_equal(pq.read_table(tmp_path / "one.parquet").column("score").to_numpy(), wanted)
    unfitted = ns.NormScaling()
    with pytest.raises(ns.NotFitted):
        jobs.score(tmp_path / "in", unfitted, tmp_path / "more", engine=local)


def test_kept_columns_and_names_of_files_come_with_the_scores(tmp_path: Path, local: Engine) -> None:
    for day in (1, 2):
        (tmp_path / "in" / f"day={day}").mkdir(parents=True)
        ids = [f"{day}-{row}" for row in range(120)]
        write_logits(tmp_path / "in" / f"day={day}" / "a.parquet", logits_of(120, day), id=ids, size=np.arange(120))
    detector = ns.NormScaling().fit(logits_of(300))
    keep = ["id", "size"]
    jobs.score(tmp_path / "in", detector, tmp_path / "out", keep_columns=keep, engine=local, piece_rows=100)
    parts = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("part-*"))
    assert parts == [f"day={1 + number // 2}/part-00000{number}.parquet" for number in range(4)]
    tables = [pq.ParquetFile(tmp_path / "out" / part).read() for part in parts]
    assert tables[2].column_names == ["file", "id", "size", "score", "predicted"]
    assert [tables[2].column(name)[5].as_py() for name in ("file", "id", "size")] == ["day=2/a.parquet", "2-5", 5]
    jobs.score(tmp_path / "in", detector, tmp_path / "one.csv", keep_columns=keep)
    lines = (tmp_path / "one.csv").read_text().splitlines()
    assert lines[0] == "file,id,size,score,predicted"
    assert lines[121].startswith("day=2/a.parquet,2-0,0,")
    again = jobs.score(tmp_path / "in", detector, tmp_path / "out", keep_columns=keep, engine=local, piece_rows=100)
    assert again.n_done_before == 4
    with pytest.raises(ns.InvalidInput, match="its kept columns was"):
        jobs.score(tmp_path / "in", detector, tmp_path / "out", engine=local, piece_rows=100)
    with pytest.raises(ns.InvalidInput, match="has no column 'time' to keep; it has"):
        jobs.score(tmp_path / "in", detector, tmp_path / "out", keep_columns=["time"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_rerun_does_what_is_missing(tmp_path: Path, fitted: ns.NormScaling, engine: Engine, stream: bool) -> None:
    write_folder(tmp_path / "in")
    out = tmp_path / "out"

    def run() -> jobs.ScoreResult:
        return jobs.score(tmp_path / "in", fitted, out, stream=stream, engine=engine, piece_rows=100)

    first, before = run(), bytes_of(out)
    (out / "part-000003.parquet").unlink()
    (out / "part-000007.parquet").write_bytes(before["part-000007.parquet"][:-30])  # torn
    (out / ".part-000003.1-abc.tmp.parquet").write_bytes(b"half")  # a killed process left it
    stamp = (out / "part-000004.parquet").stat().st_mtime_ns
    again = run()
    assert again.n_done_before == 11
    assert bytes_of(out) == before
    assert (out / "part-000004.parquet").stat().st_mtime_ns == stamp
    third = run()
    assert third.n_done_before == 13
    assert third[1:4] == again[1:4] == first[1:4]
    assert third.detector._pack() == first.detector._pack()


def test_another_job_in_the_same_folder_is_refused(tmp_path: Path, fitted: ns.NormScaling, local: Engine) -> None:
    write_folder(tmp_path / "in")
    out = tmp_path / "out"
    jobs.score(tmp_path / "in", fitted, out, engine=local)
    before = bytes_of(out)
    other = ns.NormScaling().fit(logits_of(30))
    with pytest.raises(ns.InvalidInput, match="scores of another job: its detector was"):
        jobs.score(tmp_path / "in", other, out, engine=local)
    with pytest.raises(ns.InvalidInput, match="its setting was frozen, and now it is stream"):
        jobs.score(tmp_path / "in", fitted, out, stream=True, engine=local)
    with pytest.raises(ns.InvalidInput, match=r"its threshold was 0\.5, and now it is 2\.0"):
        jobs.score(tmp_path / "in", fitted, out, threshold=2.0, engine=local)
    with pytest.raises(ns.InvalidInput, match=r"other pieces \(--piece-rows\)"):
        jobs.score(tmp_path / "in", fitted, out, engine=local, piece_rows=100)
    files = sorted((tmp_path / "in").glob("*.parquet"))
    with pytest.raises(ns.InvalidInput, match=r"it read .*3\.parquet as well"):
        jobs.score(files[:3], fitted, out, engine=local)
    with pytest.raises(ns.InvalidInput, match="its files stood in another order"):
        jobs.score(files[::-1], fitted, out, engine=local)
    write_logits(tmp_path / "more.parquet", logits_of(5), label=np.arange(5))
    with pytest.raises(ns.InvalidInput, match=r"it did not read .*more\.parquet"):
        jobs.score([*files, tmp_path / "more.parquet"], fitted, out, engine=local)
    write_logits(tmp_path / "in" / "0.parquet", logits_of(450, 77), label=np.arange(450) % CLASSES)
    with pytest.raises(ns.InvalidInput, match=r"0\.parquet has changed since"):
        jobs.score(tmp_path / "in", fitted, out, engine=local)
    assert bytes_of(out) == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ns.InvalidInput, match=r"did not write, such as mine\.txt"):
        jobs.score(tmp_path / "in", fitted, tmp_path / "full", engine=local)
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(ns.InvalidInput, match="is a file"):
        jobs.score(tmp_path / "in", fitted, tmp_path / "full" / "mine", engine=local)


def test_workers_that_run_in_another_folder_see_the_same_files(
    tmp_path: Path, fitted: ns.NormScaling, local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_logits(tmp_path / "a.parquet", logits_of(50))
    monkeypatch.chdir(tmp_path)  # the workers stay where they were started
    result = jobs.score("a.parquet", fitted, "out", engine=local)
    assert result.output == str(tmp_path / "out")
    np.testing.assert_array_equal(scores_of(tmp_path / "out"), fitted.score(logits_of(50)))


def test_scores_that_went_elsewhere_are_missed(
    tmp_path: Path, fitted: ns.NormScaling, local: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_logits(tmp_path / "a.parquet", logits_of(50))

    def tick(progress: jobs.Progress) -> None:
        (tmp_path / "out" / "part-000000.parquet").rename(tmp_path / "elsewhere")

    with pytest.raises(jobs.EngineFailed, match=r"1 of 1 files, such as part-000000\.parquet, were written and are"):
        jobs.score(tmp_path / "a.parquet", fitted, tmp_path / "out", engine=local, tick=tick)


def test_a_second_process_in_the_folder_is_refused(tmp_path: Path, fitted: ns.NormScaling, local: Engine) -> None:
    write_folder(tmp_path / "in")
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(tmp_path / "out" / "_job"):
            held.set()
            let_go.wait(300)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(300)
    try:
        with pytest.raises(ns.NormscaleError, match="is being worked on by another process"):
            jobs.score(tmp_path / "in", fitted, tmp_path / "out", engine=local)
    finally:
        let_go.set()
        thread.join(60)
    jobs.score(tmp_path / "in", fitted, tmp_path / "out", engine=local)


@pytest.mark.parametrize("stream", [False, True])
def test_bad_rows_are_named_or_scored_nan(tmp_path: Path, fitted: ns.NormScaling, engine: Engine, stream: bool) -> None:
    rows = logits_of(400)
    rows[[7, 150, 399], [0, 1, 2]] = np.nan, np.inf, -np.inf
    rows[200:300] = np.nan  # a whole piece
    write_logits(tmp_path / "a.parquet", rows)
    source = tmp_path / "a.parquet"
    with pytest.raises(
        ns.InvalidInput, match=r"a\.parquet: row (7|150|200|399) holds (NaN|infinity) in column . of logits"
    ):
        jobs.score(source, fitted, tmp_path / "raised", stream=stream, engine=engine, piece_rows=100)
    assert not [name for name in bytes_of(tmp_path / "raised") if "tmp" in name]
    result = jobs.score(
        source, fitted, tmp_path / "out", stream=stream, engine=engine, piece_rows=100, on_invalid="skip"
    )
    assert result.skipped.n == 103
    assert [row for _, row in result.skipped.rows] == [7, 150, *range(200, 300), 399]
    wanted = (copy.copy(fitted).stream if stream else fitted.score)(rows, on_invalid="skip")
    np.testing.assert_allclose(scores_of(tmp_path / "out"), wanted, rtol=1e-11)
    files = sorted((tmp_path / "out").glob("part-*.parquet"))
    predicted = np.concatenate([pq.read_table(file).column("predicted").to_numpy() for file in files])
    assert ((predicted == -1) == np.isnan(wanted)).all()
    again = jobs.score(
        source, fitted, tmp_path / "out", stream=stream, engine=engine, piece_rows=100, on_invalid="skip"
    )
    assert again.skipped == result.skipped


def test_a_file_that_changes_under_way_is_noticed(tmp_path: Path, fitted: ns.NormScaling, engine: Engine) -> None:
    for number in range(12):
        write_logits(tmp_path / f"{number:02}.parquet", logits_of(200, number))

    def tick(progress: jobs.Progress) -> None:
        last = tmp_path / "11.parquet"
        os.utime(last, ns=(1, 1))

    with pytest.raises(ns.FileFormatError, match=r"11\.parquet has changed since this job was planned"):
        jobs.score(str(tmp_path / "*.parquet"), fitted, tmp_path / "out", engine=engine, tick=tick)
    assert "part-000011.parquet" not in bytes_of(tmp_path / "out")


def test_per_class_thresholds_and_features_without_logits(tmp_path: Path, local: Engine) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(200, 3)), rng.integers(0, 2, 200)
    outputs = ns.ModelOutputs(features=features, logits=features[:, :2], labels=labels)
    detector = ns.Mahalanobis().fit(outputs).set_threshold(outputs, 0.9, per_class=True)
    for name, table in {"with": outputs, "without": outputs.only("features")}.items():
        ns.write_table(tmp_path / f"{name}.parquet", table)
    result = jobs.score(tmp_path / "with.parquet", detector, tmp_path / "out", engine=local)
    assert result.n_flagged == int(detector.predict(outputs).sum())
    with pytest.raises(ns.InvalidInput, match="no logits to predict from"):
        jobs.score(tmp_path / "without.parquet", detector, tmp_path / "other", engine=local)
    jobs.score(tmp_path / "without.parquet", detector, tmp_path / "one", threshold=3.0, engine=local)
    assert pq.read_table(tmp_path / "one" / "part-000000.parquet").column_names == ["score", "is_ood"]


@pytest.mark.parametrize("on_invalid", ["raise", "skip"])
def test_a_text_without_rows_has_a_part_without_rows(
    tmp_path: Path, fitted: ns.NormScaling, local: Engine, on_invalid: str
) -> None:
    (tmp_path / "in").mkdir()
    header = ",".join(f"logit_{name}" for name in range(CLASSES))
    ns.write_table(tmp_path / "in" / "a.csv", {"logits": logits_of(20, 1)})
    (tmp_path / "in" / "b.csv").write_text(header + "\n")
    result = jobs.score(tmp_path / "in", fitted, tmp_path / "out", engine=local, on_invalid=on_invalid)
    assert (result.n_rows, result.n_pieces) == (20, 2)
    tables = [pq.read_table(part) for part in sorted((tmp_path / "out").glob("part-*"))]
    assert [table.num_rows for table in tables] == [20, 0]
    assert tables[0].schema.equals(tables[1].schema)
