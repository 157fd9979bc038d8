"""Bring your own: .npz files and class folders, right and wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from bench.data.making import picture, random_images
from normscale.bench.data import ImageSet, from_folder, from_npz, load
from normscale.bench.train.run import train_network
from normscale.errors import FileFormatError, InvalidInput

IMAGES = random_images(9, 12, 10, 3)
LABELS = np.arange(9) % 4


# --- npz ------------------------------------------------------------------------------------------------------------


def test_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, images=IMAGES, labels=LABELS, class_names=np.array(["a", "b", "c", "d"]))
    mine = load(f"npz:{path}")
    assert_array_equal(mine.images, IMAGES)
    assert_array_equal(mine.labels, LABELS)
    assert (mine.name, mine.class_names) == ("mine", ("a", "b", "c", "d"))
    assert mine.mean is not None
    assert_allclose(mine.mean, (IMAGES / 255).mean(axis=(0, 1, 2)))
    assert load(f"npz:{path}", like=load("digits")).shape == (8, 8, 1)


def test_npz_without_labels_or_already_normalised(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES)
    bare = from_npz(tmp_path / "a.npz")
    assert (bare.labels == -1).all()
    assert bare.mean is None
    np.savez_compressed(tmp_path / "b.npz", images=IMAGES.astype(np.float32), normalised=True)
    assert from_npz(tmp_path / "b.npz").normalised


def test_npz_by_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "test.npz", images=IMAGES[:2], labels=LABELS[:2])
    assert len(load(f"npz:{tmp_path}")) == len(load(f"npz:{tmp_path}", "train")) == 9
    assert len(load(f"npz:{tmp_path}", "test")) == 2


@pytest.mark.parametrize(
    ("arrays", "error", "says"),
    [
        ({"x": IMAGES}, InvalidInput, "must hold 'images' .* it holds x"),
        ({}, InvalidInput, "it holds nothing"),
        ({"images": IMAGES / 255}, InvalidInput, r"must be uint8 .* got float64\. For values from 0 to 1"),
        ({"images": IMAGES[..., 0]}, InvalidInput, r"For grey pictures pass images\[\.\.\., None\]"),
        ({"images": IMAGES, "labels": LABELS[:3]}, InvalidInput, r"labels must have one entry per row \(9\); got 3"),
        ({"images": IMAGES, "labels": np.array(["a"] * 9)}, InvalidInput, "labels must hold real numbers"),
        ({"images": np.array([object()] * 9)}, FileFormatError, "no .npz file of plain arrays"),
    ],
)
def test_npz_errors(tmp_path: Path, arrays: dict[str, Any], error: type[Exception], says: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(error, match=says):
        load(f"npz:{tmp_path / 'bad.npz'}")


def test_npz_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no file .*missing"):
        load(f"npz:{tmp_path / 'missing.npz'}")
    with pytest.raises(InvalidInput, match=r"there is no file .*test\.npz"):
        load(f"npz:{tmp_path}", "test")
    path = tmp_path / "a.npz"
    np.savez(path, images=IMAGES)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    for content in (b"", b"nonsense", whole[:-100], bytes(damaged)):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"is damaged or no \.npz file"):
            load(f"npz:{path}")
    np.save(tmp_path / "b.npy", IMAGES)
    (tmp_path / "b.npy").rename(path)
    with pytest.raises(FileFormatError, match="damaged"):
        load(f"npz:{path}")


# --- folders --------------------------------------------------------------------------------------------------------


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def test_class_folders(tmp_path: Path) -> None:
    red, blue = (200, 0, 0), (0, 0, 200)
    put(tmp_path / "dog" / "2.png", picture(red, 6, 5, "PNG"))
    put(tmp_path / "dog" / "deeper" / "1.png", picture(blue, 6, 5, "PNG"))
    put(tmp_path / "cat" / "x.BMP", picture(9, 6, 5, "BMP"))
    put(tmp_path / "cat" / "notes.txt", b"not a picture")
    put(tmp_path / "cat" / ".hidden.png", b"not a picture either")
    put(tmp_path / ".git" / "y.png", b"nor this")
    animals = load(f"folder:{tmp_path}")
    assert animals.class_names == ("cat", "dog")
    assert animals.labels.tolist() == [0, 1, 1]
    assert animals.shape == (5, 6, 3)
    assert animals.images[:, 0, 0].tolist() == [[9, 9, 9], list(red), list(blue)]
    assert animals.mean is not None


def test_folder_by_split_and_without_classes(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("test", 2)):
        for number in range(count):
            put(tmp_path / split / "only" / f"{number}.png", picture(number, 4, 4, "PNG"))
    assert len(load(f"folder:{tmp_path}", "train")) == 3
    assert load(f"folder:{tmp_path}", "test").class_names == ("only",)
    flat = from_folder(tmp_path / "test" / "only")
    assert flat.labels.tolist() == [-1, -1]
    assert flat.class_names is None
    assert flat.shape == (4, 4, 1)  # grey when all are
    assert flat.images[:, 0, 0, 0].tolist() == [0, 1]


def test_classes_have_one_number_in_all_splits(tmp_path: Path) -> None:
    for split, names in (("train", "bird cat dog"), ("test", "cat dog ape"), ("other", "cat")):
        for name in names.split():
            put(tmp_path / split / name / "1.png", picture(5, 4, 4, "PNG"))
    test = load(f"folder:{tmp_path}", "test")
    assert test.class_names == ("bird", "cat", "dog", "ape")  # a class without training rows comes last
    assert test.labels.tolist() == [3, 1, 2]  # ape, cat, dog: rows are in the order of their folders
    assert from_folder(tmp_path, "other").labels.tolist() == [1]
    with pytest.raises(InvalidInput, match="has classes that training has not: ape"):
        train_network(tmp_path / "run", f"folder:{tmp_path}", width=4, recipe="fast", epochs=1)


def test_sixteen_bits_of_grey_are_not_cut_off(tmp_path: Path) -> None:
    ramp = np.arange(0, 65536, 4096, dtype=np.uint16).reshape(4, 4)
    (tmp_path / "a").mkdir()
    Image.fromarray(ramp).save(tmp_path / "a" / "1.png")
    read = from_folder(tmp_path).images[0, :, :, 0]
    assert read.ravel().tolist() == (ramp >> 8).ravel().tolist()


def test_pictures_of_unequal_size_need_like(tmp_path: Path) -> None:
    put(tmp_path / "a" / "1.png", picture((10, 20, 30), 40, 20, "PNG"))
    put(tmp_path / "a" / "2.png", picture(77, 7, 9, "PNG"))
    with pytest.raises(InvalidInput, match=r"2\.png is 9x7 and .*1\.png is 20x40; pass like="):
        load(f"folder:{tmp_path}")
    fitted = load(f"folder:{tmp_path}", like=ImageSet("like", IMAGES, LABELS))
    assert fitted.shape == (12, 10, 3)
    assert fitted.images[0, 5, 5].tolist() == [10, 20, 30]
    grey = load(f"folder:{tmp_path}", like=load("digits"))
    assert grey.shape == (8, 8, 1)
    assert grey.images[:, 0, 0, 0].tolist() == [18, 77]


def test_folder_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"there is no folder .*none"):
        load(f"folder:{tmp_path / 'none'}")
    (tmp_path / "a").mkdir()
    with pytest.raises(InvalidInput, match="holds no pictures"):
        load(f"folder:{tmp_path}")
    put(tmp_path / "a" / "broken.jpg", picture(1)[:300])
    with pytest.raises(FileFormatError, match=r"broken\.jpg cannot be read as a picture"):
        load(f"folder:{tmp_path}")
