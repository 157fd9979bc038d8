"""A new detector where another one served: it takes the old one's store over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import normscale as ns
from guard.server.conftest import Start
from guard.server.kills import SAMPLE
from guard.server.running import Server, refusal

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")

ROWS = SAMPLE.test.logits.astype(np.float64)


@pytest.fixture(scope="module")
def new_detector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted on half of the rows, with a threshold that flags more."""
    path = tmp_path_factory.mktemp("new") / "new.safetensors"
    half = SAMPLE.train[: len(SAMPLE.train) // 2]
    ns.NormScaling().fit(half).set_threshold(SAMPLE.validation, keep=0.8).save(path)
    return path


def test_a_server_takes_over_the_store_of_another_detector_when_told_to(
    start_server: Start, sample_guard: Path, new_detector: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start_server()
    assert old.client().score(ROWS[:120]).status == 200
    old.stop()
    store = tmp_path / "store.sqlite"
    code, said = refusal(monkeypatch, new_detector, "--store", str(store))
    assert (code, "--adopt" in said) == (1, True)
    new = start_server("--adopt", guard=new_detector)
    state = new.client().state()
    assert (state["rows"], state["scored"]) == (0, 120)  # its statistics begin anew
    assert new.client().score(ROWS[:1]).answer["rows"] == 1
    new.stop()
    again = start_server(guard=new_detector)  # it is the new detector's now
    assert again.client().state()["rows"] == 1
    again.stop()
    file = tmp_path / "guards.toml"
    file.write_text(f"[cameras]\ndetector = '{sample_guard}'\nstore = '{store}'\n")
    assert refusal(monkeypatch, file)[0] == 1
    assert refusal(monkeypatch, file, "--adopt")[0] == 1  # of several guards, the file says so
    file.write_text(file.read_text() + "adopt = true\n")
    with Server(file, tmp_path / "toml.log") as server:
        assert server.client().ask("GET", "/cameras/v1/state").json["scored"] == 121
