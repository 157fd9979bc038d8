"""The published statistics against the real pictures, where they are at hand.

Packs (.npz) are looked for in ``$NORMSCALE_PACKS``, in ``packs/`` beside the package and in ``../shared/data``.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from normscale.bench.data import find_source, load
from normscale.bench.data.image_set import channel_moments

ROOT = Path(__file__).parents[3]
PLACES = [Path(os.environ.get("NORMSCALE_PACKS") or ROOT / "packs"), ROOT.parent / "shared" / "data"]

CIFAR100_MEANS = (0.50707516, 0.48654887, 0.44091784)
SVHN_TRAIN = [4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659]
SVHN_TEST = [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]


def pack(name: str) -> Path:
    """A pack's file; without it the test is skipped."""
    for folder in PLACES:
        if (folder / f"{name}.npz").exists():
            return folder / f"{name}.npz"
    pytest.skip(f"no pack {name}.npz here (name its folder in NORMSCALE_PACKS)")


def labels_of(name: str) -> Any:
    """Only the labels: a pack's arrays are read one by one."""
    with np.load(pack(name)) as file:
        return file["labels"]


@pytest.mark.parametrize(("name", "each"), [("cifar100_train", 500), ("cifar100_test", 100)])
def test_cifar100_has_as_many_of_every_class(name: str, each: int) -> None:
    assert np.bincount(labels_of(name)).tolist() == [each] * 100


def test_cifar100_means_to_eight_digits() -> None:
    mean, std = channel_moments(load(f"npz:{pack('cifar100_train')}").images)
    assert mean == pytest.approx(CIFAR100_MEANS, abs=5e-9)
    source = find_source("cifar100")
    assert source.mean == tuple(round(value, 4) for value in mean)
    assert source.std == tuple(round(value, 4) for value in std)


@pytest.mark.parametrize(("name", "counts"), [("svhn_train", SVHN_TRAIN), ("svhn_test", SVHN_TEST)])
def test_svhn_has_the_official_balance_of_digits(name: str, counts: list[int]) -> None:
    labels = labels_of(name)
    if name == "svhn_test" and len(labels) == 10_000:
        shares = np.bincount(labels, minlength=10) / len(labels)  # a draw without replacement from the official ones
        expected = np.array(counts) / sum(counts)
        assert np.all(np.abs(shares - expected) < 4 * np.sqrt(expected * (1 - expected) / len(labels)))
    else:
        assert np.bincount(labels).tolist() == counts
        assert len(labels) == find_source("svhn").images[name.removeprefix("svhn_")]


def test_svhn_statistics_are_near_the_published_ones() -> None:
    mean, std = channel_moments(load(f"npz:{pack('svhn_train')}").images)
    source = find_source("svhn")
    assert mean == pytest.approx(source.mean, abs=1e-3)  # cropped again: about a grey level, 0.004, per pixel
    assert std == pytest.approx(source.std, abs=3e-3)


@pytest.mark.parametrize(("name", "each"), [("tinyimagenet32_train", 500), ("tinyimagenet32_val", 50)])
def test_tinyimagenet_has_as_many_of_every_class(name: str, each: int) -> None:
    assert np.bincount(labels_of(name)).tolist() == [each] * 200


def test_tinyimagenet_statistics_are_those_of_its_training_pictures() -> None:
    """In their own size; the pack is counted in parts, for it is 1.2 GB."""
    counts = np.zeros((3, 256), np.int64)
    with zipfile.ZipFile(pack("tinyimagenet64_train")) as archive, archive.open("images.npy") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        assert shape == (100_000, 64, 64, 3)
        assert dtype == np.uint8
        while part := file.read(64 * 64 * 3 * 2000):
            for channel, values in enumerate(np.frombuffer(part, np.uint8).reshape(-1, 3).T):
                counts[channel] += np.bincount(values, minlength=256)
    shares = counts / counts.sum(axis=1, keepdims=True)
    levels = np.arange(256) / 255
    mean = shares @ levels
    std = np.sqrt(shares @ levels**2 - mean**2)
    source = find_source("tinyimagenet")
    assert source.mean == tuple(round(value, 4) for value in mean.tolist())
    assert source.std == tuple(round(value, 4) for value in std.tolist())
