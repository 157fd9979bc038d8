"""Extraction from any network and any source, restartable, and without a trace on the model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import normscale as ns
from normscale import InvalidInput, ModelOutputs
from normscale.data.batches import Batches
from normscale.data.image_set import ImageSet
from normscale.nn import batch_reader, resnet20, resumable_table, wide_resnet40_2
from normscale.nn.extraction import extract

torch.set_num_threads(1)

IMAGES = torch.randn(23, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(23) % 4


def convolutional() -> nn.Sequential:
    """Somebody's own network, in the middle of its training."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 4),
    )  # fmt: skip


class WithHeads(nn.Module):
    """The classifier is registered first and runs last; another linear layer of its shape runs before it."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(5, 4)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU())
        self.auxiliary = nn.Linear(5, 4)
        self.unused = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        logits: Tensor = self.classifier(hidden.relu() + 1.0)
        self.auxiliary(hidden)
        return logits


def check(outputs: ModelOutputs, model: nn.Module, features: Tensor, labels: bool = True) -> None:
    model.eval()
    with torch.no_grad():
        np.testing.assert_allclose(outputs.logits, model(IMAGES).numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(outputs.features, features.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert outputs.logits.dtype == outputs.features.dtype == np.float32
    if labels:
        assert outputs.labels is not None
        assert outputs.labels.tolist() == LABELS.tolist()
    else:
        assert outputs.labels is None


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return IMAGES[index], int(LABELS[index])


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((image, int(label)) for image, label in zip(IMAGES, LABELS, strict=True))


def batches() -> Iterator[tuple[Tensor, list[int]]]:
    return ((IMAGES[a : a + 6], LABELS[a : a + 6].tolist()) for a in range(0, 23, 6))


@pytest.mark.parametrize(
    "data",
    (
        (IMAGES, LABELS),
        (IMAGES.double().numpy(), LABELS.numpy()),
        TensorDataset(IMAGES, LABELS),
        Pictures(),
        Endless(),
        DataLoader(Pictures(), batch_size=9),
        batches(),
        list(batches()),
    ),
    ids=lambda data: type(data).__name__,
)
def test_every_source_gives_the_same(data: Any) -> None:
    model = convolutional()
    check(extract(model, data, batch_size=5), model, model.eval()[:-1](IMAGES))


def test_our_own_batches_are_read_in_order_and_not_augmented(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (23, 8, 8, 3), dtype=np.uint8)
    pictures = Batches(
        ImageSet("own", pixels, LABELS.numpy(), ("a", "b", "c", "d")), 5, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    model = convolutional()
    expected = extract(model, torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 * 4 - 2)
    for path in (None, tmp_path / "outputs.safetensors"):
        outputs = extract(model, pictures, path=path)
        np.testing.assert_allclose(outputs.logits, expected.logits, rtol=1e-4, atol=1e-5)
        assert outputs.labels is not None
        assert outputs.labels.tolist() == LABELS.tolist()


def test_images_alone_have_no_labels() -> None:
    model = convolutional()
    for data in (IMAGES, IMAGES.numpy(), [IMAGES[:10], IMAGES[10:]], (IMAGES[:20], IMAGES[20:])):
        check(extract(model, data), model, model.eval()[:-1](IMAGES), labels=False)
    locked = IMAGES.numpy().copy()
    locked.setflags(write=False)
    extract(model, locked)


@pytest.mark.parametrize("make", (resnet20, wide_resnet40_2))
def test_features_of_our_networks_are_the_penultimate_layer(make: Any) -> None:
    model = make(4, width=4)
    check(extract(model, (IMAGES, LABELS), batch_size=7), model, model.eval().features(IMAGES))


def test_the_classifier_is_the_layer_the_logits_come_from() -> None:
    model = WithHeads()
    check(extract(model, (IMAGES, LABELS)), model, model.body(IMAGES).relu() + 1.0)


def test_a_classifier_followed_by_something_is_found_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Linear(4, 4), nn.LogSoftmax(dim=1))
    check(extract(model, (IMAGES, LABELS)), model, model[:2](IMAGES))
    alone = nn.Linear(3, 2)
    rows = torch.randn(5, 3)
    np.testing.assert_array_equal(extract(alone, rows).features, rows.numpy())


def test_a_layer_by_name_is_averaged_over_space() -> None:
    model = convolutional()
    maps = model.eval()[:3](IMAGES)
    check(extract(model, (IMAGES, LABELS), feature_layer="2"), model, maps.mean(dim=(2, 3)))
    assert extract(model, IMAGES, features=False).names == ("logits",)


def rebuilds(outputs: ModelOutputs) -> None:
    """The head makes the logits of the features."""
    assert outputs.head is not None
    np.testing.assert_allclose(outputs.head.logits(outputs.features), outputs.logits, rtol=1e-4, atol=1e-5)


def test_the_head_is_the_layer_that_makes_logits_of_features(tmp_path: Path) -> None:
    for model in (convolutional(), resnet20(4, width=4), wide_resnet40_2(4, width=4), WithHeads()):
        for path in (None, tmp_path / f"{type(model).__name__}-{len(list(model.parameters()))}.safetensors"):
            rebuilds(extract(model, (IMAGES, LABELS), path=path))
    unbiased = nn.Sequential(nn.Flatten(), nn.Linear(192, 4, bias=False))
    outputs = extract(unbiased, IMAGES)
    rebuilds(outputs)
    assert outputs.head is not None
    assert outputs.head.bias.tolist() == [0.0] * 4
    named = extract(convolutional(), IMAGES, feature_layer="4")  # the pooling before the flattening: the same numbers
    rebuilds(named)
    for half in (extract(convolutional().bfloat16(), IMAGES), extract(convolutional(), IMAGES, mixed_precision=True)):
        assert half.head is not None
        np.testing.assert_allclose(half.head.logits(half.features), half.logits, atol=0.05)


def test_where_there_is_no_such_layer_there_is_no_head() -> None:
    class Cosine(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.normalize(x) @ nn.functional.normalize(self.weight).T

    body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh())
    for model, options in (
        (nn.Sequential(*body, nn.Linear(5, 4), nn.LogSoftmax(dim=1)), {}),
        (nn.Sequential(*body, Cosine(5, 4)), {}),
        (nn.Sequential(*body, nn.Linear(5, 4)), {"feature_layer": "1"}),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"feature_layer": "0"}),
        (nn.Sequential(*body, nn.Linear(5, 4)), {"features": False}),
    ):
        assert extract(model, IMAGES, **options).head is None


def test_further_layers_go_by_their_modules_names(tmp_path: Path) -> None:
    model = resnet20(4, width=4)
    for path in (None, tmp_path / "outputs.safetensors"):
        outputs = extract(model, (IMAGES, LABELS), layers="all", batch_size=7, path=path)
        assert set(outputs.names) == {"logits", "features", "stem", "stage1", "stage2", "stage3"}
        with torch.no_grad():
            for name, maps in model.eval().stages(IMAGES).items():
                np.testing.assert_allclose(outputs.array(name), maps.mean(dim=(2, 3)).numpy(), rtol=1e-3, atol=1e-5)
                assert outputs.array(name).dtype == np.float32
    some = extract(model, IMAGES, layers=["stage2.1.bn2", "head", "classifier"], features=False)
    assert some.names == ("logits", "stage2_1_bn2", "layer_head", "classifier")
    np.testing.assert_array_equal(some.array("classifier"), some.logits)
    np.testing.assert_allclose(some.array("layer_head"), outputs.features, rtol=1e-4, atol=1e-6)


def test_layers_that_cannot_be_read_are_explained() -> None:
    model = resnet20(4, width=4)
    with pytest.raises(InvalidInput, match=r"this model names none.*layers=\['4', '5', '6'\]"):
        extract(convolutional(), IMAGES, layers="all")
    with pytest.raises(InvalidInput, match="layers must be None, \"all\", or a sequence of names; got 'stage1'"):
        extract(model, IMAGES, layers="stage1")
    with pytest.raises(InvalidInput, match="no layer 'stage9'"):
        extract(model, IMAGES, layers=["stage9"])
    with pytest.raises(InvalidInput, match="'stem' and 'stem' would both be stem"):
        extract(model, IMAGES, layers=["stem", "stem"])
    with pytest.raises(InvalidInput, match="layer 'idle' did not run"):
        extract(Refused(lambda z: z), IMAGES, layers=["idle"])


def test_in_place_modules_behind_the_layer_do_not_touch_it() -> None:
    convolution = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(216, 4)).eval()
    features = extract(convolution, IMAGES, feature_layer="0").features
    with torch.no_grad():
        np.testing.assert_allclose(features, convolution[0](IMAGES).mean(dim=(2, 3)).numpy(), atol=1e-6)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(inplace=True), nn.Linear(6, 4)).eval()
    with torch.no_grad():
        np.testing.assert_allclose(extract(dense, IMAGES, layers=["1"]).layer_1, dense[:2](IMAGES).numpy(), atol=1e-6)


class Normalises(nn.Module):
    """Works on its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x.sub_(0.5).div_(0.25).flatten(1))
        return logits


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_model_that_changes_its_input_changes_a_copy(layout: torch.memory_format) -> None:
    model, images = Normalises().eval(), IMAGES.clone(memory_format=layout)
    found = extract(model, images)
    assert torch.equal(images, IMAGES)
    with torch.no_grad():
        np.testing.assert_allclose(found.logits, model(IMAGES.clone()).numpy(), atol=1e-5)
    assert found.head is not None


class Refused(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)
        self.idle = nn.Linear(1, 1)
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(self.fc(x.flatten(1)))


@pytest.mark.parametrize(
    ("answer", "message"),
    (
        (lambda z: (z, z), "it returned a tuple of 2. Wrap it"),
        (lambda z: {"logits": z}, "it returned a dict"),
        (lambda z: z[:, 0], r"it returned a tensor of shape \(2,\)"),
        (lambda z: z[:, :1], r"it returned a tensor of shape \(2, 1\)"),
    ),
)
def test_a_model_without_logits_is_explained(answer: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        extract(Refused(answer), IMAGES)


def test_a_missing_layer_is_explained() -> None:
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(InvalidInput, match=r"no linear layer gives the model's logits.*'0', '1', '2'"):
        extract(pooled, IMAGES)
    assert extract(pooled, IMAGES, feature_layer="0").features.shape == (23, 4)
    with pytest.raises(InvalidInput, match=r"no layer 'avgpool'; it has '0', '1', '2'"):
        extract(pooled, IMAGES, feature_layer="avgpool")
    with pytest.raises(InvalidInput, match="layer 'idle' did not run"):
        extract(Refused(lambda z: z), IMAGES, feature_layer="idle")
    sequence = nn.Sequential(nn.Flatten(2), nn.Flatten(), nn.Linear(192, 4))
    with pytest.raises(InvalidInput, match=r"layer '0' must give activations.*the shape \(2, 3, 64\)"):
        extract(sequence, IMAGES, feature_layer="0")


@pytest.mark.parametrize(
    ("data", "message"),
    (
        ("images", "got str"),
        ({"image": IMAGES}, "got dict"),
        ([{"image": IMAGES}], "at row 0 the data gave dict"),
        (IMAGES.byte(), "got uint8 pixels"),
        (IMAGES[:0], "data holds no images"),
        ([], "data holds no images"),
        (torch.zeros(5), r"the data gave shape \(5,\)"),
        ((IMAGES, LABELS[:3]), "equal lengths"),
        ([(IMAGES, torch.zeros(23, 4))], r"labels must have shape \(23,\)"),
        ([(IMAGES, LABELS), IMAGES], "some batches have labels"),
    ),
)
def test_data_that_cannot_be_used_is_explained(data: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        extract(convolutional(), data)


def test_labels_of_other_classes() -> None:
    model = convolutional()
    with pytest.raises(InvalidInput, match=r"label of row 9 is 9; the model's classes are 0 to 3\..*ood=True"):
        extract(model, (IMAGES, torch.cat([LABELS[:9], torch.arange(9, 23)])), batch_size=4)
    outputs = extract(model, (IMAGES, torch.arange(23)), ood=True)
    assert outputs.labels is not None
    assert set(outputs.labels.tolist()) == {-1}  # label 2 of another set is not our class 2


@pytest.mark.parametrize("path", (None, "outputs.safetensors"))
def test_nan_names_the_row_and_the_model_is_left_as_it_was(path: str | None, tmp_path: Path) -> None:
    model = convolutional().train()
    model[1].eval()  # a frozen normalisation stays frozen
    images = IMAGES.clone()
    images[17, 0, 3, 3] = float("nan")
    with pytest.raises(InvalidInput, match="logits row 17 holds NaN"):
        extract(model, images, batch_size=5, path=None if path is None else tmp_path / path)
    modes = [module.training for module in model.modules()]
    assert modes == [not isinstance(module, nn.BatchNorm2d) for module in model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert model.state_dict()["1.num_batches_tracked"] == 0


def test_mixed_precision_gives_float32() -> None:
    model = convolutional()
    outputs = extract(model, IMAGES, mixed_precision=True)
    exact = extract(model, IMAGES)
    assert outputs.logits.dtype == np.float32
    assert 0 < np.abs(outputs.logits - exact.logits).max() < 0.05


def test_half_precision_and_compiled_models_work() -> None:
    model = convolutional()
    expected = extract(model, IMAGES).logits
    compiled = torch.compile(model, backend="eager")
    np.testing.assert_array_equal(extract(compiled, IMAGES).logits, expected)  # type: ignore[arg-type]
    outputs = extract(convolutional().bfloat16(), IMAGES)
    assert outputs.logits.dtype == np.float32
    np.testing.assert_allclose(outputs.logits, expected, atol=0.1)


# -- to a file ----------------------------------------------------------------------------------------------


def same(a: ModelOutputs, b: ModelOutputs) -> None:
    assert sorted(a.names) == sorted(b.names)
    for name in a.names:
        np.testing.assert_array_equal(a.array(name), b.array(name))
    np.testing.assert_array_equal(a.labels, b.labels)
    assert a.head is not None
    assert a.head.equals(b.head)


def test_the_table_is_what_memory_would_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_table, "PART_SECONDS", 0.0)
    model, path = resnet20(4, width=4), tmp_path / "outputs.safetensors"
    expected = extract(model, (IMAGES, LABELS), batch_size=5, layers="all")
    assert expected.names == ("logits", "features", "stem", "stage1", "stage2", "stage3")
    outputs = extract(model, (IMAGES, LABELS), batch_size=5, layers="all", path=path)
    same(outputs, expected)
    same(ns.read_table(path), expected)
    assert [file.name for file in tmp_path.iterdir()] == ["outputs.safetensors"]
    ns.Mahalanobis(shrinkage="oas").fit(outputs).score(outputs)
    ns.NormScaling().fit(outputs).stream(outputs)

    def boom(*_: Any) -> None:
        raise AssertionError("a finished table is read, nothing is run")

    model.register_forward_pre_hook(boom)
    same(extract(model, (IMAGES, LABELS), layers="all", path=path), expected)


@pytest.mark.parametrize("kind", ("tensors", "batches"))
def test_an_interrupted_extraction_goes_on(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = resnet20(4, width=4), tmp_path / "outputs.safetensors"
    layers = ["stage1.0", "stem"]
    expected = extract(model, (IMAGES, LABELS), batch_size=6, layers=layers)
    calls: list[int] = []

    def interrupt(module: nn.Module, arguments: tuple[Tensor]) -> None:
        calls.append(len(arguments[0]))
        if len(calls) == 4:  # a look at two images, two batches, and then
            raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(interrupt)
    data = (lambda: (IMAGES, LABELS)) if kind == "tensors" else batches
    with pytest.raises(KeyboardInterrupt):
        extract(model, data(), batch_size=6, layers=layers, path=path)
    assert sorted(file.name for file in (tmp_path / "outputs.safetensors.parts").iterdir()) == [
        "000000000000-000000000012.safetensors",
        "head.safetensors",
        "manifest.json",
    ]
    same(extract(model, data(), batch_size=6, layers=layers, path=path), expected)
    assert calls == [2, 6, 6, 6, 2, 6, 5]
    handle.remove()


def test_it_may_go_on_in_batches_of_another_size(tmp_path: Path) -> None:
    model, path = convolutional(), tmp_path / "outputs.safetensors"
    expected = extract(model, (IMAGES, LABELS))

    def failing() -> Iterator[tuple[Tensor, Tensor]]:
        yield IMAGES[:6], LABELS[:6]
        yield IMAGES[6:12], LABELS[6:12]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        extract(model, failing(), path=path)
    outputs = extract(model, ((IMAGES[a : a + 5], LABELS[a : a + 5]) for a in range(0, 23, 5)), path=path)
    np.testing.assert_allclose(outputs.logits, expected.logits, rtol=1e-5, atol=1e-6)
    assert outputs.labels is not None
    assert outputs.labels.tolist() == LABELS.tolist()


def test_arrays_lie_in_the_file_as_processors_like_them(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Linear(5, 3))
    extract(model, (IMAGES, LABELS.clamp_max(2)), layers=["1"], path=tmp_path / "odd.safetensors")
    content = (tmp_path / "odd.safetensors").read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    for name, size in (("logits", 4), ("features", 4), ("layer_1", 4), ("head_bias", 4), ("labels", 8)):
        assert (8 + length + header[name]["data_offsets"][0]) % size == 0


def test_what_was_begun_with_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "outputs.safetensors"
    model = convolutional()
    extract(model, IMAGES, path=path)
    changed = IMAGES.clone()
    changed[22] += 1.0
    others: tuple[tuple[Any, dict[str, Any], str], ...] = (
        (changed, {}, "another data set"),
        ((IMAGES, LABELS), {}, "another data set"),
        (IMAGES[:20], {}, "another data set"),
        (IMAGES, {"feature_layer": "0"}, "another feature layer"),
        (IMAGES, {"layers": ["0"]}, "another choice of layers"),
        (IMAGES, {"ood": True}, "another value of ood"),
    )
    for data, options, what in others:
        with pytest.raises(InvalidInput, match=f"outputs.safetensors was made with {what}. Delete it"):
            extract(model, data, path=path, **options)
    with torch.no_grad():
        next(model.parameters())[0] += 1e-6
    with pytest.raises(InvalidInput, match="made with another model"):
        extract(model, IMAGES, path=path)
    replaced = extract(model, IMAGES, layers=["2"], path=path, replace=True)
    np.testing.assert_array_equal(replaced.logits, extract(model, IMAGES).logits)
    assert "layer_2" in replaced.names
    foreign = tmp_path / "foreign.safetensors"
    save_file({"logits": np.zeros((2, 2))}, foreign)
    for replace in (False, True):
        with pytest.raises(InvalidInput, match="was not made by extract"):
            extract(model, IMAGES, path=foreign, replace=replace)
    with pytest.raises(InvalidInput, match=r"must end in \.safetensors"):
        extract(model, IMAGES, path=tmp_path / "outputs.npz")
    with pytest.raises(InvalidInput, match="Make the folder first"):
        extract(model, IMAGES, path=tmp_path / "nowhere" / "outputs.safetensors")
    with pytest.raises(InvalidInput, match="shuffled DataLoader"):
        extract(model, DataLoader(Pictures(), shuffle=True), path=tmp_path / "new.safetensors")


SLOW = """
import sys, time, torch
from normscale.nn import resnet20, resumable_table
from normscale.nn.extraction import extract
torch.set_num_threads(1)
torch.manual_seed(3)
resumable_table.PART_SECONDS = 0.0
model = resnet20(4, width=4)
images, labels = torch.randn(60, 3, 8, 8), torch.arange(60) % 4
if sys.argv[2] == "slowly":
    model.register_forward_pre_hook(lambda *_: time.sleep(0.05))
extract(model, (images, labels), batch_size=4, layers="all", path=sys.argv[1])
"""


def test_killed_it_goes_on_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(textwrap.dedent(SLOW))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def start(path: Path, how: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-W", "error", str(tmp_path / "slow.py"), str(path), how]
        return subprocess.Popen(command, env=environment)

    whole, killed = tmp_path / "whole.safetensors", tmp_path / "killed.safetensors"
    undisturbed = start(whole, "quickly")
    process = start(killed, "slowly")
    parts = tmp_path / "killed.safetensors.parts"
    while not (parts.is_dir() and len(list(parts.glob("0*"))) >= 3):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not killed.exists()
    done = len(list(parts.glob("0*")))
    assert 3 <= done < 15
    assert start(killed, "quickly").wait(timeout=120) == 0
    assert undisturbed.wait(timeout=120) == 0
    assert killed.read_bytes() == whole.read_bytes()
    assert not parts.exists()


@pytest.mark.parametrize("replace", [False, True])
def test_parts_without_a_manifest_are_begun_anew(replace: bool, tmp_path: Path) -> None:
    """A kill between making the folder and its manifest, or in the middle of deleting it."""
    folder = tmp_path / "outputs.safetensors.parts"
    folder.mkdir()
    (folder / "000000000000-000000000005.safetensors").write_bytes(b"of something else")
    (folder / ".manifest.1-ab.tmp.json").write_text("{")
    model = convolutional()
    same(extract(model, IMAGES, path=tmp_path / "outputs.safetensors", replace=replace), extract(model, IMAGES))
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")
    (tmp_path / "outputs.safetensors").unlink()
    with pytest.raises(InvalidInput, match="was not made by extract"):
        extract(model, IMAGES, path=tmp_path / "outputs.safetensors", replace=replace)


def test_other_labels_are_another_data_set(tmp_path: Path) -> None:
    path, model = tmp_path / "outputs.safetensors", convolutional()
    extract(model, (IMAGES, LABELS), path=path)
    others = LABELS.clone()
    others[7] = (others[7] + 1) % 4
    with pytest.raises(InvalidInput, match="another data set"):
        extract(model, (IMAGES, others), path=path)
    assert extract(model, (IMAGES, others), path=path, replace=True).labels.tolist() == others.tolist()  # type: ignore[union-attr]


def test_leftovers_of_a_kill_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporary file, a part that starts nowhere, and parts that outlived the finished table."""
    path = tmp_path / "outputs.safetensors"
    model = convolutional()
    expected = extract(model, (IMAGES, LABELS), batch_size=5)
    images = IMAGES.clone()
    images[12] = float("nan")
    monkeypatch.setattr(resumable_table, "PART_SECONDS", 0.0)
    monkeypatch.setattr(batch_reader.BatchReader, "fingerprint", lambda self: "the same")
    with pytest.raises(InvalidInput, match="row 12"):
        extract(model, (images, LABELS), batch_size=5, path=path)
    folder = tmp_path / "outputs.safetensors.parts"
    (folder / ".000000000010-000000000015.1-ab.tmp.safetensors").write_bytes(b"half")
    (folder / "000000000020-000000000023.safetensors").write_bytes(b"nonsense")
    same(extract(model, (IMAGES, LABELS), batch_size=5, path=path), expected)
    folder.mkdir()
    same(extract(model, (IMAGES, LABELS), batch_size=5, path=path), expected)
    assert not folder.exists()


def test_the_bar_appears_on_a_terminal_once_it_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = convolutional()
    extract(model, IMAGES, batch_size=4)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    extract(model, IMAGES, batch_size=4)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(batch_reader, "QUIET_SECONDS", -1.0)
    extract(model, IMAGES, batch_size=4)
    assert "extracting" in capsys.readouterr().err
    extract(model, IMAGES, batch_size=4, progress=False)
    assert capsys.readouterr().err == ""
