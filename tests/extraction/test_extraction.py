"""Extraction from any network and any source, without a trace on the model."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from normscale import InvalidInput, ModelOutputs
from normscale.bench.data.batches import Batches
from normscale.bench.data.image_set import ImageSet
from normscale.bench.train import resnet18, resnet20
from normscale.extraction import batch_reader, extract, extract_batches

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


def test_our_own_batches_are_read_in_order_and_not_augmented() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (23, 8, 8, 3), dtype=np.uint8)
    pictures = Batches(
        ImageSet("own", pixels, LABELS.numpy(), ("a", "b", "c", "d")), 5, mean=(0.5,) * 3, std=(0.25,) * 3
    )
    model = convolutional()
    expected = extract(model, torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 * 4 - 2)
    outputs = extract(model, pictures)
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


@pytest.mark.parametrize("make", (resnet18, resnet20))
def test_features_of_our_networks_are_the_penultimate_layer(make: Any) -> None:
    model = make(4, width=4)
    check(extract(model, (IMAGES, LABELS), batch_size=7), model, model.eval().features(IMAGES))


def test_the_classifier_is_the_layer_the_logits_come_from() -> None:
    model = WithHeads()
    check(extract(model, (IMAGES, LABELS)), model, model.body(IMAGES).relu() + 1.0)


def test_a_classifier_followed_by_something_is_found_too() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.Linear(4, 4), nn.LogSoftmax(dim=1))
    outputs = extract(model, (IMAGES, LABELS))
    check(outputs, model[:3], model[:2](IMAGES))  # logits, not what the softmax makes of them
    rebuilds(outputs)
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


def test_the_head_is_the_layer_that_makes_logits_of_features() -> None:
    for model in (convolutional(), resnet20(4, width=4), resnet18(4, width=4), WithHeads()):
        rebuilds(extract(model, (IMAGES, LABELS)))
    unbiased = nn.Sequential(nn.Flatten(), nn.Linear(192, 4, bias=False))
    outputs = extract(unbiased, IMAGES)
    rebuilds(outputs)
    assert outputs.head is not None
    assert outputs.head.bias.tolist() == [0.0] * 4
    named = extract(convolutional(), IMAGES, feature_layer="4")  # the pooling before the flattening: the same numbers
    rebuilds(named)
    for half in (extract(convolutional().bfloat16(), IMAGES), extract(convolutional(), IMAGES, dtype="bfloat16")):
        assert half.head is not None
        np.testing.assert_allclose(half.head.logits(half.features), half.logits, atol=0.05)


def test_where_there_is_no_such_layer_there_is_no_head() -> None:
    class Cosine(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.normalize(x) @ nn.functional.normalize(self.weight).T

    body = nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.Tanh())
    for model, options in (
        (nn.Sequential(*body, nn.Linear(5, 4), nn.Hardtanh(-0.01, 0.01)), {}),
        (nn.Sequential(*body, Cosine(5, 4)), {}),
        (nn.Sequential(*body, nn.Linear(5, 4)), {"feature_layer": "1"}),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), {"feature_layer": "0"}),
        (nn.Sequential(*body, nn.Linear(5, 4)), {"features": False}),
    ):
        assert extract(model, IMAGES, **options).head is None


def test_further_layers_go_by_their_modules_names() -> None:
    model = resnet20(4, width=4)
    outputs = extract(model, (IMAGES, LABELS), layers="all", batch_size=7)
    assert set(outputs.names) == {"logits", "features", "stem", "stage1", "stage2", "stage3"}
    with torch.no_grad():
        maps = IMAGES
        for name in model.eval().stage_names:
            maps = getattr(model, name)(maps)
            np.testing.assert_allclose(outputs.array(name), maps.mean(dim=(2, 3)).numpy(), rtol=1e-3, atol=1e-5)
            assert outputs.array(name).dtype == np.float32
    some = extract(model, IMAGES, layers=["stage2.1.bn2", "classifier"], features=False)
    assert some.names == ("logits", "stage2_1_bn2", "classifier")
    np.testing.assert_array_equal(some.array("classifier"), some.logits)


def test_a_layer_called_like_an_argument_gets_another_name() -> None:
    pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = nn.Sequential(OrderedDict(stem=nn.Conv2d(3, 5, 3), head=pool, classifier=nn.Linear(5, 4)))
    outputs = extract(model, IMAGES, layers=["head"])
    assert outputs.names == ("logits", "features", "layer_head")
    np.testing.assert_allclose(outputs.array("layer_head"), outputs.features, rtol=1e-4, atol=1e-6)


def test_layers_that_cannot_be_read_are_explained() -> None:
    model = resnet20(4, width=4)
    with pytest.raises(InvalidInput, match=r"such as \['4', '5', '6'\]"):
        extract(convolutional(), IMAGES, layers="all")
    with pytest.raises(InvalidInput, match=r"layers must be None or a sequence of names.*got 'stage1'"):
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
        (lambda z: {"scores": z}, "it returned a dict"),
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
    single = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 192)), nn.Linear(192, 4))
    with pytest.raises(InvalidInput, match=r"layer '0' must give activations.*the shape \(384,\)"):
        extract(single, IMAGES, feature_layer="0")


@pytest.mark.parametrize(
    ("data", "message"),
    (
        ("images", "there is no file or folder images"),
        (3, "got int"),
        ({"image": IMAGES}, "unexpected keyword argument 'image'"),
        ([{"names": ["a"]}], "a batch that is a dictionary needs arrays; at row 0 it holds names"),
        ([{"a": IMAGES, "b": IMAGES[:3]}], r"the arrays of a batch must have equal lengths; at row 0: \[3, 23\]"),
        ([["a"]], "a batch must be images, .* at row 0 the data gave list"),
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


def test_nan_names_the_row_and_the_model_is_left_as_it_was() -> None:
    model = convolutional().train()
    model[1].eval()  # a frozen normalisation stays frozen
    images = IMAGES.clone()
    images[17, 0, 3, 3] = float("nan")
    with pytest.raises(InvalidInput, match="logits row 17 holds NaN"):
        extract(model, images, batch_size=5)
    modes = [module.training for module in model.modules()]
    assert modes == [not isinstance(module, nn.BatchNorm2d) for module in model.modules()]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert model.state_dict()["1.num_batches_tracked"] == 0


def test_mixed_precision_gives_float32() -> None:
    model = convolutional()
    said: list[str] = []
    outputs = extract(model, IMAGES, dtype="bfloat16", say=said.append)
    exact = extract(model, IMAGES)
    assert outputs.logits.dtype == np.float32
    assert 0 < np.abs(outputs.logits - exact.logits).max() < 0.05
    assert "bfloat16: on the first 23 inputs the logits are at most" in said[0]
    assert "23 of 23 predicted classes are the same" in said[0]
    with pytest.raises(InvalidInput, match="dtype must be"):
        extract(model, IMAGES, dtype="int8")


def test_half_precision_and_compiled_models_work() -> None:
    model = convolutional()
    expected = extract(model, IMAGES).logits
    compiled = torch.compile(model, backend="eager")
    np.testing.assert_array_equal(extract(compiled, IMAGES).logits, expected)
    outputs = extract(convolutional().bfloat16(), IMAGES)
    assert outputs.logits.dtype == np.float32
    np.testing.assert_allclose(outputs.logits, expected, atol=0.1)


def test_batch_by_batch_it_is_the_same_and_the_model_is_put_back() -> None:
    model = convolutional().train()
    whole = extract(model, (IMAGES, LABELS), batch_size=5)
    parts = extract_batches(model, (IMAGES, LABELS), batch_size=5)
    first = next(parts)
    assert len(first) == 5
    assert not model.training
    parts.close()  # type: ignore[attr-defined]
    assert model.training
    together = ModelOutputs.concatenate([first, *list(extract_batches(model, (IMAGES, LABELS), batch_size=5))[1:]])
    for name in whole.names:
        np.testing.assert_array_equal(whole.array(name), together.array(name))
    np.testing.assert_array_equal(whole.labels, together.labels)


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
