"""False alarms: shares flagged of streams without OoD inputs, against a loop by hand; corrupted pictures."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from needed_extras import need
from normscale.bench.data import ImageSet
from normscale.bench.data.corruptions import STRENGTHS, corrupted
from normscale.bench.experiments.alarms import UNCHANGED, changed_outputs, changed_pictures, false_alarms

SAMPLE = ns.load_sample()


def test_shares_are_those_of_single_detectors() -> None:
    detector = ns.make_detector("stream_aware+energy").fit(SAMPLE.train)
    before = detector._pack()
    rows = SAMPLE.test.replace(logits=0.6 * SAMPLE.test.logits)
    found = {one.stream: one for one in false_alarms({"mine": detector}, SAMPLE.test, {"fainter": rows})}
    assert list(found) == [*UNCHANGED, "fainter"]
    assert detector._pack() == before, "a detector is left as it was"
    order = np.random.default_rng(0).permutation(len(SAMPLE.test))
    held, rest = np.array_split(order, 2)
    mine = copy.copy(detector).set_threshold(SAMPLE.test[held].only("logits"), 0.95)
    plain = SAMPLE.test[rest].only("logits")
    assert found["balanced"].frozen == pytest.approx(mine.predict(plain).mean(), abs=1e-12)
    assert found["balanced"].streamed == pytest.approx(mine.predict(plain, scores=mine.stream(plain)).mean(), abs=1e-12)
    assert found["fainter"].frozen > found["balanced"].frozen + 0.1
    assert found["balanced"].accuracy == pytest.approx(SAMPLE.test[rest].accuracy)
    assert found["one class 80 %"].n_rows < found["two classes missing"].n_rows < found["balanced"].n_rows


def test_the_first_rows_of_a_long_stream_do_not_count() -> None:
    detector = ns.make_detector("robust_norm_scaling").fit(SAMPLE.train)
    long = ns.ModelOutputs.concatenate([SAMPLE.test.only("logits")] * 3)
    found = {one.stream: one for one in false_alarms({"mine": detector}, SAMPLE.test, {"long": long})}
    assert found["long"].n_rows == len(long) - 300
    assert found["balanced"].n_rows == len(SAMPLE.test) - (len(SAMPLE.test) + 1) // 2


def test_noise_is_in_deviations_of_each_column() -> None:
    found = dict(changed_outputs(SAMPLE.test))
    noise = found["noised 0.5"].logits - SAMPLE.test.logits
    np.testing.assert_allclose(noise.std(axis=0), 0.5 * SAMPLE.test.logits.std(axis=0), rtol=0.15)
    assert found["scaled 1.25"].features is not None
    np.testing.assert_allclose(found["scaled 1.25"].features, 1.25 * SAMPLE.test.array("features"), rtol=1e-6)


def test_every_corruption_grows_with_its_strength() -> None:
    need("PIL")
    rng = np.random.default_rng(0)
    steps = np.add.outer(np.arange(32) * 4, np.arange(32) * 3)[None, :, :, None] + rng.integers(0, 40, (4, 32, 32, 3))
    images = ImageSet("mine", steps.astype(np.uint8), np.zeros(4, int))
    found = {name: one.images.astype(float) - images.images for name, one in corrupted(images)}
    assert list(found) == [f"{kind} {strength}" for kind in STRENGTHS for strength in (1, 2, 3)]
    for kind in STRENGTHS:
        errors = [np.abs(found[f"{kind} {strength}"]).mean() for strength in (1, 2, 3)]
        assert 0.5 < errors[0] < errors[1] < errors[2], kind
    assert all(
        np.array_equal(a.images, b.images) for (_, a), (_, b) in zip(corrupted(images), corrupted(images), strict=True)
    )


def test_a_trained_network_sees_its_corrupted_test_pictures(tmp_path: Path) -> None:
    need("torch", "PIL")
    from normscale.bench.data import load
    from normscale.bench.train.run import train_network

    train_network(tmp_path, "digits", width=4, recipe="fast", epochs=1, outputs=False)
    found = dict(changed_pictures(tmp_path))
    assert len(found) == 15
    test = load("digits", "test")
    assert {len(one) for one in found.values()} == {len(test)}
    labels = found["noise 3"].labels
    assert labels is not None
    assert np.array_equal(labels, test.labels)
    assert found["brightness 3"].names == ("logits", "features")
