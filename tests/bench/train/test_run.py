"""A whole run: from a data set's name to a network, its file, and tables that fit and eval read."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import normscale as ns
from normscale.bench.data import load
from normscale.bench.train import load_network, save_network
from normscale.bench.train.network_file import read_tensors, round_weights, write_tensors
from normscale.bench.train.run import RunResult, load_splits, may_be_mirrored, plain_batches, train_network
from normscale.cli import app
from normscale.extraction import extract
from program import normscale


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("run")
    return train_network(
        folder, "digits", width=8, recipe="fast", epochs=6, seed=1, ood=("uniform", "fashion", "npz:nowhere.npz")
    )


def test_the_network_learns_and_its_file_brings_it_back(run: RunResult) -> None:
    assert run.info.test_accuracy is not None
    assert run.info.test_accuracy > 0.8
    model, info = load_network(Path(run.folder) / "network.safetensors")
    assert info == run.info
    assert not model.training
    images = torch.randn(3, 1, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), run.network.eval()(images), rtol=1e-5, atol=1e-5)


def test_weights_are_kept_in_half_precision_and_results_agree(run: RunResult) -> None:
    """The checkpoint has the weights as they were trained."""
    tensors = read_tensors(Path(run.folder) / "network.safetensors")[0]
    kinds = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    assert kinds["stem.0.weight"] == kinds["classifier.weight"] == "torch.float16"
    assert kinds["stem.1.running_var"] == kinds["classifier.bias"] == "torch.float32"
    trained = run.info.build()
    prefix = "model."
    checkpoint = read_tensors(Path(run.folder) / "checkpoint.safetensors")[0]
    trained.load_state_dict({k.removeprefix(prefix): v for k, v in checkpoint.items() if k.startswith(prefix)})
    kept = load_network(Path(run.folder) / "network.safetensors")[0]
    assert not torch.equal(trained.classifier.weight, kept.classifier.weight)
    sets = {name: load(name, "test", like=run.splits.test) for name in ("digits", "fashion", "photos")}
    aurocs = []
    for model in (trained, kept):
        outputs = {name: extract(model, plain_batches(images, run.info), ood=True) for name, images in sets.items()}
        msp = {name: ns.MSP().score(rows) for name, rows in outputs.items()}
        aurocs.append([ns.auroc(msp["digits"], msp[name]) for name in ("fashion", "photos")])
    np.testing.assert_allclose(aurocs[0], aurocs[1], atol=1e-4)
    assert aurocs[0] != aurocs[1]


def test_weights_beyond_half_precision_stay_as_they_are(run: RunResult, tmp_path: Path) -> None:
    model = run.info.build()
    with torch.no_grad():
        model.classifier.weight[0, 0] = 1e5
    round_weights(model)
    save_network(tmp_path / "network.safetensors", model, run.info)
    found = load_network(tmp_path / "network.safetensors")[0]
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], tensor, rtol=0, atol=0)


def test_its_outputs_are_tables_of_its_own_sets(run: RunResult) -> None:
    outputs = Path(run.folder) / "outputs"
    train, validation, test = (
        ns.read_table(outputs / f"{name}.safetensors") for name in ("train", "validation", "test")
    )
    assert (len(train), len(validation), len(test)) == (1167, 130, 500)
    assert test.accuracy == run.info.test_accuracy
    assert train.head is not None
    np.testing.assert_allclose(train.head.logits(train.features), train.logits, rtol=1e-4, atol=1e-4)
    detector = ns.NormScaling().fit(train)
    noise = ns.read_table(outputs / "uniform.safetensors")
    assert noise.labels is None or (noise.labels == -1).all()
    assert ns.evaluate(detector.score(test), detector.score(noise)).n_ood == 500
    assert ns.Mahalanobis(shrinkage="oas").fit(train).score(test).shape == (500,)


def test_a_set_that_cannot_be_had_is_reported_and_not_fatal(run: RunResult) -> None:
    assert list(run.missing) == ["nowhere"]
    result = json.loads((Path(run.folder) / "result.json").read_text())
    assert "nowhere.npz" in result["missing"]["nowhere"]
    assert result["test_accuracy"] == run.info.test_accuracy
    assert [line["epoch"] for line in result["log"]] == [1, 2, 3, 4, 5, 6]


def test_ood_sets_of_one_name_are_refused_and_changed_ones_read_again(run: RunResult, tmp_path: Path) -> None:
    packs = [tmp_path / folder / "x.npz" for folder in "ab"]
    for n, pack in enumerate(packs, 5):
        pack.parent.mkdir()
        np.savez(pack, images=np.full((n, 8, 8, 1), 7 * n, np.uint8))

    def again(*ood: str) -> None:
        train_network(run.folder, "digits", width=8, recipe="fast", epochs=6, seed=1, ood=ood)

    with pytest.raises(ns.InvalidInput, match=r"would be called x, as those of npz:.*a/x.npz are"):
        again(*(f"npz:{pack}" for pack in packs))
    with pytest.raises(ns.InvalidInput, match="would be called test, as those of the network's own set"):
        again(f"npz:{tmp_path / 'test.npz'}")
    for n, pack in enumerate(packs, 5):
        again(f"npz:{pack}")
        assert len(ns.read_table(Path(run.folder) / "outputs" / "x.safetensors")) == n


def test_started_again_it_is_not_trained_again(run: RunResult) -> None:
    weights = (Path(run.folder) / "network.safetensors").read_bytes()
    again = train_network(run.folder, "digits", width=8, recipe="fast", epochs=6, seed=1, layers=["stage2"])
    assert "stage2" in ns.read_table(Path(run.folder) / "outputs" / "test.safetensors").names
    assert again.log == run.log
    assert (Path(run.folder) / "network.safetensors").read_bytes() == weights
    with pytest.raises(ns.InvalidInput, match="seed differ"):
        train_network(run.folder, "digits", width=8, recipe="fast", epochs=6, seed=2)


def test_a_finished_network_from_elsewhere_is_not_trained_again(
    run: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("network.safetensors", "result.json"):
        shutil.copy(Path(run.folder) / name, tmp_path / name)
    monkeypatch.setattr("normscale.bench.train.run.train", lambda *_, **__: pytest.fail("it was trained again"))
    again = train_network(tmp_path, "digits", width=8, recipe="fast", epochs=6, seed=1)
    assert (again.info, again.log) == (run.info, run.log)
    before, after = (json.loads((Path(folder) / "result.json").read_text()) for folder in (run.folder, tmp_path))
    assert {**before, "missing": {}} == after, "what trained it is still said"
    mine, theirs = (Path(folder) / "outputs" / "test.safetensors" for folder in (run.folder, tmp_path))
    np.testing.assert_array_equal(ns.read_table(mine).logits, ns.read_table(theirs).logits)
    mean, *others = run.info.mean
    for factor, accepted in ((1.0 + 1e-12, True), (1.001, False)):  # another processor rounds otherwise; other pictures
        save_network(tmp_path / "network.safetensors", run.network, run.info._replace(mean=(mean * factor, *others)))
        with contextlib.nullcontext() if accepted else pytest.raises(ns.InvalidInput, match=r"other settings \(mean"):
            train_network(tmp_path, "digits", width=8, recipe="fast", epochs=6, seed=1)
    save_network(tmp_path / "network.safetensors", run.network, run.info)
    for other in ({"epochs": 7}, {"width": 4}, {"seed": 2}):
        asked = {"width": 8, "epochs": 6, "seed": 1, **other}
        with pytest.raises(ns.InvalidInput, match="other settings"):
            train_network(tmp_path, "digits", recipe="fast", **asked)  # type: ignore[arg-type]


def test_digits_are_never_mirrored_wherever_they_come_from() -> None:
    assert may_be_mirrored("cifar10")
    assert may_be_mirrored("npz:packs/cifar10.npz")
    assert may_be_mirrored("folder:pictures/my_animals")
    for digits in ("svhn", "npz:packs/svhn", "npz:packs/svhn.npz", "digits", "folder:somewhere/digits"):
        assert not may_be_mirrored(digits), digits
    with pytest.raises(ns.InvalidInput, match="unknown data set 'cifar11'"):
        may_be_mirrored("cifar11")


def test_the_split_is_the_seeds_and_loses_nothing() -> None:
    digits = load("digits")
    first, second = (load_splits("digits", seed)[:2] for seed in (0, 1))
    assert not np.array_equal(first[1].labels, second[1].labels)
    assert len(first[0]) + len(first[1]) == len(digits)
    pixels = np.concatenate([part.images.reshape(len(part), -1) for part in first])
    assert sorted(map(bytes, pixels)) == sorted(map(bytes, digits.images.reshape(len(digits), -1)))


def test_a_file_of_something_else_is_no_network(run: RunResult, tmp_path: Path) -> None:
    path = tmp_path / "network.safetensors"
    write_tensors(path, {"x": torch.zeros(1)}, {})
    with pytest.raises(ns.FileFormatError, match="holds no network"):
        load_network(path)
    save_network(path, run.network, run.info._replace(network="transformer"))
    with pytest.raises(ns.FileFormatError, match="unknown network 'transformer'; known: resnet18"):
        load_network(path)


def test_the_command(tmp_path: Path) -> None:
    # width 4: narrower than torch's channels-last convolutions survive
    options = ("-o", tmp_path / "run", "--width", 4, "--recipe", "fast", "--epochs", 1)
    done = normscale("train", *options, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stderr
    assert (tmp_path / "run" / "outputs" / "test.safetensors").exists()
    for mistake, message in (
        (("--data", "cifar11"), "cifar11"),
        (("--recipe", "slow"), "unknown recipe 'slow'"),
        (("--network", "vgg"), "unknown network 'vgg'"),
    ):
        refused = CliRunner().invoke(app, ["train", "-o", str(tmp_path / "other"), *mistake])
        assert isinstance(refused.exception, ns.InvalidInput)
        assert message in str(refused.exception)
