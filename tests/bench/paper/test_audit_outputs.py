"""What the audit measures on outputs: against slow oracles, and on logits made so that the truth is known."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, roc_auc_score

import normscale as ns
from bench.experiments.stress_rows import stress_row
from normscale.bench.experiments.measurement import StreamKind
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.paper.audit import DIFFERS, HOLDS, POINTS, UNCHECKED, VERDICTS, audit, audit_outputs, outputs
from normscale.bench.paper.audit.outputs import (
    Given,
    check_calibration,
    check_positive,
    check_saturation,
    check_shares,
    check_update,
    float32_msp,
)
from normscale.bench.paper.published import paper_value
from oracles import streamed

Floats = NDArray[np.float64]
UNIT_TRAIN = ns.ModelOutputs([[1.0, -1.0], [-1.0, 1.0]])
"""Mean 0 and deviation 1 in both classes: norm-scaling leaves logits as they are."""


@pytest.fixture(name="sample", scope="module")
def _sample() -> Given:
    sample = ns.load_sample()
    return Given(sample.train, sample.test, sample.ood)


def margins(*values: float) -> ns.ModelOutputs:
    """Two-class logits with these distances between the two."""
    return ns.ModelOutputs(np.array([[value / 2, -value / 2] for value in values]))


def shuffled(test: Floats, ood: Floats, seed: int = 0) -> tuple[Floats, NDArray[np.intp]]:
    rows = np.concatenate([test, ood])
    order = np.random.default_rng(seed).permutation(len(rows))
    return rows[order], order


def test_every_reading_of_the_update_against_one_row_at_a_time() -> None:
    sample = ns.load_sample()
    test, ood = sample.test[:80], sample.ood["photo_patches"][:60]
    train = sample.train.logits.astype(np.float64)
    given = Given(sample.train, test, {"patches": ood})
    (row,) = check_update(given)[1].details
    rows, order = shuffled(test.logits.astype(np.float64), ood.logits.astype(np.float64))
    is_ood = order >= 80
    mean, variance = train.mean(axis=0), train.var(axis=0)
    for name, weight in (("running_mean", 1.0), ("training_size", float(len(train)))):
        scores, _, _ = streamed(rows, weight, mean, weight * variance, "msp")
        assert row[name] == round(float(roc_auc_score(is_ood, scores)), 4)
    for name, logits in (("frozen", (rows - mean) / np.sqrt(variance)), ("msp", rows)):
        top = np.exp(logits).max(axis=1) / np.exp(logits).sum(axis=1)
        assert row[name] == round(float(roc_auc_score(is_ood, -top)), 4)
    mu, var = mean, variance
    printed: list[float] = []
    for t, z in enumerate(rows, start=1):
        mu = (mu + z) / (t + 1)
        var = (var + (z - mu) ** 2) / (t + 1)
        powers = np.sort(((z - mu) / np.sqrt(var)).astype(np.longdouble))
        printed.append(float(np.log(np.exp(powers[:-1] - powers[-1]).sum())))
    assert row["as_printed"] == round(float(roc_auc_score(is_ood, printed)), 4)


def test_the_running_mean_is_the_stream_of_the_comparison(sample: Given) -> None:
    from normscale.bench.experiments.comparison import compare

    rows = compare(sample.test, sample.ood, train=sample.train, detectors=[ns.NormScaling()])
    settings = {(row.ood_set, row.setting): round(row.auroc, 4) for row in rows}
    for row in check_update(sample)[1].details:
        assert (row["running_mean"], row["frozen"]) == tuple(settings[row["ood_set"], s] for s in ("stream", "frozen"))


def test_the_printed_update_is_refused_on_the_sample(sample: Given) -> None:
    statistics, ranking = check_update(sample)
    assert statistics.verdict == ranking.verdict == DIFFERS
    for row in statistics.details:
        column = sample.test.logits[:, row["class"]].astype(np.float64)
        prior = float(sample.train.logits[:, row["class"]].astype(np.float64).mean())
        assert row["running_mean"] == pytest.approx((prior + column.sum()) / (len(column) + 1), abs=1e-4)
        assert abs(row["printed_mean"]) < 0.05, "the sum of two rows or so, divided by 363"


def test_after_one_row_the_printed_update_is_a_running_mean() -> None:
    """(mu_0 + z) / 2 is the mean of two; at z = mu_0 the deviations agree as well."""
    one = ns.ModelOutputs([[0.0, 0.0]])
    assert check_update(Given(UNIT_TRAIN, one, {"other": one}))[0].verdict == HOLDS
    off = ns.ModelOutputs([[1.0, 0.0]])
    assert check_update(Given(UNIT_TRAIN, off, {"other": one}))[0].verdict == DIFFERS, "the deviations do not"


def test_the_papers_figures_stand_beside_ours_when_the_sets_are_the_papers(sample: Given) -> None:
    ood = {"gaussian": sample.ood["gaussian_noise"], "patches": sample.ood["photo_patches"]}
    ranking = check_update(sample._replace(ood=ood, in_set="cifar10"))[1]
    value = paper_value("cifar10", "gaussian", "norm_scaling", "auroc")
    assert value is not None
    assert [row["paper"] for row in ranking.details] == [value.mean, None]
    assert ranking.paper == f"mean AUROC {value.mean:.3f} on 1 of the sets"
    assert "paper" not in check_update(sample)[1].details[0]


def test_which_inputs_saturate_is_known() -> None:
    # 1 + exp(-m) rounds to 1 in float32 from m = log(2**24) = 16.6 on
    inside, outside = margins(10, 15, 19, 20), margins(17.5, 18, 18.5)
    np.testing.assert_array_equal(float32_msp(inside.logits) == 1.0, [False, False, True, True])
    plain, doubled = check_saturation(Given(UNIT_TRAIN, inside[2:], {"near": outside}))
    assert plain.ours.startswith("100.0 % are exactly 1")
    (row,) = plain.details
    assert (row["auroc_float32"], row["auroc_log"]) == (0.5, 1.0)
    assert (row["fpr95_out_float32"], row["fpr95_out_log"]) == (1.0, 0.0)
    assert plain.verdict == doubled.verdict == DIFFERS
    half = check_saturation(Given(UNIT_TRAIN, inside, {"near": margins(1.0)}))
    assert half[0].ours.startswith("50.0 %")
    assert half[1].ours.startswith("100.0 %"), "10 and 15 become 20 and 30"


def test_small_logits_do_not_saturate() -> None:
    plain, doubled = check_saturation(Given(UNIT_TRAIN, margins(1, 2, 3), {"near": margins(0.5, 1.5)}))
    assert plain.verdict == doubled.verdict == HOLDS
    assert plain.ours == "0.0 % are exactly 1; on near AUROC 0.8333 for 0.8333, FPR95 0.3333 for 0.3333"


def test_the_gain_shrinks_with_the_share_of_ood_on_the_sample(sample: Given) -> None:
    (finding,) = check_shares(sample)
    assert finding.verdict == DIFFERS
    table = {(row["ood_set"], row["share"]): row for row in finding.details}
    assert {share for _, share in table} == {0.01, 0.05, 0.1, 0.25, 0.5}, "0.1 % takes 999 test rows"
    for name, ood in sample.ood.items():
        assert table[name, 0.5]["n_id"] == table[name, 0.5]["n_ood"]
        for detector, key in ((ns.NormScaling(), "frozen"), (ns.Energy(), "energy")):
            detector.fit(sample.train)
            whole = ns.evaluate(detector.score(sample.test), detector.score(ood)).auroc
            assert table[name, 0.5][key] == pytest.approx(whole, abs=0.02), "the same but for the rows drawn"
    gains = [np.mean([r["running"] - r["frozen"] for r in finding.details if r["share"] == s]) for s in (0.01, 0.5)]
    assert f" {gains[0]:+.3f} at 1 % OoD" in finding.ours
    assert f" {gains[1]:+.3f} at 50 % OoD" in finding.ours


@pytest.mark.parametrize(
    ("rare", "common", "verdict"),
    [(0.90, 0.90, HOLDS), (0.885, 0.90, HOLDS), (0.87, 0.90, DIFFERS), (0.70, 0.90, DIFFERS), (0.75, 0.80, HOLDS)],
)
def test_four_fifths_of_the_gain_must_be_left(
    monkeypatch: pytest.MonkeyPatch, sample: Given, rare: float, common: float, verdict: str
) -> None:
    """Frozen statistics have 0.80 throughout; without a gain at 50 % none can be lost."""
    rows = [
        stress_row(method, auroc, kind=StreamKind(share, "shuffled", "balanced"), ood_set="other", n_id=99, n_ood=99)
        for share, running in ((0.01, rare), (0.5, common))
        for method, auroc in (("running", running), ("frozen", 0.8), ("energy", 0.85))
    ]
    monkeypatch.setattr(outputs, "stress", lambda *_, **__: StressResult(rows, {}))
    (finding,) = check_shares(sample._replace(ood={"other": sample.test}))
    assert finding.verdict == verdict
    assert finding.ours.endswith(f"{rare - 0.8:+.3f} at 1 % OoD, {common - 0.8:+.3f} at 50 % OoD")


def test_too_few_rows_for_two_shares_are_said_to_be() -> None:
    tiny = margins(*range(1, 11))
    (finding,) = check_shares(Given(UNIT_TRAIN, tiny, {"tiny": tiny}))
    assert finding.verdict == UNCHECKED


def test_aupr_and_the_size_of_the_ood_set(sample: Given) -> None:
    finding, fpr95 = check_positive(sample)
    assert finding.verdict == HOLDS
    scores = ns.msp_score(sample.test.logits)
    for row in finding.details:
        ood = np.tile(ns.msp_score(sample.ood[row["ood_set"]].logits), row["copies"])
        labels, both = np.r_[np.zeros(len(scores)), np.ones(len(ood))], np.r_[scores, ood]
        assert row["aupr_out"] == pytest.approx(average_precision_score(labels, both), abs=1e-6)
        assert row["aupr_in"] == pytest.approx(average_precision_score(1 - labels, -both), abs=1e-6)
    assert fpr95.verdict == UNCHECKED


@pytest.mark.filterwarnings("ignore:all 1000 training rows are the same:normscale.NumericalWarning")
@pytest.mark.parametrize("swapped", (False, True))
def test_which_fpr95_the_paper_has_is_told_by_distance(swapped: bool) -> None:
    """Energies made so that one FPR95 is near the paper's 0.2773 for energy on SVHN, and the other is not."""
    paper = paper_value("cifar10", "svhn", "energy", "fpr95_out")
    assert paper is not None
    n = 1000
    flagged = round(paper.mean * n)
    inside = np.r_[np.full(flagged, 1.0), np.full(n - flagged, 9.0)]
    outside = np.full(n, 3.0)  # energy below the 1s: as if 27.7 % of ID looked more OoD than every OoD input
    test, ood = (ns.ModelOutputs(np.c_[m, np.zeros(n)]) for m in (inside, outside))
    if swapped:  # now that share of OoD inputs is accepted, and no ID input is flagged but the last 5 %
        test, ood = (ns.ModelOutputs(np.c_[10.0 - m, np.zeros(n)]) for m in (outside, inside))
    result = ns.evaluate(ns.energy_score(test.logits), ns.energy_score(ood.logits))
    near = result.fpr95_in if swapped else result.fpr95_out
    assert near == pytest.approx(flagged / n)
    finding = check_positive(Given(test, test, {"svhn": ood}, in_set="cifar10"))[1]
    energy, streaming = finding.details
    assert (energy["method"], streaming["method"]) == ("energy", "norm_scaling")
    assert (energy["fpr95_out"], energy["fpr95_in"]) == (round(result.fpr95_out, 4), round(result.fpr95_in, 4))
    assert (abs(energy["fpr95_out"] - paper.mean) < abs(energy["fpr95_in"] - paper.mean)) is not swapped
    out, inside_out = (sum(abs(r[k] - r["paper"]) for r in finding.details) for k in ("fpr95_out", "fpr95_in"))
    assert finding.verdict == (HOLDS if out < inside_out else DIFFERS)
    assert finding.verdict == (DIFFERS if swapped else HOLDS)


@pytest.mark.parametrize(("tau", "verdict"), [(1.0, HOLDS), (0.3, DIFFERS), (3.0, DIFFERS)])
def test_the_best_temperature_is_the_one_the_labels_were_drawn_at(tau: float, verdict: str) -> None:
    rng = np.random.default_rng(0)
    margin = rng.uniform(-3, 3, 20000) * tau
    logits = np.c_[margin / 2, -margin / 2]
    labels = (rng.random(len(margin)) > 1 / (1 + np.exp(-margin / tau))).astype(int)
    test = ns.ModelOutputs(logits, labels=labels)
    finding, other = check_calibration(Given(UNIT_TRAIN, test, {"any": test}))
    scaled, raw = finding.details
    assert scaled["best_tau"] == pytest.approx(tau, rel=0.15)
    assert scaled["best_tau"] == raw["best_tau"], "the training statistics are 0 and 1"
    assert finding.verdict == verdict
    assert other.verdict == UNCHECKED
    confidence = 1 / (1 + np.exp(-np.abs(margin)))
    ece = ns.expected_calibration_error(confidence, (margin < 0) == labels)
    assert scaled["ece_at_1"] == pytest.approx(ece, abs=1e-5)


def test_the_temperature_of_norm_scaled_logits_is_in_training_deviations() -> None:
    """With a training deviation of 10, z' = z / 10: the best tau is a tenth of that of raw logits."""
    rng = np.random.default_rng(1)
    margin = rng.uniform(-6, 6, 5000)
    labels = (rng.random(5000) > 1 / (1 + np.exp(-margin))).astype(int)
    test = ns.ModelOutputs(np.c_[margin / 2, -margin / 2], labels=labels)
    wide = ns.ModelOutputs(10.0 * UNIT_TRAIN.logits)
    scaled, raw = check_calibration(Given(wide, test, {"any": test}))[0].details
    assert scaled["best_tau"] == pytest.approx(raw["best_tau"] / 10, abs=1e-4), "forty steps of the sweep"
    assert raw["best_tau"] == pytest.approx(1.0, rel=0.15)


def test_calibration_needs_labels_and_leaves_unknown_ones_out(sample: Given) -> None:
    bare = sample._replace(test=ns.ModelOutputs(sample.test.logits))
    assert [finding.verdict for finding in check_calibration(bare)] == [UNCHECKED, UNCHECKED]
    assert sample.test.labels is not None
    labels = sample.test.labels.copy()
    labels[100:] = -1
    some = check_calibration(sample._replace(test=ns.ModelOutputs(sample.test.logits, labels=labels)))
    assert some[0].details == check_calibration(sample._replace(test=sample.test[:100]))[0].details
    none = ns.ModelOutputs(sample.test.logits, labels=np.full(len(labels), -1))
    assert check_calibration(sample._replace(test=none))[0].verdict == UNCHECKED


def test_the_whole_audit_has_all_eight_points_in_order() -> None:
    findings = audit()
    points = [finding.point for finding in findings]
    assert points == sorted(points)
    assert set(points) == set(POINTS) == set(range(1, 9))
    for finding in findings:
        assert finding.verdict in VERDICTS
        assert finding.claim.endswith(".")
        assert finding.rule
        assert (finding.recomputed == "–") is not (finding.ours == "–"), "from its tables, or on outputs"
        assert len({tuple(row) for row in finding.details}) <= 1, "rows of one table"
        json.dumps(finding.details, allow_nan=False)


def test_the_audit_of_the_sample_is_the_default_and_repeats(sample: Given) -> None:
    given = audit(sample.train, sample.test, sample.ood)
    assert given == audit()
    other = audit(sample.train, sample.test, sample.ood, seed=1)
    assert [finding.claim for finding in other] == [finding.claim for finding in given]
    assert other != given


def changed(outputs: ns.ModelOutputs, row: int, column: int, value: float) -> ns.ModelOutputs:
    logits = outputs.logits.copy()
    logits[row, column] = value
    return ns.ModelOutputs(logits)


def test_bad_outputs_are_named(sample: Given) -> None:
    train, test, ood = sample.train, sample.test, sample.ood

    def refused(match: str, train: ns.ModelOutputs, test: ns.ModelOutputs, ood: dict[str, ns.ModelOutputs]) -> None:
        with pytest.raises(ns.InvalidInput, match=match):
            audit_outputs(train, test, ood)

    refused("ood_sets is empty", train, test, {})
    refused(
        "other has 2 classes and train has 8; all outputs must come from one network",
        train,
        test,
        {"other": margins(1)},
    )
    refused("test: logits row 3 holds NaN in column 2", train, changed(test, 3, 2, np.nan), ood)
    refused("odd: logits row 0 holds infinity", train, test, {"odd": changed(test, 0, 0, np.inf)})
    refused("logits of test must have at least 1 row", train, test[:0], ood)
    with pytest.raises(ns.InvalidInput, match="in_set must be one of 'cifar10'"):
        audit_outputs(train, test, ood, in_set="imagenet")
    with pytest.raises(ns.InvalidInput, match="go together; pass all three, or none"):
        audit(train, test)
