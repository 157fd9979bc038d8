"""The record of a set, resizing against Pillow and torch, noise, and the embedded pictures."""

from __future__ import annotations

import hashlib
import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import normscale.bench.data
from bench.data.making import random_images
from normscale.bench.data import ImageSet, channel_moments, list_sets, load
from normscale.bench.data.image_set import resize
from normscale.errors import InvalidInput

EMBEDDED = Path(normscale.bench.data.__file__).parent / "embedded"


def a_set(n: int = 6, *shape: int, **fields: Any) -> ImageSet:
    return ImageSet("some", random_images(n, *(shape or (8, 8, 3))), np.arange(n) % 3, **fields)


# --- the record -----------------------------------------------------------------------------------------------------


def test_it_is_frozen_and_sliced() -> None:
    images = a_set(6, class_names=("a", "b", "c"), mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    with pytest.raises(FrozenInstanceError):
        images.name = "other"  # type: ignore[misc]
    assert len(images) == 6
    assert images.shape == (8, 8, 3)
    assert images.n_classes == 3
    part = images[2:4]
    assert np.shares_memory(part.images, images.images)
    assert (part.labels.tolist(), part.class_names, part.mean) == ([2, 0], images.class_names, images.mean)
    assert images[images.labels == 1].labels.tolist() == [1, 1]
    assert_array_equal(images[np.array([5, 0])].images, images.images[[5, 0]])
    assert images.labels.dtype == np.int64


@pytest.mark.parametrize(
    ("images", "fields", "says"),
    [
        (np.zeros((4, 8, 8), np.uint8), {}, r"got \(4, 8, 8\)\. For grey pictures pass images\[\.\.\., None\]"),
        (np.zeros((4, 3, 8, 8), np.uint8), {}, r"got \(4, 3, 8, 8\)\. For channels first pass images\.transpose"),
        (np.zeros((4, 8, 8, 2), np.uint8), {}, r"with 1 or 3 channels; got \(4, 8, 8, 2\)"),
        (np.zeros((4, 0, 8, 3), np.uint8), {}, r"got \(4, 0, 8, 3\)"),
        (np.zeros((4, 8, 8, 3)), {}, r"must be uint8 with normalised=False; got float64.*np\.rint"),
        (np.zeros((4, 8, 8, 3), np.uint8), {"normalised": True}, r"must be float32 with normalised=True; got uint8"),
        (np.zeros((3, 8, 8, 3), np.uint8), {}, r"labels must have one entry per row \(3\); got 4"),
        (np.zeros((4, 8, 8, 3), np.uint8), {"class_names": ("a", "b")}, r"labels\[2\] is 2; .* from 0 to 1"),
        (np.zeros((4, 8, 8, 3), np.uint8), {"mean": (0.5,)}, r"mean of 'bad' must have one number per channel \(3\)"),
        (np.zeros((4, 8, 8, 1), np.uint8), {"std": (0.0,)}, r"std of 'bad' must be greater than 0"),
    ],
)
def test_what_does_not_fit_is_explained(images: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        ImageSet("bad", images, np.array([0, 1, 2, -1]), **fields)


def test_moments_are_those_of_the_pixels() -> None:
    images = random_images(5000, 6, 5, 3)
    mean, std = channel_moments(images)
    assert_allclose(mean, (images / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
    assert_allclose(std, (images / 255).std(axis=(0, 1, 2)), rtol=1e-12)


# --- resizing -------------------------------------------------------------------------------------------------------

SIZES = [
    (64, 64, 32, 32),
    (32, 32, 64, 64),
    (37, 53, 32, 20),
    (8, 8, 32, 32),
    (32, 32, 8, 8),
    (5, 7, 1, 1),
    (4, 4, 4, 9),
]


@pytest.mark.parametrize(("height", "width", "new_height", "new_width"), SIZES)
def test_resizing_is_torchs(height: int, width: int, new_height: int, new_width: int) -> None:
    images = random_images(3, height, width, 3)
    tensor = torch.from_numpy(images).permute(0, 3, 1, 2).double()
    theirs = torch.nn.functional.interpolate(tensor, (new_height, new_width), mode="bilinear", antialias=True)
    difference = resize(images, new_height, new_width, 3) - theirs.permute(0, 2, 3, 1).numpy()
    assert np.abs(difference).max() <= 1.01  # Pillow rounds twice, after each direction


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(0, 255))
def test_a_plain_picture_stays_plain(height: int, new_height: int, new_width: int, value: int) -> None:
    images = np.full((2, height, 3, 1), value, np.uint8)
    assert (resize(images, new_height, new_width, 1) == value).all()


def test_grey_is_the_usual_luma() -> None:
    images = random_images(300, 2, 2, 3)
    luma = images @ np.array([0.299, 0.587, 0.114])
    assert np.abs(resize(images, 2, 2, 1)[..., 0] - luma).max() <= 0.51


def test_a_set_is_made_to_fit() -> None:
    colour = a_set(4, 16, 16, 3, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    grey = colour.resized(8, 8, 1)
    assert grey.shape == (8, 8, 1)
    assert grey.mean is None
    assert_array_equal(grey.images, resize(resize(colour.images, 16, 16, 1), 8, 8, 1))
    again = grey.resized(8, 8, 3)
    assert_array_equal(again.images, np.repeat(grey.images, 3, axis=3))
    assert_array_equal(again.labels, colour.labels)
    assert colour.resized(16, 16, 3) is colour
    noise = load("gaussian", like=colour)
    with pytest.raises(InvalidInput, match=r"noise of 16x16x3 .* cannot be made 8x8x3"):
        noise.resized(8, 8, 3)


# --- noise ----------------------------------------------------------------------------------------------------------


def test_noise_has_the_distribution_it_is_named_for() -> None:
    like = ImageSet("like", np.zeros((200, 32, 32, 3), np.uint8), np.full(200, -1))
    gaussian, uniform = (load(name, "test", like=like).images.astype(np.float64) for name in ("gaussian", "uniform"))
    n = gaussian.size
    assert gaussian.shape == uniform.shape == like.images.shape
    assert abs(gaussian.mean()) < 5 / np.sqrt(n)
    assert abs(gaussian.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((gaussian**4).mean() - 3) < 5 * np.sqrt(96 / n)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    counts, _ = np.histogram(uniform, 20, (0, 1))
    assert np.abs(counts - n / 20).max() < 5 * np.sqrt(n / 20)
    pairs = np.corrcoef(gaussian[..., :-1, 0].ravel(), gaussian[..., 1:, 0].ravel())[0, 1]
    assert abs(pairs) < 0.02  # neighbours know nothing of each other


def test_noise_is_the_same_for_the_same_seed() -> None:
    like = a_set(20)
    first, again, other = (load("uniform", like=like, seed=seed) for seed in (3, 3, 4))
    assert_array_equal(first.images, again.images)
    assert (first.images != other.images).any()
    assert first.normalised
    assert first.images.dtype == np.float32
    assert (first.labels == -1).all()
    with pytest.raises(InvalidInput, match="gaussian noise has the size of another set; pass like="):
        load("gaussian")
    with pytest.raises(InvalidInput, match="seed must be a whole number >= 0"):
        load("gaussian", like=like, seed=-1)


# --- embedded -------------------------------------------------------------------------------------------------------


def test_the_embedded_file_is_the_one_on_record() -> None:
    origin = json.loads((EMBEDDED / "origin.json").read_text())
    data = (EMBEDDED / "pictures.npz").read_bytes()
    assert hashlib.sha256(data).hexdigest() == origin["sha256"]
    assert len(data) < 1_500_000
    with np.load(EMBEDDED / "pictures.npz") as file:
        for name, digest in origin["arrays"].items():
            assert hashlib.sha256(file[name].tobytes()).hexdigest() == digest


def test_embedded_sets_are_what_their_records_say() -> None:
    readme = (EMBEDDED / "README.md").read_text()
    sets = [source for source in list_sets() if source.kind == "embedded"]
    assert len(sets) == 5
    for source in sets:
        assert source.licence in readme
        for split, count in source.images.items():
            images = load(source.name, split)
            assert len(images) == count
            assert images.shape == source.shape == (8, 8, 1)
            assert images.images.dtype == np.uint8
            assert images.class_names == source.class_names
            assert len(np.unique(images.labels)) == images.n_classes
            assert images.images.std() > 15
        assert (load(source.name).mean is None) == (source.name != "digits")


def test_the_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    train, test = load("digits", "train"), load("digits", "test")
    ours = np.concatenate([train.images, test.images])[..., 0]
    keys = {image.tobytes(): label for image, label in zip(ours, [*train.labels, *test.labels], strict=True)}
    assert len(keys) == 1797
    for image, label in zip(theirs.images, theirs.target, strict=True):
        assert keys[np.rint(image * 255 / 16).astype(np.uint8).tobytes()] == label
    assert np.bincount(test.labels).tolist() == [50] * 10
    assert test.mean == train.mean  # normalised alike
    assert train.mean is not None
    assert_allclose(train.mean, (train.images / 255).mean(), rtol=1e-12)


def test_no_embedded_stranger_is_a_digit() -> None:
    """The nearest digit of a test digit is nearer, and usually right; strangers are farther from all digits."""
    train, test = load("digits", "train"), load("digits", "test")

    def nearest(images: Any) -> tuple[Any, Any]:
        rows, known = (x.reshape(len(x), -1).astype(np.float64) for x in (images, train.images))
        squares = (rows**2).sum(1)[:, None] - 2 * rows @ known.T + (known**2).sum(1)
        return np.sqrt(squares.min(axis=1)), train.labels[squares.argmin(axis=1)]

    distance, label = nearest(test.images)
    assert (label == test.labels).mean() > 0.97
    for name in ("fashion", "letters", "photos", "surfaces"):
        assert np.median(nearest(load(name).images)[0]) > np.quantile(distance, 0.8)
