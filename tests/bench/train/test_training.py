"""Training: deterministic, resumable after a kill, data-parallel, and honest when it diverges."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import normscale as ns
from bench.train.small_training import RECIPE, Digits, network, run
from normscale.bench.train.network_file import read_tensors, save_checkpoint, write_tensors
from normscale.bench.train.training import CHECKPOINT_FILE, RECIPES, accuracy, find_recipe, train
from normscale.state import FORMAT

PROGRAM = str(Path(__file__).with_name("small_training.py"))


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.fixture(name="uninterrupted", scope="module")
def _uninterrupted() -> nn.Module:
    model, log = run(None)
    assert [line.epoch for line in log] == [1, 2, 3]
    assert log[-1].loss < log[0].loss
    return model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished training; read only."""
    folder = tmp_path_factory.mktemp("trained")
    run(str(folder))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished training."""
    return Path(shutil.copytree(trained, tmp_path / "training"))


def test_the_same_seed_gives_the_same_bits(uninterrupted: nn.Module) -> None:
    assert same_weights(run(None)[0], uninterrupted)
    torch.manual_seed(1)
    assert not same_weights(network(seed=1), network(seed=0))


def test_it_learns() -> None:
    model = network()
    train(model, Digits(), RECIPE._replace(epochs=6))  # after three, processors differ by a few per cent
    assert accuracy(model, Digits()) > 0.9


def test_killed_again_and_again_it_ends_with_the_same_weights(uninterrupted: nn.Module, tmp_path: Path) -> None:
    kills = 0
    rng = random.Random(0)
    for _ in range(12):
        process = subprocess.Popen([sys.executable, PROGRAM, str(tmp_path)], stderr=subprocess.PIPE)
        seen = (tmp_path / CHECKPOINT_FILE).stat().st_mtime_ns if (tmp_path / CHECKPOINT_FILE).exists() else 0
        while process.poll() is None and kills < 2:  # let it get somewhere, then kill it at any moment
            path = tmp_path / CHECKPOINT_FILE
            if path.exists() and path.stat().st_mtime_ns != seen:
                time.sleep(rng.random() * 0.2)
                break
            time.sleep(0.01)
        if kills < 2 and process.poll() is None:
            process.send_signal(signal.SIGKILL)
        _, complaint = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, complaint.decode()
        kills += 1
    assert kills >= 2, "the training was over before it could be killed twice"
    model = network()
    log = train(model, Digits(), RECIPE, folder=tmp_path)
    assert same_weights(model, uninterrupted)
    assert [line.epoch for line in log] == [1, 2, 3]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2, 3]
    assert not list(tmp_path.glob("*.tmp*")) or kills > 0


def test_a_finished_training_is_not_repeated(uninterrupted: nn.Module, folder: Path) -> None:
    before = (folder / CHECKPOINT_FILE).read_bytes()
    again, log = run(str(folder))
    assert same_weights(uninterrupted, again)
    assert [line._asdict() for line in log] == [
        json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()
    ]
    assert (folder / CHECKPOINT_FILE).read_bytes() == before


def test_a_checkpoint_of_another_run_is_refused(folder: Path) -> None:
    mine, generator = network(seed=5), torch.get_rng_state()
    with pytest.raises(ns.InvalidInput, match=r"other settings \(recipe differ\)"):
        train(mine, Digits(), RECIPE._replace(epochs=4), folder=folder)
    assert torch.equal(torch.get_rng_state(), generator)
    assert same_weights(mine, network(seed=5))
    with pytest.raises(ns.InvalidInput, match=r"other settings \(data differ\)"):
        train(network(), Digits(), RECIPE, folder=folder, settings={"data": "letters"})
    with pytest.raises(ns.FileFormatError, match="of another network"):
        train(nn.Linear(3, 2), Digits(), RECIPE, folder=folder)


def test_a_damaged_or_newer_checkpoint_is_refused(folder: Path) -> None:
    path = folder / CHECKPOINT_FILE
    data = path.read_bytes()
    for length in (0, 10, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(ns.FileFormatError, match="damaged"):
            run(str(folder))
    write_tensors(path, {"x": torch.zeros(1)}, {})
    tensors, header = read_tensors(path)
    assert header["format"] == FORMAT
    write_tensors(path, tensors, {"format": 99, "version": "9.9"})
    with pytest.raises(ns.FileFormatError, match=r"written by normscale 9\.9 .* Upgrade"):
        read_tensors(path)
    with pytest.raises(ns.FileFormatError, match="no checkpoint or network file at"):
        read_tensors(folder / "none")


class Poisoned(Digits):
    """One image with NaN in the second epoch."""

    def epoch(self, index: int, **share: int) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in super().epoch(index, **share):
            yield (images * math.nan if index == 1 else images), labels


def test_a_loss_of_nan_stops_with_an_explanation(tmp_path: Path) -> None:
    with pytest.raises(ns.TrainingDiverged, match=r"the loss is nan in epoch 2, step 1, at learning rate .* smaller"):
        train(network(), Poisoned(), RECIPE, folder=tmp_path)
    _, header = read_tensors(tmp_path / CHECKPOINT_FILE)
    assert header["position"][0] == 1, "the checkpoint from before the NaN stays"


@pytest.mark.parametrize("epochs", (1, 5, 10))
def test_schedules(epochs: int) -> None:
    paper, fast = find_recipe("paper", epochs), find_recipe("fast", epochs)
    total = 100 * epochs
    assert paper.learning_rate_at(0, total) == 1e-2
    assert paper.learning_rate_at(60 * epochs - 1, total) == 1e-2
    assert paper.learning_rate_at(60 * epochs, total) == pytest.approx(1e-3)
    assert paper.learning_rate_at(80 * epochs, total) == pytest.approx(1e-4)
    rates = [fast.learning_rate_at(step, total) for step in range(total)]
    peak = rates.index(max(rates))
    assert max(rates) <= fast.learning_rate
    assert max(rates) > 0.95 * fast.learning_rate
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0 < rates[-1] < 0.02 * fast.learning_rate
    with pytest.raises(ns.InvalidInput, match="unknown recipe 'slow'; known: paper, fast"):
        find_recipe("slow")


def test_the_recipe_is_the_papers() -> None:
    paper = RECIPES["paper"]
    assert (paper.momentum, paper.weight_decay, paper.learning_rate, paper.nesterov) == (0.9, 5e-4, 1e-2, False)


def test_momentum_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimiser.step()
    save_checkpoint(tmp_path / "c.safetensors", model, optimiser, {})
    tensors, _ = read_tensors(tmp_path / "c.safetensors")
    assert {"model.weight", "model.bias", "momentum.0", "momentum.1", "random.torch"} == set(tensors)
    assert tensors["momentum.0"].abs().sum() > 0


class Scaled(nn.Module):
    """A network with a number without an axis among its parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.scale = nn.Linear(64, 10), nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.scale * self.inner(x.flatten(1))
        return logits


def test_a_parameter_without_an_axis_survives_a_resumption(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    class Killing(Digits):
        def epoch(self, index: int, *, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
            for number, batch in enumerate(super().epoch(index, start=start)):
                if index * len(self) + number == 15:
                    raise Killed
                yield batch

    whole, resumed = Scaled(), Scaled()
    train(whole, Digits(), RECIPE)
    with pytest.raises(Killed):
        train(Scaled(), Killing(), RECIPE, folder=tmp_path, checkpoint_seconds=0.0)
    train(resumed, Digits(), RECIPE, folder=tmp_path)
    assert same_weights(whole, resumed)
    assert resumed.scale.shape == ()
