"""``normscale detectors``: the table, the cards, JSON, detectors of other packages, unknown names."""

from __future__ import annotations

import doctest
import json
import types
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import normscale as ns
from normscale.cli import app
from normscale.detectors.card import card_of
from normscale.detectors.registry import detector_class, unregister
from program import normscale


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["detectors", *arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_table_has_a_line_for_every_detector() -> None:
    table = run()
    for name in ns.list_detectors():
        assert sum(line.split()[:1] == [name] for line in table.splitlines()) == 1, name
    line = next(line for line in table.splitlines() if line.split()[:1] == ["energy"])
    assert "Liu et al. 2020" in line
    assert "temperature=1.0" in line
    assert "one pass over the logits" in line
    assert f"{len(ns.list_detectors())} detectors;" in table


@pytest.mark.parametrize("name", ns.list_detectors())
def test_every_card_says_what_the_class_says(name: str) -> None:
    card = card_of(name)
    cls = detector_class(name)
    assert card.idea.endswith((".", ":"))
    assert "\n" not in card.idea
    assert card.paper == cls.about.paper.partition(': "')[0]
    assert card.cost == cls.about.cost
    defaults = {one.name: one.default for one in card.parameters}
    assert json.loads(json.dumps(defaults)) == json.loads(json.dumps(cls().get_params()))
    assert all(one.meaning for one in card.parameters)
    assert card.idea in run(name)


def test_a_card_has_formula_example_and_reference() -> None:
    text = run("gen")
    assert "score = sum_j (p_j (1 - p_j)) ** gamma" in text
    assert '>>> detector = ns.make_detector("gen")' in text
    assert "Pushing the Limits of Softmax-Based" in text
    assert "arrays: logits" in text


def test_a_step_with_its_score_has_the_parameters_of_both() -> None:
    card = card_of("react+energy")
    assert [one.name for one in card.parameters] == ["percentile", "temperature"]
    assert [one.name for one in card_of("react").parameters] == ["score", "percentile"]
    assert card_of("tempered+energy").parameters[0].default == 1000.0  # the step takes it first
    assert [one.name for one in card_of("react+tempered+msp").parameters] == ["percentile", "temperature"]


def test_json_is_one_object_a_line() -> None:
    rows = [json.loads(line) for line in run("--json").splitlines()]
    assert [row["name"] for row in rows] == ns.list_detectors()
    assert next(row for row in rows if row["name"] == "ash")["is_step"]
    one = json.loads(run("gen", "--json"))
    assert one["parameters"][0]["default"] == 0.1


def test_a_stranger_without_a_word_about_itself_has_a_card() -> None:
    class Silent(ns.MSP):
        name = "silent"

    Silent.__doc__ = None
    ns.register(Silent)
    try:
        assert "silent" in run()
        assert "silent: MSP" in run("silent")
    finally:
        unregister("silent")


def test_an_unknown_name_gets_a_suggestion() -> None:
    result = normscale("detectors", "energi")
    assert result.returncode == 1
    assert "Did you mean 'energy'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_examples_on_cards_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = ns.load_sample()
    small = types.SimpleNamespace(train=sample.train[:200], validation=sample.validation, test=sample.test[:20])
    monkeypatch.setattr(ns, "load_sample", lambda: small)
    silent = set()
    for name in ns.list_detectors():
        lines: dict[str, Any] = {}
        for one in doctest.DocTestParser().get_examples(card_of(name).python_example):
            exec(one.source, lines)
        if lines:
            assert lines["detector"].name == name
            assert np.isfinite(lines["scores"]).all()
        else:
            silent.add(name)
    assert silent == {"odin", "adascale", "mahalanobis_layers"}, "the sample has neither their arrays nor its stages"


def test_no_word_of_the_table_is_broken_on_a_narrow_terminal() -> None:
    for width in (80, 120):
        done = CliRunner().invoke(app, ["detectors"], env={"COLUMNS": str(width)})
        assert done.exit_code == 0, done.output
        assert max(map(len, done.output.splitlines())) <= width
        words = set(done.output.replace(",", " ").split())
        for name in ns.list_detectors():
            card = card_of(name)
            assert {word for text in (card.name, card.paper, card.cost, *card.reads) for word in text.split()} <= {
                *words, *(f"{word}," for word in words)
            }, name  # fmt: skip
