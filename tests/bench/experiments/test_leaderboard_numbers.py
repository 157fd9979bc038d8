"""The numbers of a leaderboard: every detector as fitted and in five kinds of streams, on one network's outputs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from normscale.bench.experiments.methods import FROZEN_SUFFIX
from normscale.bench.experiments.plan import Plan
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress import KINDS, rank, rank_run
from normscale.bench.paper.presets import every_detector
from normscale.detectors.registry import unregister
from normscale.errors import InvalidInput
from normscale.rows import write_table

SAMPLE = ns.load_sample()
OOD = {"digits": SAMPLE.ood["unseen_digits"]}


def test_every_registered_detector_and_the_default_take_part() -> None:
    names = every_detector()
    assert names[0] == "default"
    assert set(ns.list_detectors()) - {"stream_aware"} <= set(names)
    assert len(set(names)) == len(names)


def test_the_numbers_are_those_of_single_detectors() -> None:
    result = rank(["energy", "norm_scaling", "default"], SAMPLE.train, None, SAMPLE.test, OOD)
    assert result.settings["left_out"] == {}
    found = {(row.method, row.stream): row for row in result.rows}
    energy = ns.evaluate(ns.Energy().score(SAMPLE.test), ns.Energy().score(OOD["digits"])).auroc
    assert found["energy", None].auroc == pytest.approx(energy, abs=1e-12)
    frozen = ns.NormScaling().fit(SAMPLE.train)
    both = [frozen.score(side.only("logits")) for side in (SAMPLE.test, OOD["digits"])]
    assert found[f"norm_scaling{FROZEN_SUFFIX}", None].auroc == pytest.approx(ns.evaluate(*both).auroc, abs=1e-12)
    rows = ns.ModelOutputs.concatenate([SAMPLE.test, OOD["digits"]])
    order = np.random.default_rng(0).permutation(len(rows))
    default, scores = copy.copy(ns.fit(SAMPLE.train)), np.empty(len(rows))
    scores[order] = default.stream(rows[order])
    streamed = ns.evaluate(scores[: len(SAMPLE.test)], scores[len(SAMPLE.test) :]).auroc
    assert found["default", None].auroc == pytest.approx(streamed, abs=1e-12)
    assert {kind for _, kind in found} == {None, *KINDS.values()}
    assert found["norm_scaling", KINDS["One class 80 %"]].auroc < found["default", KINDS["One class 80 %"]].auroc - 0.1
    assert next(row.draws for row in result.rows if row.stream == KINDS["2 % OoD"]) > 1


def test_a_detector_that_fails_is_named_and_the_others_go_on() -> None:
    class Broken(ns.Detector):
        """Fails in a way that nobody foresaw."""

        name, title, paper, reads, needs_fit = "broken", "Broken", "an example", ("logits",), False

        def _score(self, outputs: ns.ModelOutputs, threads: int) -> Any:
            raise ZeroDivisionError("nobody foresaw this")

    ns.register(Broken)
    try:
        result = rank(["broken", "odin", "msp"], SAMPLE.train, None, SAMPLE.test, OOD)
    finally:
        unregister("broken")
    assert result.methods == ["msp"]
    assert result.settings["left_out"]["broken"] == "ZeroDivisionError: nobody foresaw this"
    assert "perturbed_logits" in result.settings["left_out"]["odin"]


def test_a_runs_first_network_counts_and_rows_are_bounded(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Plan("mine", "digits", {"digits": "digits", "absent": "absent"}))
    run.network(0).make()
    with pytest.raises(InvalidInput, match="no outputs of a training set, a test set and an OoD set"):
        rank_run(run, ["energy"])
    for name, outputs in {"train": SAMPLE.train, "test": SAMPLE.test, **OOD}.items():
        write_table(run.network(0).outputs(name), outputs)
    result = rank_run(run, ["energy"], rows=40, train_rows=100)
    sizes = {"n_train": 100, "n_id": 200, "ood_sets": {"digits": 40}}
    assert sizes.items() <= result.settings.items()
    assert (result.settings["network"], result.settings["in_set"]) == ("mine", "digits")
    assert result.settings["asked"] == {"detectors": ["energy"], "rows": 40, "train_rows": 100}
