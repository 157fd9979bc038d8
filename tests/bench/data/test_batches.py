"""Batches against a slow loop over pictures that does the same, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bench.data.making import random_images
from normscale.bench.data import ImageSet, load
from normscale.bench.data.batches import Batches
from normscale.errors import InvalidInput
from program import python

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


def a_set(n: int = 50, height: int = 8, width: int = 6, channels: int = 3) -> ImageSet:
    images = random_images(n, height, width, channels)
    return ImageSet("some", images, np.arange(n), None, MEAN[:channels], STD[:channels])


def slow_epoch(batches: Batches, images: ImageSet, epoch: int) -> tuple[Any, Any]:
    """Pad, crop, mirror and normalise every picture by itself, from what the epoch drew."""
    order, down, right, mirrored = (tensor.numpy() for tensor in batches._draw(epoch))
    rows = []
    for position, row in enumerate(order):
        pad = batches.padding
        padded = np.pad(images.images[row], ((pad, pad), (pad, pad), (0, 0)))
        height, width, _ = images.shape
        crop = padded[down[position] : down[position] + height, right[position] : right[position] + width]
        if mirrored[position]:
            crop = crop[:, ::-1]
        rows.append(((crop / 255 - np.array(images.mean)) / np.array(images.std)).transpose(2, 0, 1))
    return np.stack(rows), images.labels[order]


def together(batches: Any) -> tuple[Any, Any]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images).numpy(), torch.cat(labels).numpy()


@settings(max_examples=40)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3]),
    padding=st.integers(0, 4),
    flip=st.booleans(),
    channels_last=st.booleans(),
    batch_size=st.integers(1, 60),
    seed=st.integers(0, 5),
)
def test_an_epoch_is_what_a_loop_over_pictures_gives(
    height: int, width: int, channels: int, padding: int, flip: bool, channels_last: bool, batch_size: int, seed: int
) -> None:
    images = a_set(50, height, width, channels)
    batches = Batches(images, batch_size, padding=padding, flip=flip, channels_last=channels_last, seed=seed)
    ours, labels = together(batches.epoch(2))
    theirs, their_labels = slow_epoch(batches, images, 2)
    assert_allclose(ours, theirs, atol=2e-6)
    assert_array_equal(labels, their_labels)
    assert sorted(labels.tolist()) == list(range(50))  # every picture once


def test_draws_are_uniform_and_all_offsets_occur() -> None:
    batches = Batches(a_set(9000, 2, 2, 1), 100, padding=4)
    order, down, right, mirrored = (tensor.numpy() for tensor in batches._draw(0))
    for offsets in (down, right):
        assert np.abs(np.bincount(offsets, minlength=9) - 1000).max() < 5 * np.sqrt(1000)
    assert abs(np.corrcoef(down, right)[0, 1]) < 0.05
    assert abs(mirrored.mean() - 0.5) < 0.03
    assert abs(np.corrcoef(order, np.arange(9000))[0, 1]) < 0.05
    no_flip = Batches(a_set(100), 10, flip=False)
    assert not no_flip._draw(0)[3].any()


def test_the_same_seed_and_epoch_give_the_same_and_others_do_not() -> None:
    first, again = Batches(a_set(), 16, seed=7), Batches(a_set(), 16, seed=7)
    assert_array_equal(together(first.epoch(3))[0], together(again.epoch(3))[0])
    list(first.epoch(0))  # what was iterated before does not matter
    torch.manual_seed(99)  # nor does the global state, which is left alone
    before = torch.get_rng_state()
    assert_array_equal(together(first.epoch(3))[1], together(again.epoch(3))[1])
    assert torch.equal(before, torch.get_rng_state())
    assert (together(first.epoch(4))[1] != together(first.epoch(3))[1]).any()
    other = Batches(a_set(), 16, seed=8)
    assert (together(other.epoch(3))[1] != together(first.epoch(3))[1]).any()
    # the layout of the memory changes nothing but the layout
    last = Batches(a_set(), 16, seed=7, channels_last=True)
    assert_allclose(together(last.epoch(3))[0], together(first.epoch(3))[0], atol=1e-6)


def test_the_same_in_another_process() -> None:
    code = (
        "import hashlib, sys\nfrom normscale.bench.data import load\nfrom normscale.bench.data.batches import Batches\n"
        "def digest():\n"
        "    batches = Batches(load('digits'), 64, padding=1, seed=5)\n"
        "    return hashlib.sha256(b''.join(x.numpy().tobytes() for x, _ in batches.epoch(1))).hexdigest()\n"
    )
    names: dict[str, Any] = {}
    exec(code, names)
    other = python(code + "print(digest())")
    assert other.stdout.strip() == names["digest"]()


def test_an_epoch_is_taken_up_in_the_middle() -> None:
    batches = Batches(a_set(), 16, seed=1)
    whole, rest = list(batches.epoch(5)), list(batches.epoch(5, start=2))
    assert len(whole) == len(batches) == 4
    assert len(rest) == 2
    for (a, b), (c, d) in zip(whole[2:], rest, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)


def test_drop_last_and_lengths() -> None:
    assert [len(labels) for _, labels in Batches(a_set(), 16).epoch(0)] == [16, 16, 16, 2]
    dropped = Batches(a_set(), 16, drop_last=True)
    assert [len(labels) for _, labels in dropped.epoch(0)] == [16, 16, 16]
    assert len(dropped) == 3
    assert sum(len(labels) for _, labels in dropped) == 50  # evaluation leaves nothing out


@pytest.mark.parametrize("channels_last", [False, True])
def test_plain_is_the_set_normalised(channels_last: bool) -> None:
    images = a_set()
    batches = Batches(images, 16, channels_last=channels_last)
    values, labels = together(batches)
    assert_allclose(values, ((images.images / 255 - MEAN) / STD).transpose(0, 3, 1, 2), atol=2e-6)
    assert_array_equal(labels, images.labels)
    first, _ = next(iter(batches))
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert first.is_contiguous(memory_format=layout)
    augmented, augmented_labels = next(batches.epoch(0))
    assert augmented.is_contiguous(memory_format=layout)
    assert (augmented.dtype, augmented_labels.dtype) == (torch.float32, torch.int64)


def test_the_set_is_left_alone() -> None:
    images = a_set()
    before = images.images.copy()
    for channels_last in (False, True):
        batches = Batches(images, 16, padding=0, channels_last=channels_last)
        kept = together(batches)[0]
        list(batches.epoch(0))  # a flip in place would show here
        assert_array_equal(together(batches)[0], kept)
    assert_array_equal(images.images, before)


def test_without_augmentation_an_epoch_is_only_shuffled() -> None:
    images = a_set()
    batches = Batches(images, 16, augment=False)
    values, labels = together(batches.epoch(0))
    plain = together(batches)[0]
    assert_array_equal(values, plain[labels])
    assert (labels != np.arange(50)).any()


def test_noise_passes_through_as_it_is() -> None:
    noise = load("gaussian", like=a_set())
    for channels_last in (False, True):
        values, labels = together(Batches(noise, 16, augment=False, channels_last=channels_last))
        assert_array_equal(values, noise.images.transpose(0, 3, 1, 2))
        assert (labels == -1).all()
    with pytest.raises(InvalidInput, match=r"'gaussian' is in normalised space .* augment=False"):
        Batches(noise, 16)


def test_strangers_are_normalised_like_the_networks_own() -> None:
    digits, fashion = load("digits"), load("fashion")
    with pytest.raises(InvalidInput, match="'fashion' has no mean and std of its own"):
        Batches(fashion, 16)
    values, _ = together(Batches(fashion, 300, augment=False, mean=digits.mean, std=digits.std))
    assert digits.mean is not None
    assert digits.std is not None
    assert_allclose(values[:, 0], (fashion.images[..., 0] / 255 - digits.mean[0]) / digits.std[0], atol=2e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number >= 1"),
        ({"padding": -1}, "padding must be a whole number >= 0"),
        ({"seed": -1}, "seed must be"),
        ({"mean": (0.5,)}, r"one number per channel \(3\)"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        Batches(a_set(), **options)
