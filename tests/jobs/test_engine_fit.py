"""A fit on many files: the same bits on every engine, and what one process makes of all rows."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import normscale as ns
from jobs.conftest import HAS_RAY, WHY_SKIPPED
from jobs.parts import logits_of, write_folder, write_logits
from normscale import jobs
from normscale.detectors.registry import make_detector
from normscale.jobs.running import Engine, EngineFailed
from normscale.rows.formats import parquet
from our_detectors import OUR_DETECTORS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*matched by name:normscale.NumericalWarning"),
    pytest.mark.filterwarnings("ignore:.*no more than chance:normscale.NumericalWarning"),  # labels that mean nothing
]

MERGED = [name for name in OUR_DETECTORS if not make_detector(name)._why_all_rows()]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ns.ModelOutputs]:
    """Three files with every array that a detector of ours reads."""
    folder = tmp_path_factory.mktemp("everything")
    rng = np.random.default_rng(0)
    parts = []
    head = (rng.normal(size=(4, 6)), rng.normal(size=4))
    for number, n in enumerate((170, 1, 260)):
        labels = rng.integers(0, 4, n)
        wide = {
            name: (rng.normal(size=(n, 6)) + 20 + labels[:, None]).astype(np.float32)
            for name in ("features", "perturbed_features", "stem", "stage1", "stage2", "stage3")
        }
        logits = (rng.normal(size=(n, 4)) + 3 * np.eye(4)[labels]).astype(np.float32)
        parts.append(ns.ModelOutputs(logits=logits, perturbed_logits=logits, labels=labels, head=head, **wide))
        ns.write_table(folder / f"{number}.parquet", parts[-1])
        table = pq.read_table(folder / f"{number}.parquet")
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=40)
    return folder, ns.ModelOutputs.concatenate(parts)


@pytest.mark.parametrize("name", MERGED)
def test_every_engine_gives_the_same_bits(
    name: str, everything: tuple[Path, ns.ModelOutputs], local: Engine, ray_engine: Engine
) -> None:
    folder, _ = everything
    here, there = (jobs.fit(folder, name, engine=engine, piece_rows=80) for engine in (local, ray_engine))
    assert here.detector._pack() == there.detector._pack()


@pytest.mark.parametrize("name", MERGED)
def test_it_is_the_fit_of_all_rows(name: str, everything: tuple[Path, ns.ModelOutputs], local: Engine) -> None:
    folder, outputs = everything
    result = jobs.fit(folder, name, engine=local, piece_rows=80)
    assert result.n_rows == len(outputs)
    whole = make_detector(name).fit(outputs)
    np.testing.assert_allclose(result.detector.score(outputs), whole.score(outputs), rtol=1e-9, atol=1e-9)
    assert result.detector._baseline is not None
    assert whole._baseline is not None
    np.testing.assert_array_equal(result.detector._baseline.predicted, whole._baseline.predicted)


def test_the_number_of_workers_makes_no_difference(tmp_path: Path, local: Engine) -> None:
    write_folder(tmp_path / "in")
    alone = jobs.fit(tmp_path / "in", "norm_scaling", workers=1, piece_rows=100).detector._pack()
    assert jobs.fit(tmp_path / "in", "norm_scaling", engine=local, piece_rows=100).detector._pack() == alone


@pytest.mark.parametrize("name", [None, "norm_scaling", "knn", "standardised_max_logit"])
@pytest.mark.parametrize("piece_rows", [jobs.PIECE_ROWS, 170])
def test_rows_in_one_file_or_in_many_give_the_same_file(
    name: str | None, piece_rows: int, everything: tuple[Path, ns.ModelOutputs], local: Engine, tmp_path: Path
) -> None:
    folder, outputs = everything
    ns.write_table(tmp_path / "one.parquet", outputs)
    files = sorted(folder.glob("*.parquet"))
    options: dict[str, Any] = {"piece_rows": piece_rows, "say": lambda _: None}
    if piece_rows < len(outputs):
        options["engine"] = local
    one, many, there = (
        jobs.fit(paths, name, **options).detector._pack() for paths in (tmp_path / "one.parquet", files, str(folder))
    )
    assert one == many == there


def test_what_must_see_all_rows_gets_them_within_a_bound_of_memory(
    everything: tuple[Path, ns.ModelOutputs], local: Engine
) -> None:
    folder, outputs = everything
    found = jobs.fit(folder, "react", say=lambda _: None).detector
    np.testing.assert_allclose(found.score(outputs), make_detector("react").fit(outputs).score(outputs), rtol=1e-9)
    sentence = (
        r"react must see all rows at once \(it learns percentiles.*\): they take 18kB of memory, and the bound is "
        r"5kB \(as given\)\. Pass memory='18kB' or more, or give a sample of the rows, or choose"
    )
    with pytest.raises(ns.InvalidInput, match=sentence):
        jobs.fit(folder, "react", memory="5 kB")
    said: list[str] = []
    jobs.fit(folder, "react", engine=local, say=said.append)
    assert any("read by this process, without workers" in text for text in said)


def test_a_file_is_opened_once_by_a_job(
    everything: tuple[Path, ns.ModelOutputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = everything
    opened: list[str] = []
    really = parquet.open_parquet

    def counted(source: Any) -> Any:
        opened.append(source.shown)
        return really(source)

    monkeypatch.setattr(parquet, "open_parquet", counted)
    for paths, n in ((folder / "0.parquet", 1), (folder, 3)):
        for name in (None, "norm_scaling", "auto"):
            fitted = jobs.fit(paths, name, say=lambda _: None).detector
            assert len(opened) == n
            opened.clear()
        jobs.score(paths, fitted, tmp_path / "scores.csv")
        assert len(opened) == n
        opened.clear()


def test_auto_chooses_by_all_files(everything: tuple[Path, ns.ModelOutputs]) -> None:
    folder, _ = everything
    found = jobs.fit(folder, "auto").detector
    assert found.name == "stream_aware+ensemble"
    assert found.about.reason == "the default: there are logits, features and the head"


def test_probabilities_and_a_threshold_over_many_files(tmp_path: Path) -> None:
    rows = logits_of(600, dtype=np.float64)
    shares = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    for number in range(3):
        write_logits(tmp_path / f"{number}.parquet", shares[200 * number : 200 * number + 200])
    files = [tmp_path / f"{number}.parquet" for number in range(3)]
    with pytest.raises(ns.InvalidInput, match=r"0\.parquet holds probabilities.*probabilities=True takes"):
        jobs.fit(files, "energy")
    said: list[str] = []
    result = jobs.fit(
        files[:2], "msp", probabilities=True, threshold_on=files[2], keep=0.9, say=said.append, class_names=None
    )
    limit = result.detector.threshold_
    assert limit is not None
    assert (limit.keep, limit.n, result.n_rows) == (0.9, 200, 400)
    assert limit.value == ns.MSP().fit(rows[:400]).set_threshold(np.log(shares[400:]), 0.9).threshold_.value  # type: ignore[union-attr]


def test_a_script_without_a_main_block_is_told_so(tmp_path: Path) -> None:
    write_folder(tmp_path / "in")
    script = tmp_path / "job.py"
    script.write_text(
        "from normscale import jobs\n"
        f"jobs.fit({str(tmp_path / 'in')!r}, 'norm_scaling', engine='local', workers=1, piece_rows=100)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    assert 'Put what it does under `if __name__ == "__main__":`' in done.stderr
    assert "Is memory short" not in done.stderr


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_bad_rows_are_named_or_skipped_and_listed(tmp_path: Path, engine: Engine, dtype: Any) -> None:
    rows = logits_of(300, dtype=dtype)
    bad = rows.copy()
    bad[[120, 299], [1, 4]] = np.nan, np.inf
    write_logits(tmp_path / "a.parquet", rows)
    write_logits(tmp_path / "b.parquet", bad)
    detector = ns.NormScaling()
    with pytest.raises(ns.InvalidInput, match=r"b\.parquet: row (120|299) holds (NaN|infinity) in column . of logits"):
        jobs.fit(tmp_path, detector, engine=engine, piece_rows=100)
    assert not detector._is_fitted
    result = jobs.fit(tmp_path, detector, engine=engine, piece_rows=100, on_invalid="skip")
    where = str(tmp_path / "b.parquet")
    assert result.skipped == jobs.Skipped(2, ((where, 120), (where, 299)))
    assert result.n_rows == 598
    whole = ns.NormScaling().fit(np.concatenate([rows, np.delete(bad, [120, 299], axis=0)]))
    np.testing.assert_allclose(detector.score(rows), whole.score(rows), rtol=1e-11)


def test_errors_of_workers_are_errors_here(tmp_path: Path, engine: Engine) -> None:
    write_logits(tmp_path / "a.parquet", logits_of(50))
    with pytest.raises(ns.InvalidInput, match="reads features"):
        jobs.fit(tmp_path, "mahalanobis", engine=engine)
    with pytest.raises(ns.InvalidInput, match="on_invalid must be"):
        jobs.fit(tmp_path, "msp", engine=engine, on_invalid="ignore")


def test_an_unknown_engine_and_an_address_without_a_cluster() -> None:
    with pytest.raises(ns.InvalidInput, match="engine must be"), jobs.open_engine("dask"):
        pass
    with pytest.raises(ns.InvalidInput, match="address is that of"), jobs.open_engine("local", address="auto"):
        pass


@pytest.mark.skipif(not HAS_RAY, reason=WHY_SKIPPED)
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_answers_is_told_at_once(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # the tests' own cluster may be up
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray would try for minutes"))
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(EngineFailed, match=f"no Ray cluster answers at {address}"),
            jobs.open_engine("ray", address=address),
        ):
            pass


def test_one_piece_is_reported_too() -> None:
    seen: list[jobs.Progress] = []
    jobs.fit("sample:train", "norm_scaling", tick=seen.append)
    assert [(one.pieces, one.n_pieces) for one in seen] == [(1, 1)]


def test_progress_tells_rows_and_time_left(tmp_path: Path, local: Engine) -> None:
    write_folder(tmp_path / "in")
    seen: list[jobs.Progress] = []
    jobs.fit(tmp_path / "in", "norm_scaling", engine=local, piece_rows=100, tick=seen.append)
    assert [progress.pieces for progress in seen] == list(range(1, 13))
    assert seen[-1].rows == 1151
    assert seen[-1].share == 1.0
    assert seen[0].n_pieces == 12
    assert seen[0].rows_per_second > 0


def test_lists_of_numbers_are_arrays_too(tmp_path: Path, local: Engine) -> None:
    rows = logits_of(90)
    for number in range(2):
        pq.write_table(pa.table({"logits": list(rows[45 * number : 45 * number + 45])}), tmp_path / f"{number}.parquet")
    found = jobs.fit(tmp_path, "norm_scaling", engine=local).detector
    np.testing.assert_allclose(found.score(rows), ns.NormScaling().fit(rows).score(rows), rtol=1e-11)


def test_the_default_of_one_file_here_is_that_of_many_on_ray(
    everything: tuple[Path, ns.ModelOutputs], local: Engine, ray_engine: Engine, tmp_path: Path
) -> None:
    folder, outputs = everything
    ns.write_table(tmp_path / "one.parquet", outputs)
    options: dict[str, Any] = {"piece_rows": 170, "say": lambda _: None}
    one = jobs.fit(tmp_path / "one.parquet", engine=local, **options).detector
    many = jobs.fit(sorted(folder.glob("*.parquet")), engine=ray_engine, **options).detector
    assert one._pack() == many._pack()


def test_a_misspelled_option_is_refused() -> None:
    with pytest.raises(TypeError, match="memroy"):
        jobs.fit("sample:train", "energy", memroy="1GB")
