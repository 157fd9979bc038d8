"""The stress grid against a slow loop of its own, and what must hold for every grid."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import normscale as ns
from bench.experiments.stress_rows import stress_row
from normscale.bench.experiments.measurement import Measurement, StreamKind
from normscale.bench.experiments.streams import ClassBalance, Streams, all_kinds
from normscale.bench.experiments.stress import GRID, stress
from normscale.bench.experiments.stress_result import StressResult, load_stress, summarise
from normscale.bench.paper.presets import FROZEN, RUNNING, STATICS, own_methods
from normscale.detectors.base import Detector
from normscale.outputs import ModelOutputs


def stream_of(row: Measurement) -> StreamKind:
    assert row.stream is not None
    return row.stream


SMALL = all_kinds((0.2, 0.5), balances=("balanced", "one class 80 %"))


def outputs(n: int, seed: int, shift: float = 3.0, *, labelled: bool = True) -> ns.ModelOutputs:
    """Logits of a four-class network; ``shift`` says how sure it is."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 4
    logits = rng.normal(size=(n, 4)) + shift * np.eye(4)[labels]
    return ns.ModelOutputs(logits, features=logits[:, :3], labels=labels if labelled else None)


TRAIN, ID = outputs(200, 0), outputs(80, 1)
OOD = {"near": outputs(70, 2, 1.5, labelled=False), "far": outputs(40, 3, 0.0, labelled=False)}


WEIGHTS = {"w=1": 1.0, "w=100": 100.0, "w=train": 200.0, "frozen": math.inf}
MEASURED = (("msp", "w=1"), ("max_logit", "w=100"), ("energy", "w=train"), ("msp", "frozen"))


@pytest.fixture(name="result", scope="module")
def _result() -> StressResult:
    scaled: dict[str, Detector] = {
        f"norm_scaling {score} {prior}": ns.NormScaling(score, WEIGHTS[prior]).fit(TRAIN) for score, prior in MEASURED
    }
    return stress(ID, OOD, {**scaled, **own_methods(TRAIN)}, kinds=SMALL, seed=4)


def slow_scores(rows: NDArray[np.float64], weight: float, score: str) -> NDArray[np.float64]:
    """Norm-scaling by the paper, from a list of everything seen so far."""
    mean, variance = TRAIN.logits.mean(axis=0), TRAIN.logits.var(axis=0)
    found = []
    for t in range(1, len(rows) + 1):
        if math.isfinite(weight):
            seen = rows[:t]
            now = (weight * mean + seen.sum(axis=0)) / (weight + t)
            squares = weight * (variance + mean**2) + (seen**2).sum(axis=0)
            deviation = np.sqrt(squares / (weight + t) - now**2)
        else:
            now, deviation = mean, np.sqrt(variance)
        z = np.sort((rows[t - 1] - now) / deviation)
        found.append(
            -z[-1] if score == "max_logit"
            else -np.log(np.exp(z).sum()) if score == "energy"
            else np.log(np.exp(z[:-1]).sum()) - z[-1]
        )  # fmt: skip
    return np.array(found)


def slow_numbers(scores: NDArray[np.float64], is_ood: NDArray[np.bool_]) -> tuple[float, float]:
    """AUROC over all pairs; FPR at the highest threshold that catches 95 % of OoD."""
    id_side, ood_side = scores[~is_ood], scores[is_ood]
    wins = (ood_side[:, None] > id_side).mean() + 0.5 * (ood_side[:, None] == id_side).mean()
    caught = [t for t in ood_side if (ood_side >= t).mean() >= 0.95 - 1e-12]
    return float(wins), float((id_side >= max(caught)).mean())


@pytest.mark.parametrize("cell", SMALL)
@pytest.mark.parametrize("name", OOD)
def test_a_cell_equals_a_slow_loop_over_its_streams(result: StressResult, name: str, cell: StreamKind) -> None:
    rows = {row.method: row for row in result.rows if row.ood_set == name and row.stream == cell}
    pool = ClassBalance(ID.labels if ID.labels is not None else [], cell.balance, seed=4)
    everything = np.concatenate([ID.logits, OOD[name].logits])
    draws = rows[RUNNING].draws
    assert draws == math.ceil(200 / rows[RUNNING].n_ood)
    for score, prior in MEASURED:
        expected = []
        for draw in range(draws):
            streams = Streams(len(ID), cell.share, pool, seed=4)
            id_rows, ood_rows = streams.rows(len(OOD[name]), draw)
            stream = streams.arrange(id_rows, ood_rows, cell.order, draw)
            scores = slow_scores(everything[stream], WEIGHTS[prior], score)
            expected.append(slow_numbers(scores, stream >= len(ID)))
        row = rows[f"norm_scaling {score} {prior}"]
        np.testing.assert_allclose((row.auroc, row.fpr95_out), np.mean(expected, axis=0), rtol=1e-9)
        assert row.parameters.items() >= {"score": score, "prior_weight": WEIGHTS[prior], "temperature": 1.0}.items()
        assert (row.seed, row.skipped, row.classes) == (4, "", pool.chosen)
        assert row.n_ood / (row.n_ood + row.n_id) == pytest.approx(cell.share)


def test_the_order_moves_running_statistics_and_nothing_else(result: StressResult) -> None:
    for method in result.methods:
        by_stream: dict[tuple[str, float, str], set[float]] = {}
        for row in result.rows:
            if row.method == method:
                kind = stream_of(row)
                by_stream.setdefault((row.ood_set, kind.share, kind.balance), set()).add(row.auroc)
        different = [len(values) > 1 for values in by_stream.values()]
        assert any(different) == (method in result.in_setting("stream")), method


def test_the_grid_is_whole_and_in_order(result: StressResult) -> None:
    assert len(result.rows) == 2 * 2 * 4 * 2 * 12
    assert len({(row.ood_set, row.stream, row.method) for row in result.rows}) == len(result.rows)
    assert result.methods[4:] == [FROZEN, RUNNING, "norm_scaling:prior_weight=1000", "robust_norm_scaling",
                                  "stream_aware+energy", "msp", "max_logit", "energy"]  # fmt: skip
    assert result.titles[FROZEN] == "Norm-Scaling, frozen"
    assert list(dict.fromkeys(row.stream for row in result.rows)) == list(result.means()) == SMALL
    assert result.ood_sets == ["near", "far"]
    assert result.settings == {"seed": 4, "n_id": 80, "ood_sets": {"near": 70, "far": 40}, "id_classes": "labels"}
    assert len(GRID) == 60


def test_threads_and_repetition_change_nothing_and_a_seed_does(result: StressResult) -> None:
    methods = own_methods(TRAIN)
    again = stress(ID, OOD, methods, kinds=SMALL, seed=4, threads=3)
    assert again.rows == [row for row in result.rows if row.method in methods]
    assert stress(ID, OOD, methods, kinds=SMALL, seed=4).rows == again.rows
    assert stress(ID, OOD, methods, kinds=SMALL, seed=5).rows != again.rows


def test_detectors_are_left_as_they_were() -> None:
    methods = own_methods(TRAIN)
    running = methods[RUNNING]
    assert isinstance(running, ns.NormScaling)
    stress(ID, OOD, methods, kinds=SMALL)
    assert running.n_streamed_ == 0


def test_what_runs() -> None:
    assert ns.NormScaling()._runs
    assert not ns.NormScaling(prior_weight=math.inf)._runs
    assert not ns.Energy()._runs


def test_any_detector_takes_part_and_a_static_one_is_scored_once_per_set() -> None:
    class Counting(ns.Energy):
        calls = 0

        def _score(self, outputs: ModelOutputs, threads: int) -> NDArray[np.float64]:
            type(self).calls += 1
            return super()._score(outputs, threads)

    methods: dict[str, Detector] = {"mine": Counting().fit(TRAIN), "distance": ns.Mahalanobis().fit(TRAIN)}
    found = stress(ID, OOD, methods, kinds=SMALL)
    assert Counting.calls == 3
    everything = all_kinds((0.5,), ("shuffled",), ("balanced",))
    equal = ns.ModelOutputs(OOD["near"].logits, OOD["near"].features)
    equal = ns.ModelOutputs.concatenate([equal, equal[:10]])  # as many as ID rows: all take part
    (row,) = stress(ID, {"all": equal}, {"distance": methods["distance"]}, kinds=everything).rows
    expected = ns.evaluate(methods["distance"].score(ID), methods["distance"].score(equal))
    assert (row.auroc, row.fpr95_out) == pytest.approx((expected.auroc, expected.fpr95_out), rel=1e-12)
    assert (row.n_id, row.n_ood, row.draws) == (80, 80, 3)
    assert {row.method for row in found.rows} == {"mine", "distance"}


def test_a_cell_without_enough_rows_is_skipped_with_its_reason() -> None:
    kinds = all_kinds((0.001, 0.5), ("shuffled", "bursts"), ("balanced",))
    result = stress(ID, {"far": OOD["far"]}, own_methods(TRAIN), kinds=kinds)
    skipped = [row for row in result.rows if stream_of(row).share == 0.001]
    assert len(skipped) == 2 * 8
    assert all(math.isnan(row.auroc) and math.isnan(row.fpr95_out) and row.draws == 0 for row in skipped)
    reason = "an OoD share of 0.1 % needs 999 ID rows, and the ID set suffices for 80 (balanced)"
    assert result.skipped() == {reason: 2}
    assert {cell.share for cell in result.means()} == {0.5}


def test_predicted_classes_stand_in_for_labels() -> None:
    unlabelled = ns.ModelOutputs(ID.logits)
    methods = {"energy": ns.Energy()}
    kinds = all_kinds((0.5,), ("shuffled",), ("one class missing",))
    predicted = ns.ModelOutputs(ID.logits, labels=ID.predicted)
    one, other = (stress(data, OOD, methods, kinds=kinds) for data in (unlabelled, predicted))
    assert one.rows == other.rows
    assert one.settings["id_classes"] == "predicted"


def test_mistakes_are_named() -> None:
    methods = own_methods(TRAIN)
    with pytest.raises(ns.InvalidInput, match="ood_sets is empty"):
        stress(ID, {}, methods)
    with pytest.raises(ns.InvalidInput, match="methods is empty"):
        stress(ID, OOD, {})
    with pytest.raises(ns.InvalidInput, match="wide has 5 classes and the ID set has 4"):
        stress(ID, {"wide": ns.ModelOutputs(np.zeros((30, 5)))}, methods)
    bad = OOD["near"].logits.copy()
    bad[17, 3] = np.nan
    with pytest.raises(ns.InvalidInput, match="photos: logits row 17 holds NaN in column 3"):
        stress(ID, {"photos": ns.ModelOutputs(bad)}, methods)
    with pytest.raises(ns.InvalidInput, match="logits of none must have at least 1 row"):
        stress(ID, {"none": ns.ModelOutputs(np.zeros((0, 4)))}, methods)
    with pytest.raises(ns.InvalidInput, match="threads must be a whole number >= 1; got 0"):
        stress(ID, OOD, methods, threads=0)
    with pytest.raises(ns.NotFitted):
        stress(ID, OOD, {"new": ns.NormScaling()}, kinds=SMALL)


def test_rows_come_back_from_their_file(result: StressResult, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    result.save(path)
    assert load_stress(path) == result
    assert next(row for row in load_stress(path).rows if row.method == FROZEN).parameters["prior_weight"] == math.inf
    record = json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["version"] == ns.__version__
    skipped = stress(ID, OOD, {"msp": ns.MSP()}, kinds=all_kinds((0.001,), ("shuffled",), ("balanced",)))
    skipped.save(path)
    back = load_stress(path)
    assert math.isnan(back.rows[0].auroc)
    assert back.skipped() == skipped.skipped()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "message"),
    (
        ("logits", "is not JSON"),
        ("[1, 2]", "not the rows of a stress grid"),
        ('{"kind": "recipe"}', "not the rows of a stress grid"),
        (
            '{"kind": "normscale stress grid", "format": 99, "version": "9.0"}',
            "cannot be read by this version: format 99 of version 9.0",
        ),
        (
            '{"kind": "normscale stress grid", "format": 2, "version": "9.0", "fields": ["a"], "rows": []}',
            "format 2 of version 9.0",
        ),
    ),
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(ns.FileFormatError, match=message):
        load_stress(path)


def test_a_cut_file_and_a_missing_one_are_refused(result: StressResult, tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    with pytest.raises(ns.FileFormatError, match="no such file"):
        load_stress(path)
    result.save(path)
    whole = path.read_text()
    path.write_text(whole[:-100])
    with pytest.raises(ns.FileFormatError, match="is not JSON"):
        load_stress(path)
    path.write_text(whole.replace('["near", ', "[", 1))
    with pytest.raises(ns.FileFormatError, match="cannot be read by this version"):
        load_stress(path)


def made(auroc: dict[str, dict[str, dict[float, float]]]) -> StressResult:
    """A grid by OoD set, method and share (balanced, shuffled); its FPR95 is 1 - AUROC."""
    return StressResult(
        [
            stress_row(method, value, 1 - value, StreamKind(share, "shuffled", "balanced"), name)
            for name, methods in auroc.items()
            for method, shares in methods.items()
            for share, value in shares.items()
        ]
    )


def test_a_method_without_numbers_in_one_stream_is_not_summarised() -> None:
    whole = made({"a": {"energy": {0.1: 0.8, 0.5: 0.8}, "msp": {0.1: 0.9, 0.5: 0.9}, RUNNING: {0.1: 0.7, 0.5: 0.9}}})
    rows = [
        row._replace(metrics=dict.fromkeys(row.metrics, math.nan), skipped="no class is predicted on both sides")
        if row.method == "msp" and row.stream == StreamKind(0.5, "shuffled", "balanced")
        else row
        for row in whole.rows
    ]
    assert summarise(StressResult(rows)) == summarise(whole.without(["msp"]))
    assert StressResult(rows).incomplete() == {"msp": "no class is predicted on both sides"}
    assert whole.incomplete() == {}


def test_the_summary_is_computed_as_defined() -> None:
    result = made(
        {
            "a": {
                "energy": {0.1: 0.80, 0.5: 0.82}, FROZEN: {0.1: 0.84, 0.5: 0.80},
                RUNNING: {0.1: 0.72, 0.5: 0.92}, "mine": {0.1: 0.835, 0.5: 0.90},
            },
            "b": {
                "energy": {0.1: 0.90, 0.5: 0.88}, FROZEN: {0.1: 0.80, 0.5: 0.86},
                RUNNING: {0.1: 0.80, 0.5: 0.98}, "mine": {0.1: 0.845, 0.5: 0.96},
            },
        }
    )  # fmt: skip
    # means: energy .85 .85; frozen .82 .83; running .76 .95; mine .84 .93; the best static is energy in both cells
    found = {one.method: one for one in summarise(result, STATICS)}
    assert [one.method for one in summarise(result)] == ["mine", RUNNING, "energy", FROZEN]
    mine = found["mine"]
    assert mine.worst == pytest.approx(-0.01)
    assert mine.worst_kind == StreamKind(0.1, "shuffled", "balanced")
    assert (mine.kinds_below, mine.n_kinds) == (1, 2)
    assert (mine.mean_auroc, mine.mean_fpr95_out) == pytest.approx((0.885, 0.115))
    assert found["energy"].kinds_below == 0
    assert found[FROZEN].kinds_below == 2
    with pytest.raises(ns.InvalidInput, match="a summary needs a stream with numbers and one of the methods msp"):
        summarise(made({"a": {"mine": {0.5: 0.9}}}), STATICS)
    with pytest.raises(ns.InvalidInput, match="one of the methods that do not run"):
        summarise(made({"a": {"mine": {0.5: 0.9}}}))
