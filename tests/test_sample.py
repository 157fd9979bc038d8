from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale.sample
from normscale.rows import open_table, read_table
from normscale.sample import export_sample, load_sample

FOLDER = Path(normscale.sample.__file__).parent
ORIGIN: dict[str, Any] = json.loads((FOLDER / "origin.json").read_text())


def log_odds(logits: Any) -> Any:
    ordered = np.sort(logits.astype(np.float64), axis=1)
    return np.logaddexp.reduce(ordered[:, :-1], axis=1) - ordered[:, -1]


def auroc(known: Any, other: Any) -> float:
    """Share of pairs in the right order, straight from the definition."""
    return float(np.mean(np.sign(other[:, None] - known[None, :]) / 2 + 0.5))


def test_the_file_is_the_one_the_tool_wrote() -> None:
    data = (FOLDER / "digits.npz").read_bytes()
    assert hashlib.sha256(data).hexdigest() == ORIGIN["sha256"]
    assert len(data) < 500_000


def test_rows_and_labels() -> None:
    sample = load_sample()
    tables = {"train": sample.train, "validation": sample.validation, "test": sample.test, **sample.ood}
    assert {name: len(outputs) for name, outputs in tables.items()} == ORIGIN["rows"]
    for name, outputs in tables.items():
        assert outputs.n_classes == len(sample.class_names) == 8
        assert outputs.features is not None
        assert outputs.features.shape == (len(outputs), 32)
        assert np.isfinite(outputs.logits).all()
        assert np.isfinite(outputs.features).all()
        assert (outputs.labels is None) == (name in sample.ood)
    for outputs in (sample.train, sample.validation, sample.test):  # every split has its share of every class
        shares = np.bincount(np.asarray(outputs.labels), minlength=8) / len(outputs)
        np.testing.assert_allclose(shares, 1 / 8, atol=0.01)


def test_measures_are_those_on_record_and_leave_room_for_better() -> None:
    sample = load_sample()
    assert sample.test.accuracy == pytest.approx(ORIGIN["test_accuracy"], abs=5e-5)
    assert sample.test.accuracy > 0.97
    assert sample.train.accuracy > sample.test.accuracy
    for name, outputs in sample.ood.items():
        measured = auroc(log_odds(sample.test.logits), log_odds(outputs.logits))
        assert measured == pytest.approx(ORIGIN["auroc"][name]["log_odds"], abs=5e-5)
        assert 0.75 < measured < 0.97


def test_features_are_the_layer_below_the_logits() -> None:
    """Logits are an affine function of the features, the same one in every set."""
    sample = load_sample()
    assert sample.train.features is not None
    design = np.c_[sample.train.features, np.ones(len(sample.train))]
    weights, *_ = np.linalg.lstsq(design, sample.train.logits, rcond=None)
    for outputs in (sample.test, *sample.ood.values()):
        assert outputs.features is not None
        predicted = np.c_[outputs.features, np.ones(len(outputs))] @ weights
        np.testing.assert_allclose(predicted, outputs.logits, atol=0.05)


def test_export_gives_tables_that_read_back(tmp_path: Path) -> None:
    sample = load_sample()
    paths = export_sample(tmp_path / "new" / "folder")
    assert [Path(path).stem for path in paths] == ["train", "validation", "test", *sample.ood]
    np.testing.assert_array_equal(read_table(paths[2]).logits, sample.test.logits)
    np.testing.assert_array_equal(read_table(paths[2]).labels, sample.test.labels)
    np.testing.assert_array_equal(read_table(paths[3]).features, sample.ood["unseen_digits"].features)
    assert not open_table(paths[3]).has_labels
    assert export_sample(tmp_path / "new" / "folder") == paths  # again, over the old ones
