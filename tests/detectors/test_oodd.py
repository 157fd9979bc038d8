"""OODD against its definition written out, row by row, and a planted stream."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.detectors.adaptive import most_confident


def network(n: int, seed: int) -> ns.ModelOutputs:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    features = rng.normal(size=(n, 6)) + 4.0 * np.eye(6)[labels]
    return ns.ModelOutputs(logits=2.0 * features[:, :3], features=features)


def slow(train: Any, stream: Any, k: int, k_dictionary: int, size: int) -> list[float]:
    def unit(row: Any) -> Any:
        return row / np.sqrt(np.sum(row * row)) if row.any() else row

    bank = [unit(row) for row in train]
    dictionary: list[tuple[float, Any]] = []
    scores = []
    for row in map(unit, stream):
        like = sorted((float(row @ known) for known in bank), reverse=True)[k - 1]
        dictionary.append((like, row))
        if len(dictionary) > size:
            dictionary.remove(max(dictionary, key=lambda entry: entry[0]))
        near = sorted((float(row @ held) for _, held in dictionary), reverse=True)
        scores.append(near[min(k_dictionary, len(near)) - 1] - like)
    return scores


def test_the_stream_equals_its_definition_in_any_split(tmp_path: Path) -> None:
    train, stream = network(80, 0), network(60, 1).features
    detector = ns.OODD(k=3, k_dictionary=2, size=7, share=1.0).fit(train)
    expected = slow(train.features, stream, 3, 2, 7)
    whole = copy.copy(detector).stream(stream)
    np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-6)
    first = detector.stream(stream[:23])
    detector.save(tmp_path / "d.safetensors")
    loaded: Any = ns.load_detector(tmp_path / "d.safetensors")
    np.testing.assert_allclose(np.concatenate([first, loaded.stream(stream[23:])]), whole, rtol=1e-9, atol=1e-9)
    assert len(loaded.dictionary_) == 7


def test_a_row_of_zeros_is_like_nothing() -> None:
    train = ns.ModelOutputs(logits=[[5.0, 0.0], [0.0, 5.0], [4.0, 0.0]], features=[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    detector = ns.OODD(k=1, share=1.0).fit(train)
    assert detector.score(np.zeros((1, 2))).tolist() == [0.0]
    assert detector.score(np.array([[-1.0, -1e-9]])).tolist() == [0.0], "the zeros of the bank are nearer than the rest"
    stream = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    assert detector.stream(stream).tolist() == slow(train.features, stream, 1, 5, 512)


def test_rows_like_those_before_them_are_suspected_more() -> None:
    """A cluster that training does not know: the dictionary fills with it, and its rows rise."""
    rng = np.random.default_rng(3)
    known, cluster = network(600, 4), np.array([2.5, 2.0, 0.0, 0.0, 0.0, 2.0]) + 0.7 * rng.normal(size=(200, 6))
    detector = ns.OODD(size=60).fit(network(600, 5))
    frozen = ns.evaluate(detector.score(known.features), detector.score(cluster)).auroc
    order = rng.permutation(800)
    scores = np.empty(800)
    scores[order] = detector.stream(np.vstack([known.features, cluster])[order])
    assert ns.evaluate(scores[:600], scores[600:]).auroc > frozen + 0.001
    assert ns.evaluate(-scores[:600], -scores[600:]).auroc < 0.5, "a flipped sign would be seen"


def test_the_bank_takes_the_surest_rows_of_every_class() -> None:
    logits = np.array([[9.0, 0.0], [8.0, 0.0], [7.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    train = ns.ModelOutputs(logits=logits, features=np.eye(5))
    assert most_confident(train, 3).tolist() == [0, 1, 4]
    assert most_confident(train, 4).tolist() == [0, 1, 3, 4]


def test_a_bad_row_leaves_the_dictionary_alone() -> None:
    detector = ns.OODD().fit(network(50, 0))
    detector.stream(network(20, 1).features)
    kept = detector._pack()
    bad = network(20, 2).features.copy()
    bad[4, 1] = np.inf
    with pytest.raises(ns.InvalidInput, match="features row 4"):
        detector.stream(bad)
    assert detector._pack() == kept
