"""The published sets through torchvision: small archives in the official layouts, put where it looks for them."""

from __future__ import annotations

import hashlib
import pickle
import re
import sys
import types
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from numpy.testing import assert_array_equal

from bench.data.making import make_tar, make_zip, picture, random_images
from needed_extras import need
from normscale.bench.data import DownloadFailed, find_source, get, is_here, load, published_sets
from normscale.bench.data.sources import SOURCES, Source
from normscale.errors import FileFormatError, MissingExtra
from program import python

pytestmark = pytest.mark.usefixtures("torchvision")

IMAGES, LABELS = random_images(12, 32, 32, 3), np.arange(12) % 10
LSUN_SCENES = [file.path.removesuffix("_val_lmdb.zip") for file in SOURCES["lsun"].files]
NAMES = [f"class {number}" for number in range(10)]


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root of one's own, and addresses that answer at once that they are not there."""
    monkeypatch.setenv("NORMSCALE_DATA", str(tmp_path / "root"))
    monkeypatch.setattr("urllib.request.urlopen", no_network)
    return tmp_path / "root"


def no_network(request: Any, *_: Any, **__: Any) -> Any:
    raise OSError("no network here")


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def registered(monkeypatch: pytest.MonkeyPatch, name: str, paths: dict[str, Path], **images: int) -> None:
    """Let the table expect these files and as many pictures."""
    files = tuple(
        replace(
            file,
            size=path.stat().st_size,
            digest=(md5 if len(file.digest) == 32 else lambda data: hashlib.sha256(data).hexdigest())(
                path.read_bytes()
            ),
        )
        for file in SOURCES[name].files
        if (path := paths.get(file.path)) is not None
    )
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], files=files, images=images))


def make_cifar10(root: Path, monkeypatch: pytest.MonkeyPatch, *, train: int = 10) -> Path:
    """A CIFAR-10 of ten training and two test pictures, in Toronto's layout for Python."""
    from torchvision.datasets import CIFAR10

    def batch(rows: slice) -> bytes:
        pixels = IMAGES[rows].transpose(0, 3, 1, 2).reshape(-1, 3072)
        return pickle.dumps({"data": pixels, "labels": LABELS[rows].tolist()})

    files = {f"data_batch_{n + 1}": batch(slice(2 * n, 2 * n + 2)) for n in range(5)}
    files |= {"test_batch": batch(slice(10, 12)), "batches.meta": pickle.dumps({"label_names": NAMES})}
    path = make_tar(
        root / "cifar10" / "cifar-10-python.tar.gz", {f"cifar-10-batches-py/{n}": d for n, d in files.items()}
    )
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(path.read_bytes()))
    monkeypatch.setattr(
        CIFAR10, "train_list", [[f"data_batch_{n}", md5(files[f"data_batch_{n}"])] for n in range(1, 6)]
    )
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(files["test_batch"])]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(files["batches.meta"])})
    registered(monkeypatch, "cifar10", {path.name: path}, train=train, test=2)
    return path


def test_addresses_and_checksums_are_torchvisions() -> None:
    from torchvision import datasets

    places, variant = datasets.Places365, "standard"
    devkit, pictures = places._DEVKIT_META[variant], places._IMAGES_META["val", True]
    theirs = {
        "cifar10": [(datasets.CIFAR10.url, datasets.CIFAR10.tgz_md5)],
        "cifar100": [(datasets.CIFAR100.url, datasets.CIFAR100.tgz_md5)],
        "svhn": [
            (datasets.SVHN.split_list[split][0], datasets.SVHN.split_list[split][2]) for split in ("train", "test")
        ],
        "textures": [(datasets.DTD._URL, datasets.DTD._MD5)],
        "places365": [(places._BASE_URL + name, checksum) for name, checksum in (pictures, devkit)],
    }
    for name, files in theirs.items():
        assert [(file.url, file.digest) for file in find_source(name).files] == files


def test_cifar10_is_unpacked_read_prepared_and_then_offline(
    away_from_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_here(find_source("cifar10"))
    with pytest.raises(DownloadFailed, match="then run: normscale data get cifar10"):
        load("cifar10")
    path = make_cifar10(away_from_home, monkeypatch)
    assert is_here(find_source("cifar10"))
    train = load("cifar10", "train")
    assert_array_equal(train.images, IMAGES[:10])
    assert_array_equal(train.labels, LABELS[:10])
    assert train.class_names == tuple(NAMES)
    assert train.mean == (0.49139968, 0.48215841, 0.44653091)
    assert get("cifar10") == path.parent
    path.unlink()
    monkeypatch.setattr(published_sets, "fetch_published", lambda *_: pytest.fail("read again"))
    assert_array_equal(load("cifar10", "test").images, IMAGES[10:])
    assert load("cifar10", "test", like=load("digits")).shape == (8, 8, 1)


def test_a_file_that_is_not_the_published_one_is_not_read(
    away_from_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_cifar10(away_from_home, monkeypatch)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DownloadFailed) as caught:
        get("cifar10")
    (file,) = find_source("cifar10").files
    for part in ("cifar10 could not be fetched: ", "no network here", f"fetch {file.url}", file.describe(), str(path)):
        assert part in str(caught.value)
    assert str(caught.value).endswith("then run: normscale data get cifar10")


def test_only_the_files_of_the_split_are_asked_for(away_from_home: Path) -> None:
    with pytest.raises(DownloadFailed) as caught:
        load("svhn", "test")
    assert "test_32x32.mat" in str(caught.value)
    assert "train_32x32.mat" not in str(caught.value)


def test_too_few_pictures_are_an_error(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cifar10(away_from_home, monkeypatch, train=11)
    with pytest.raises(FileFormatError, match=r"cifar10 has 10 train pictures in .*; it should have 11"):
        load("cifar10")


def test_a_damaged_prepared_file_is_named(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cifar10(away_from_home, monkeypatch)
    load("cifar10")
    path = away_from_home / "cifar10" / "train.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"train\.npz is damaged .* Delete it; it will be made again"):
        load("cifar10")


def test_svhn_with_its_ten_for_zero(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import SVHN

    path = away_from_home / "svhn" / "test_32x32.mat"
    path.parent.mkdir(parents=True)
    digits = np.where(LABELS == 0, 10, LABELS).astype(np.uint8)[:, None]
    scipy.io.savemat(path, {"X": np.asfortranarray(IMAGES.transpose(1, 2, 3, 0)), "y": digits})
    registered(monkeypatch, "svhn", {path.name: path}, test=12)
    monkeypatch.setattr(SVHN, "split_list", {"test": ["http://x/y.mat", path.name, md5(path.read_bytes())]})
    images = load("svhn", "test")
    assert_array_equal(images.images, IMAGES)
    assert_array_equal(images.labels, LABELS)
    assert images.class_names == tuple("0123456789")


def test_textures_are_sorted_by_class_and_decoded_at_the_size_asked_for(
    away_from_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.datasets import DTD

    files = {"dtd/labels/train1.txt": b"dotted/a.jpg\n", "dtd/images/woven/.directory": b""}
    files |= {f"dtd/images/{name}/{name}_1.jpg": picture(30, 300, 200) for name in ("woven", "dotted")}
    files["dtd/images/dotted/dotted_2.jpg"] = picture((200, 10, 10), 64, 64)
    path = make_tar(away_from_home / "textures" / "dtd" / "dtd-r1.0.1.tar.gz", files)
    monkeypatch.setattr(DTD, "_MD5", md5(path.read_bytes()))
    registered(monkeypatch, "textures", {"dtd/dtd-r1.0.1.tar.gz": path}, test=3)
    folder = away_from_home / "textures"
    assert get("textures") == folder  # fetched, and decoded only when the size is known
    images = load("textures")
    assert images.shape == (64, 64, 3)
    assert images.class_names == ("dotted", "woven")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.images.mean(axis=(1, 2)).round().tolist()[0] == [30, 30, 30]
    like = load("digits")
    assert load("textures", like=like).shape == (8, 8, 1)
    assert sorted(p.name for p in folder.glob("*.npz")) == ["test-64x64.npz", "test-8x8.npz"]
    path.unlink()
    assert len(load("textures", like=like)) == 3
    assert is_here(find_source("textures"))


def test_places365_with_its_lists(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import Places365

    names = [f"Places365_val_0000000{number}.jpg" for number in (1, 2, 3)]
    lists = {
        "places365_val.txt": "".join(f"{name} {label}\n" for name, label in zip(names, (1, 0, 1), strict=True)),
        "categories_places365.txt": "/a/airfield 0\n/b/beach_house 1\n",
    }
    folder = away_from_home / "places365"
    pictures = make_tar(folder / "val_256.tar", {f"val_256/{n}": picture((9, 9, 200), 256, 256) for n in names}, "w")
    devkit = make_tar(folder / "filelist_places365-standard.tar", {n: t.encode() for n, t in lists.items()}, "w")
    monkeypatch.setattr(Places365, "_IMAGES_META", {("val", True): (pictures.name, md5(pictures.read_bytes()))})
    monkeypatch.setattr(Places365, "_DEVKIT_META", {"standard": (devkit.name, md5(devkit.read_bytes()))})
    monkeypatch.setattr(
        Places365, "_FILE_LIST_META", {"val": ("places365_val.txt", md5(lists["places365_val.txt"].encode()))}
    )
    monkeypatch.setattr(
        Places365, "_CATEGORIES_META", ("categories_places365.txt", md5(lists["categories_places365.txt"].encode()))
    )
    registered(monkeypatch, "places365", {pictures.name: pictures, devkit.name: devkit}, test=3)
    images = load("places365", like=load("digits"))
    assert images.labels.tolist() == [1, 0, 1]
    assert images.class_names == ("airfield", "beach_house")


def test_tiny_imagenet(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, classes = "tiny-imagenet-200", ("n02", "n01")
    files = {
        f"{base}/wnids.txt": b"n02\nn01\n",
        f"{base}/words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tbrick\nn03\tother\n",
        f"{base}/val/val_annotations.txt": b"val_1.JPEG\tn02\t0\t0\t1\t1\nval_0.JPEG\tn01\t0\t0\t1\t1\n",
        f"{base}/val/images/val_0.JPEG": picture((250, 0, 0)),
        f"{base}/val/images/val_1.JPEG": picture(77),
        f"{base}/test/images/test_0.JPEG": picture(1),
    }
    for wnid, shade in zip(classes, (20, 90), strict=True):
        files[f"{base}/train/{wnid}/images/{wnid}_0.JPEG"] = picture(shade)
        files[f"{base}/train/{wnid}/{wnid}_boxes.txt"] = b""
    path = make_zip(away_from_home / "tinyimagenet" / f"{base}.zip", files)
    registered(monkeypatch, "tinyimagenet", {path.name: path}, train=2, test=2)
    train, test = load("tinyimagenet", "train"), load("tinyimagenet", "test")
    assert train.class_names == test.class_names == ("goldfish", "brick")
    assert train.labels.tolist() == test.labels.tolist() == [0, 1]
    assert train.images[:, 5, 5, 0].tolist() == [90, 20]
    assert abs(int(test.images[0, 5, 5, 0]) - 250) <= 2
    assert test.images[1, 5, 5].tolist() == [77] * 3
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "test.npz", base, path.name, "train.npz"]


class FakeDatabase:
    """What is used of the package lmdb; a "database" is a folder of picture files."""

    def __init__(self, path: str, readonly: bool, lock: bool) -> None:
        self.files = sorted(file for file in Path(path).iterdir() if file.suffix == ".webp")

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    begin = __enter__

    def cursor(self) -> Any:
        return ((file.stem.encode(), file.read_bytes()) for file in self.files)


def test_lsun_is_checked_by_its_sha256(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", types.SimpleNamespace(open=FakeDatabase))
    paths = {}
    for number, scene in enumerate(LSUN_SCENES):
        files = {f"{scene}_val_lmdb/{n}.webp": picture(20 * number, 40, 30, "WEBP") for n in range(2)}
        name = f"{scene}_val_lmdb.zip"
        paths[name] = make_zip(away_from_home / "lsun" / name, files)
    registered(monkeypatch, "lsun", paths, test=20)
    good = paths["tower_val_lmdb.zip"].read_bytes()
    paths["tower_val_lmdb.zip"].write_bytes(good + b"?")
    with pytest.raises(DownloadFailed, match=r"tower_val_lmdb\.zip is not the published file"):
        load("lsun")
    paths["tower_val_lmdb.zip"].write_bytes(good)
    images = load("lsun")
    assert images.labels.tolist() == [number for number in range(10) for _ in range(2)]
    assert images.class_names == tuple(LSUN_SCENES)
    assert abs(int(images.images[-1].mean()) - 180) <= 2
    assert not (away_from_home / "lsun" / ".unpacking").exists()


def test_lsun_from_databases_that_lmdb_wrote(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was written by py-lmdb: 40 entries on a tree of two levels, some on overflow pages.

    The key of entry i is the SHA-1 of str(i); the value is a picture of the colour (6 i, 255 - 6 i, 40).
    """
    need("lmdb")
    keys = {hashlib.sha1(str(number).encode(), usedforsecurity=False).hexdigest(): number for number in range(40)}
    for scene in LSUN_SCENES:
        with zipfile.ZipFile(Path(__file__).parent / "lsun_small_lmdb.zip") as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.mdb"))
            (away_from_home / "lsun" / f"{scene}_val_lmdb").mkdir(parents=True)
            (away_from_home / "lsun" / f"{scene}_val_lmdb" / "data.mdb").write_bytes(archive.read(name))
    monkeypatch.setitem(SOURCES, "lsun", replace(SOURCES["lsun"], images={"test": 400}))
    images = load("lsun")
    assert images.labels.tolist() == [scene for scene in range(10) for _ in range(40)]
    for image, key in zip(images.images[40:80], sorted(keys), strict=True):
        assert np.abs(image.reshape(-1, 3).mean(axis=0) - (6 * keys[key], 255 - 6 * keys[key], 40)).max() < 12


@pytest.mark.parametrize(
    ("raises", "says"),
    [
        ("ImportError('no torchvision')", r"pip install 'normscale\[data\]'"),
        (
            "RuntimeError('operator torchvision::nms does not exist')",
            "was built for another torch .* torch torchvision",
        ),
    ],
)
def test_a_torchvision_that_is_missing_or_of_another_torch(tmp_path: Path, raises: str, says: str) -> None:
    (tmp_path / "torchvision.py").write_text(f"raise {raises}")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nfrom normscale.bench.data import load\n"
        "from normscale.errors import MissingExtra\n"
        f"try: load('cifar10', root={str(tmp_path / 'data')!r})\nexcept MissingExtra as error: print(error)"
    )
    said = python(code).stdout
    assert re.search(says, said), said


def test_a_set_that_needs_another_package(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtra, match=r"lsun needs lmdb; pip install 'normscale\[data\]'"):
        load("lsun")


def test_two_processes_prepare_a_set_once(away_from_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and reads what it prepared."""
    from concurrent.futures import ThreadPoolExecutor

    make_cifar10(away_from_home, monkeypatch)
    read: list[str] = []
    whole = published_sets.fetch_published

    def counted(source: Source, split: str, folder: Path) -> published_sets.Listing:
        read.append(split)
        return whole(source, split, folder)

    monkeypatch.setattr("normscale.bench.data.loading.fetch_published", counted)
    with ThreadPoolExecutor(3) as pool:
        assert [len(images) for images in pool.map(lambda _: load("cifar10"), range(3))] == [10] * 3
    assert read == ["train"]
