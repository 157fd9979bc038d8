"""One grammar for detectors with parameters, wherever a detector is typed."""

from __future__ import annotations

import math

import pytest

import normscale as ns
from normscale.bench.experiments.methods import find_method
from normscale.detectors.registry import read_spelling


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("energy", [("energy", {})]),
        ("knn:k=20", [("knn", {"k": 20})]),
        (
            "react:percentile=90.5+energy:temperature=2",
            [("react", {"percentile": 90.5}), ("energy", {"temperature": 2})],
        ),
        ("norm_scaling:prior_weight=inf", [("norm_scaling", {"prior_weight": math.inf})]),
        ("a:x=true:y=False:z=none:w=word", [("a", {"x": True, "y": False, "z": None, "w": "word"})]),
        ("mahalanobis:layers=stage1,features", [("mahalanobis", {"layers": ["stage1", "features"]})]),
    ],
)
def test_texts_are_read(text: str, parts: list[tuple[str, dict[str, object]]]) -> None:
    assert read_spelling(text) == parts


@pytest.mark.parametrize("text", ["knn:k", "knn:=3", "knn:k=", "react+", "", "+energy"])
def test_what_is_no_spelling_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ns.InvalidInput, match="NAME:parameter=value"):
        ns.make_detector(text)


def test_every_part_has_its_own_parameters() -> None:
    made = ns.make_detector("react:percentile=85+energy:temperature=3")
    assert made.get_params()["percentile"] == 85
    assert made.get_params()["score"] == {"detector": "energy", "parameters": {"temperature": 3}}
    with pytest.raises(ns.InvalidInput, match="energy has no parameter 'percentile'; its parameters: temperature"):
        ns.make_detector("react+energy:percentile=85")
    with pytest.raises(ns.InvalidInput, match="react has no parameter 'temperature'"):
        ns.make_detector("react:temperature=2+energy")
    assert ns.make_detector("react+energy", temperature=2.0).get_params()["score"]["parameters"] == {"temperature": 2.0}


def test_the_same_words_make_a_method_of_a_comparison() -> None:
    method = find_method("react:percentile=85+energy")
    assert method.detector.get_params()["percentile"] == 85
    assert method.title.endswith(", percentile 85")
    assert find_method("norm_scaling_frozen:prior_weight=2").setting == "frozen"
    sample = ns.load_sample()
    (row,) = ns.compare(sample.test, {"x": sample.ood["uniform_noise"]}, detectors=["energy:temperature=2"])
    assert row.parameters == {"temperature": 2}
