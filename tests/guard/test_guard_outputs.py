"""A guard of any detector: named arrays in, a verdict out, whatever the detector reads."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.foreign import NearestNeighbour, RunningNeighbour, fitted
from guard.guards import IGNORE, detector, digits, guard, one_class, sample, send
from normscale.detectors.base import Detector
from normscale.errors import InvalidInput, MissingOutput
from normscale.guard import Guard, Policy, Request, Verdict, open_guard, open_store
from normscale.guard.drift import DriftMonitor
from normscale.guard.pipe import watch_pipe
from normscale.state import record_arrays, same_records
from running_norm import RunningNorm, Shifted

SAMPLE = ns.load_sample()
READERS = ("mahalanobis", NearestNeighbour.name, RunningNeighbour.name, RunningNorm.name, Shifted.name)


def made_by_name(name: str) -> Detector:
    return fitted(name, **({"shrinkage": "oas"} if name == "mahalanobis" else {}))


@pytest.mark.parametrize("name", READERS)
def test_a_detector_that_reads_features_stands_guard(tmp_path: Path, name: str) -> None:
    made, twin, rows = made_by_name(name), made_by_name(name), sample().test[:60]
    on = guard(tmp_path / "s", IGNORE, made)
    assert list(on.widths) == list(dict.fromkeys(("logits", *made.reads)))
    verdict = on.score(rows, client="camera-7")
    expected = twin.stream(rows)
    np.testing.assert_allclose(verdict.scores, expected, rtol=1e-12)
    assert verdict.is_ood.tolist() == twin.predict(rows, scores=expected).tolist()
    assert verdict.predicted.tolist() == rows.predicted.tolist()
    assert verdict.mode == ("running" if twin._runs else "static")
    if verdict.mode == "static":
        assert on.score(sample().ood["photo_patches"][:50]).is_ood.mean() > 0.5


@pytest.mark.parametrize("name", READERS)
def test_it_goes_on_to_the_bit_after_a_restart(tmp_path: Path, name: str) -> None:
    made, rows = made_by_name(name), sample().test
    never_killed = guard(tmp_path / "a", IGNORE, made)
    for i in range(0, 70, 7):
        killed = guard(tmp_path / "b", IGNORE, made)  # opened anew each time, never closed in order
        one, other = never_killed.score(rows[i : i + 7]), killed.score(rows[i : i + 7])
        assert one.scores.tolist() == other.scores.tolist()
    assert killed.state.stream.rows == 70
    for key, array in record_arrays(never_killed.state.stream.statistics.state).items():
        assert array.tolist() == record_arrays(killed.state.stream.statistics.state)[key].tolist(), key


def test_a_missing_array_is_named_and_a_bad_number_in_any_array_refuses() -> None:
    on, rows = guard(made=made_by_name("mahalanobis")), sample().test[:4]
    with pytest.raises(MissingOutput, match="features is missing: mahalanobis needs logits and features; got logits"):
        on.score(rows.only("logits"))
    with pytest.raises(InvalidInput, match=r"features must have .*24"):
        on.score(ns.ModelOutputs(rows.logits, np.ones((4, 24))))
    spoilt = rows.features.astype(np.float64)
    spoilt[2, 1] = np.nan
    for bad in (np.nan, np.inf, -np.inf, 1e200):
        spoilt[2, 1] = bad
        with pytest.raises(InvalidInput, match="features"):
            on.score(rows.replace(features=spoilt))
    good, refused = on.process([Request(rows), Request(rows.replace(features=spoilt))])
    assert isinstance(good, Verdict)
    assert isinstance(refused, InvalidInput)
    assert on.state.stream.rows == 4


def test_plain_logits_are_enough_for_a_detector_of_logits() -> None:
    on = guard(policy=IGNORE)
    assert on.score(digits(3)).taken_in == 3
    assert on.score({"logits": digits(2).tolist()}).rows == 5
    with pytest.raises(InvalidInput):
        on.score(np.full((1, 8), np.nan))


def test_lines_with_features_go_through_the_pipe() -> None:
    rows, out = sample().test[:5], io.BytesIO()
    documents = [{"id": i, "logits": z.tolist(), "features": f.tolist()}
                 for i, (z, f) in enumerate(zip(rows.logits, rows.features, strict=True))]  # fmt: skip
    text = b"".join(json.dumps(document).encode() + b"\n" for document in documents)
    assert watch_pipe(guard(made=made_by_name("mahalanobis")), io.BytesIO(text), out).rows == 5
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [answer["id"] for answer in answers] == list(range(5))
    np.testing.assert_allclose([answer["score"] for answer in answers], made_by_name("mahalanobis").score(rows))
    with pytest.raises(InvalidInput, match=r"line 1: .*features is not there"):
        watch_pipe(guard(made=made_by_name("mahalanobis")), io.BytesIO(b'{"logits": [1]}'), io.BytesIO())
    buffer = io.BytesIO()
    np.save(buffer, rows.logits)
    with pytest.raises(InvalidInput, match="send JSON lines"):
        watch_pipe(guard(made=made_by_name("mahalanobis")), io.BytesIO(buffer.getvalue()), io.BytesIO())


def test_a_detector_that_is_refused_leaves_no_store(tmp_path: Path) -> None:
    for wrong in (ns.NormScaling().fit(sample().train), ns.MSP()):
        with pytest.raises(ns.NormscaleError):
            open_guard(wrong, tmp_path / "s.sqlite")
    with pytest.raises(InvalidInput, match="window"):
        open_guard(detector(), tmp_path / "s.sqlite", Policy(window=-1.0))
    assert list(tmp_path.iterdir()) == []
    open_guard(detector(), tmp_path / "s.sqlite").store.close()
    with pytest.raises(InvalidInput, match="another detector"):
        open_guard(detector("energy"), tmp_path / "s.sqlite")


def test_drift_readings_are_computed_once_per_block(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    read = DriftMonitor.readings

    def counted(self: DriftMonitor, recent: Any, running: Any) -> Any:
        calls.append(recent.moments.weight)
        return read(self, recent, running)

    on = guard(policy=Policy())
    for seed in range(3):
        with monkeypatch.context() as counting:
            counting.setattr(DriftMonitor, "readings", counted)
            rows = digits(100, seed=seed)
            rows[0] = 1e6  # in two parts: taken in, and kept out
            send(on, rows)
        assert len(on.readings()) == 4  # there is not enough evidence for the others
    assert len(calls) == 3
    assert on.state.kept_out == 3


def test_recent_rows_are_the_same_for_those_who_read_them(tmp_path: Path) -> None:
    writer, reader = guard(tmp_path / "s"), guard(tmp_path / "s")
    rows = digits(100).astype(np.float64)
    rows[7] = 1e9  # an outlier
    for _ in range(3):
        send(writer, rows)
    send(writer, one_class(700))
    reader.refresh()
    mine, others = (one.state.stream for one in (writer, reader))
    assert same_records(mine.recent, others.recent)
    assert mine._replace(statistics=None, recent=None) == others._replace(statistics=None, recent=None)  # type: ignore[arg-type]
    assert writer.state._replace(stream=others) == reader.state


SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from guard.guards import IGNORE, detector, digits, guard
from normscale import _kernels
from normscale.state import record_arrays
made = detector(sys.argv[2])
try:
    on = guard(sys.argv[1], IGNORE, made)
except ValueError as error:
    sys.exit(str(error))
if sys.argv[3] == "write":
    for i in range(40):
        on.score(digits(25, seed=i))
print({{name: array.tobytes().hex() for name, array in record_arrays(on.state.stream.statistics.state).items()}})
"""


@pytest.mark.parametrize("name", ("norm_scaling", "robust_norm_scaling"))
def test_kernels_of_either_kind_read_the_writers_bits(tmp_path: Path, name: str) -> None:
    pytest.importorskip("numba")
    detector(name).save(tmp_path / "fitted")

    def run(kernels: str, what: str) -> tuple[str, str]:
        script = SCRIPT.format(folder=str(Path(__file__).parents[1]))
        command = [sys.executable, "-c", script, str(tmp_path / "s"), name]
        environment = {**os.environ, "NORMSCALE_KERNELS": kernels}
        done = subprocess.run(
            [*command, what], env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        return done.stdout, done.stderr

    written, _ = run("numpy", "write")
    assert written
    assert run("numpy", "read")[0] == written
    assert run("numba", "read")[0] == written


def test_the_guard_itself_takes_an_open_store() -> None:
    assert Guard(detector(), open_store(":memory:")).state.stream.rows == 0


def test_a_row_far_out_in_any_array_that_is_read_is_flagged_and_not_taken_in() -> None:
    detector = ns.make_detector("react+norm_scaling").fit(SAMPLE.train).set_threshold(SAMPLE.validation)
    on = Guard(detector, open_store(":memory:"))
    on.score(SAMPLE.validation[:50])
    strange = SAMPLE.test[:1].replace(features=np.full((1, 32), -1000.0))
    verdict = on.score(strange)
    assert (verdict.taken_in, verdict.is_ood.tolist()) == (0, [True])
    assert on.score(SAMPLE.test).mode == "running"  # before, that one row froze it


def test_stores_of_one_detector_fitted_on_other_rows_are_told_apart(tmp_path: Path) -> None:
    energy = ns.Energy().fit(SAMPLE.train).set_threshold(SAMPLE.validation)
    open_guard(energy, tmp_path / "s.sqlite").store.close()
    other = ns.Energy().fit(SAMPLE.train.logits[:, :5]).set_threshold(SAMPLE.validation.logits[:, :5])
    with pytest.raises(InvalidInput, match="another detector"):
        open_guard(other, tmp_path / "s.sqlite")


def test_the_default_stands_guard_through_a_restart(tmp_path: Path) -> None:
    """Logits, features and the head: all four members, made stream-aware, as `normscale fit` gives them."""
    made = ns.fit(SAMPLE.train).set_threshold(SAMPLE.validation)
    assert made.reads == ("logits", "features")
    rows = SAMPLE.test.only("logits", "features")
    first = guard(tmp_path / "s", IGNORE, made)
    given = np.concatenate([first.score(rows[:100]).scores, first.score(rows[100:200]).scores])
    first.store.close()
    again = guard(tmp_path / "s", IGNORE, made)
    assert again.state.stream.rows == 200
    given = np.concatenate([given, again.score(rows[200:300]).scores])
    np.testing.assert_allclose(given, made.reset().stream(rows[:300]), rtol=1e-12)
    with pytest.raises(MissingOutput, match="features is missing"):
        again.score(rows.logits[:1])
