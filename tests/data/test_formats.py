"""The readers, on small archives in the official layouts; foreign programs write where there are any."""

from __future__ import annotations

import hashlib
import shutil
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
from numpy.testing import assert_array_equal

from data.making import cifar_batch, make_tar, make_zip, picture, random_images
from normscale.data.archives import unpack
from normscale.data.cifar import read_cifar10, read_cifar100
from normscale.data.lmdb_file import read_lmdb
from normscale.data.mat5 import read_mat5
from normscale.data.photographs import LSUN_SCENES, read_lsun, read_places365, read_textures, read_tiny_imagenet
from normscale.data.reading import SplitRequest
from normscale.data.svhn import read_svhn
from normscale.errors import FileFormatError

HERE = Path(__file__).parent


def ask(folder: Path, split: str = "test", height: int = 32, width: int = 32) -> SplitRequest:
    return SplitRequest(folder, split, height, width)


# --- CIFAR ----------------------------------------------------------------------------------------------------------


def cifar10_files() -> tuple[dict[str, bytes], Any, Any]:
    images, labels = random_images(12, 32, 32, 3), np.arange(12) % 10
    files = {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n", "cifar-10-batches-bin/readme.html": b"<html>"}
    for number in (3, 1, 5, 2, 4):  # not in order: the names count
        rows = slice(2 * number - 2, 2 * number)
        files[f"cifar-10-batches-bin/data_batch_{number}.bin"] = cifar_batch(images[rows], labels[rows])
    files["cifar-10-batches-bin/test_batch.bin"] = cifar_batch(images[10:], labels[10:])
    return files, images, labels


def test_cifar10(tmp_path: Path) -> None:
    files, images, labels = cifar10_files()
    make_tar(tmp_path / "cifar-10-binary.tar.gz", files)
    train, test = read_cifar10(ask(tmp_path, "train")), read_cifar10(ask(tmp_path, "test"))
    assert_array_equal(train.images, images[:10])
    assert_array_equal(train.labels, labels[:10])
    assert_array_equal(test.images, images[10:])
    assert test.images.flags.c_contiguous
    assert test.labels.dtype == np.int64


def test_cifar10_with_a_file_missing_or_cut(tmp_path: Path) -> None:
    files, _, _ = cifar10_files()
    path = tmp_path / "cifar-10-binary.tar.gz"
    make_tar(path, {name: data for name, data in files.items() if "batch_4" not in name})
    with pytest.raises(FileFormatError, match=r"lacks data_batch_4\.bin"):
        read_cifar10(ask(tmp_path, "train"))
    make_tar(path, files | {"cifar-10-batches-bin/test_batch.bin": bytes(3072)})
    with pytest.raises(FileFormatError, match=r"test_batch\.bin has 3072 bytes, which is no multiple of 3073"):
        read_cifar10(ask(tmp_path))
    whole = make_tar(path, files).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"damaged|lacks"):
        read_cifar10(ask(tmp_path, "train"))
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(FileFormatError, match="damaged or no archive"):
        read_cifar10(ask(tmp_path))


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    images, fine, coarse = random_images(6, 32, 32, 3), [9, 98, 5, 0, 1, 2], [1, 2, 3, 4, 5, 6]
    names = "\n".join(f"fine{number}" for number in range(100))
    make_tar(
        tmp_path / "cifar-100-binary.tar.gz",
        {
            "cifar-100-binary/train.bin": cifar_batch(images[:4], fine[:4], coarse[:4]),
            "cifar-100-binary/test.bin": cifar_batch(images[4:], fine[4:], coarse[4:]),
            "cifar-100-binary/fine_label_names.txt": names.encode(),
            "cifar-100-binary/coarse_label_names.txt": b"coarse",
        },
    )
    train = read_cifar100(ask(tmp_path, "train"))
    assert_array_equal(train.images, images[:4])
    assert train.labels.tolist() == fine[:4]
    assert read_cifar100(ask(tmp_path)).labels.tolist() == fine[4:]
    assert train.class_names is not None
    assert train.class_names[98] == "fine98"


# --- MATLAB and SVHN ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_svhn_as_scipy_writes_it(tmp_path: Path, compressed: bool) -> None:
    images = random_images(7, 32, 32, 3)
    digits = np.array([10, 1, 2, 9, 10, 3, 4], np.float64)[:, None]
    scipy.io.savemat(
        tmp_path / "test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": digits}, do_compression=compressed
    )
    content = read_svhn(ask(tmp_path))
    assert_array_equal(content.images, images)
    assert content.labels.tolist() == [0, 1, 2, 9, 0, 3, 4]  # 10 stands for zero


@pytest.mark.parametrize("compressed", [False, True])
def test_every_number_type_of_matlab(tmp_path: Path, compressed: bool) -> None:
    rng = np.random.default_rng(0)
    types = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"]
    arrays = {f"a{kind}": rng.integers(0, 100, (3, 1 + n)).astype(kind) for n, kind in enumerate(types)}
    arrays["b"] = np.array([[1, 2, 3]], np.uint8)  # fits into the tag of a small element
    others = {"text": "hello", "cell": np.array([1, "a"], dtype=object), "complex": np.array([1 + 2j])}
    path = tmp_path / "all.mat"
    scipy.io.savemat(path, {**arrays, **others}, do_compression=compressed)
    read = read_mat5(path)
    assert sorted(read) == sorted(arrays)
    for name, array in arrays.items():
        assert_array_equal(read[name], array)
        assert read[name].dtype == array.dtype


def big_endian_mat(values: Any) -> bytes:
    """A file as an old workstation wrote it; scipy only writes little-endian."""

    def element(kind: int, data: bytes) -> bytes:
        return struct.pack(">II", kind, len(data)) + data + bytes(-len(data) % 8)

    matrix = element(6, struct.pack(">II", 6, 0)) + element(5, struct.pack(">ii", *values.shape)) + element(1, b"v")
    matrix += element(3, values.astype(">i2").tobytes(order="F"))  # doubles kept as 16-bit numbers
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00" + b"MI" + element(14, matrix)


def test_big_endian_and_numbers_kept_small(tmp_path: Path) -> None:
    values = np.array([[1.0, -2.0, 300.0], [4.0, 5.0, 6.0]])
    (tmp_path / "old.mat").write_bytes(big_endian_mat(values))
    read = read_mat5(tmp_path / "old.mat")["v"]
    assert_array_equal(read, values)
    assert read.dtype == np.float64


def test_damaged_matlab_files(tmp_path: Path) -> None:
    path = tmp_path / "test_32x32.mat"
    images = random_images(3, 32, 32, 3).transpose(1, 2, 3, 0)
    for compressed in (False, True):
        scipy.io.savemat(path, {"X": images, "y": [[1], [2], [3]]}, do_compression=compressed)
        whole = path.read_bytes()
        for end in (0, 60, 127, 132, 200, len(whole) // 2, len(whole) - 1):
            path.write_bytes(whole[:end])
            with pytest.raises(FileFormatError, match="damaged"):
                read_svhn(ask(tmp_path))
        for position in range(128, min(len(whole), 260)):  # no flipped bit may crash the reader or hang it
            damaged = bytearray(whole)
            damaged[position] ^= 0x81
            path.write_bytes(damaged)
            try:
                content = read_svhn(ask(tmp_path))
                assert content.images.shape == (3, 32, 32, 3)
            except FileFormatError:
                pass
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(200))
    with pytest.raises(FileFormatError, match=r"HDF5 \(version 7\.3\)"):
        read_mat5(path)


def test_a_compressed_element_cannot_grow_beyond_its_claim(tmp_path: Path) -> None:
    path = tmp_path / "bomb.mat"
    inner = struct.pack("<II", 14, 40) + bytes(50_000_000)
    data = zlib.compress(inner, 9)
    path.write_bytes(b"MATLAB".ljust(124) + b"\x00\x01" + b"IM" + struct.pack("<II", 15, len(data)) + data)
    tracemalloc.start()
    with pytest.raises(FileFormatError, match="damaged"):
        read_mat5(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000  # of the 50 MB
    tracemalloc.stop()
    inner = struct.pack("<II", 14, 0xFFFF_FFF0)
    data = zlib.compress(inner)
    path.write_bytes(b"MATLAB".ljust(124) + b"\x00\x01" + b"IM" + struct.pack("<II", 15, len(data)) + data)
    with pytest.raises(FileFormatError, match="claims 4294967280 bytes"):
        read_mat5(path)


def test_svhn_with_other_arrays(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    scipy.io.savemat(path, {"Z": [[1]]})
    with pytest.raises(FileFormatError, match="must hold the arrays X and y; it holds Z"):
        read_svhn(ask(tmp_path, "train"))
    scipy.io.savemat(path, {"X": random_images(32, 32, 3, 2), "y": [[1], [2], [3]]})
    with pytest.raises(FileFormatError, match=r"got \(32, 32, 3, 2\), uint8, and 3"):
        read_svhn(ask(tmp_path, "train"))


# --- photographs ----------------------------------------------------------------------------------------------------


def close_to(image: Any, colour: tuple[int, int, int]) -> bool:
    return bool(np.abs(image.astype(int) - colour).max() <= 4)  # JPEG


def test_tiny_imagenet(tmp_path: Path) -> None:
    red, green, blue = (200, 20, 20), (20, 200, 20), (20, 20, 200)
    root = "tiny-imagenet-200"
    make_zip(
        tmp_path / "tiny-imagenet-200.zip",
        {
            f"{root}/wnids.txt": b"n02\nn01\n",
            f"{root}/words.txt": b"n01\tgoldfish, Carassius auratus\nn02\tEuropean fire salamander\nn09\tunused\n",
            f"{root}/train/n02/n02_boxes.txt": b"n02_0.JPEG\t0\t0\t62\t62\n",
            f"{root}/train/n02/images/n02_0.JPEG": picture(red),
            f"{root}/train/n01/images/n01_0.JPEG": picture(green),
            f"{root}/train/n01/images/n01_1.JPEG": picture(90),  # some are grey
            f"{root}/val/images/val_0.JPEG": picture(blue),
            f"{root}/val/images/val_1.JPEG": picture(red),
            f"{root}/val/val_annotations.txt": b"val_0.JPEG\tn02\t0\t32\t44\t62\nval_1.JPEG\tn01\t1\t2\t3\t4\n",
            f"{root}/test/images/test_0.JPEG": picture(green),  # no labels; not used
        },
    )
    train = read_tiny_imagenet(ask(tmp_path, "train", 64, 64))
    assert train.images.shape == (3, 64, 64, 3)
    assert train.labels.tolist() == [1, 0, 0]
    assert train.class_names == ("goldfish", "European fire salamander")
    assert close_to(train.images[0], red)
    assert close_to(train.images[2], (90, 90, 90))
    test = read_tiny_imagenet(ask(tmp_path, "test", 64, 64))
    assert test.labels.tolist() == [1, 0]
    assert close_to(test.images[0], blue)


def test_tiny_imagenet_without_its_lists_or_with_a_strange_class(tmp_path: Path) -> None:
    path = tmp_path / "tiny-imagenet-200.zip"
    make_zip(path, {"tiny-imagenet-200/wnids.txt": b"n01\n"})
    with pytest.raises(FileFormatError, match=r"lacks wnids\.txt, words\.txt or val_annotations\.txt"):
        read_tiny_imagenet(ask(tmp_path))
    lists = {"t/wnids.txt": b"n01\n", "t/words.txt": b"n01\tfish\n", "t/val/val_annotations.txt": b"a.JPEG\tn01\t0\n"}
    make_zip(path, lists | {"t/train/n07/images/n07_0.JPEG": picture(3)})
    with pytest.raises(FileFormatError, match=r"n07_0\.JPEG is of no class"):
        read_tiny_imagenet(ask(tmp_path, "train", 64, 64))
    make_zip(path, lists)
    with pytest.raises(FileFormatError, match="holds no pictures"):
        read_tiny_imagenet(ask(tmp_path, "train", 64, 64))
    make_zip(path, lists | {"t/train/n01/images/n01_0.JPEG": b"not a picture"})
    with pytest.raises(FileFormatError, match=r"n01_0\.JPEG cannot be read as a picture"):
        read_tiny_imagenet(ask(tmp_path, "train", 64, 64))


def test_textures_are_sorted_by_class_and_cut_in_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((300, 640, 3), np.uint8)
    wide[:, 170:470] = (10, 200, 10)  # the middle square
    from io import BytesIO

    from PIL import Image

    file = BytesIO()
    Image.fromarray(wide).save(file, "JPEG", quality=98)
    make_tar(
        tmp_path / "dtd-r1.0.1.tar.gz",
        {
            "dtd/images/woven/woven_0001.jpg": picture((200, 20, 20), 500, 300),
            "dtd/images/banded/banded_0002.jpg": file.getvalue(),
            "dtd/images/banded/.directory": b"",
            "dtd/labels/train1.txt": b"banded/banded_0002.jpg\n",
            "dtd/imdb/imdb.mat": b"MATLAB",
        },
    )
    content = read_textures(ask(tmp_path))
    assert content.images.shape == (2, 32, 32, 3)
    assert content.class_names == ("banded", "woven")
    assert content.labels.tolist() == [0, 1]
    assert close_to(content.images[0][:, 1:-1], (10, 200, 10))
    assert close_to(content.images[1], (200, 20, 20))


def test_places365_with_and_without_its_list(tmp_path: Path) -> None:
    names = [f"Places365_val_{number:08}.jpg" for number in (1, 2, 3)]
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    files = {f"val_256/{name}": picture(c, 256, 256) for name, c in zip(names, colours, strict=True)}
    make_tar(tmp_path / "val_256.tar", files, "w")
    content = read_places365(ask(tmp_path))
    assert content.images.shape == (3, 32, 32, 3)
    assert content.labels.tolist() == [-1, -1, -1]
    assert content.class_names is None
    assert close_to(content.images[1], (0, 200, 0))
    lists = {
        "categories_places365.txt": b"/a/airfield 0\n/b/bamboo_forest 1\n/z/zen_garden 2\n",
        "places365_val.txt": "\n".join(f"{name} {k}" for name, k in zip(names, (2, 0, 1), strict=True)).encode(),
        "places365_train_standard.txt": b"/a/airfield/00000001.jpg 0\n",
    }
    make_tar(tmp_path / "filelist_places365-standard.tar", lists, "w")
    content = read_places365(ask(tmp_path))
    assert content.labels.tolist() == [2, 0, 1]
    assert content.class_names == ("airfield", "bamboo_forest", "zen_garden")
    make_tar(tmp_path / "filelist_places365-standard.tar", lists | {"places365_val.txt": b"other.jpg 0\n"}, "w")
    with pytest.raises(FileFormatError, match=r"names no class for Places365_val_00000001\.jpg"):
        read_places365(ask(tmp_path))
    make_tar(tmp_path / "filelist_places365-standard.tar", lists | {"places365_val.txt": b"other.jpg zero\n"}, "w")
    with pytest.raises(FileFormatError, match=r"places365_val\.txt must have lines of a name and a number"):
        read_places365(ask(tmp_path))


# --- LSUN -----------------------------------------------------------------------------------------------------------
# lsun_small_lmdb.zip was written by py-lmdb: 40 entries on a tree of two levels, some on overflow pages, 25 of them in
# one transaction and 15 in the next, which also adds and deletes one. The key of entry i is the SHA-1 of str(i); the
# value is a picture of the colour (6 i, 255 - 6 i, 40), as WebP where i is odd and as JPEG where it is even.

KEYS = {hashlib.sha1(str(number).encode()).hexdigest().encode(): number for number in range(40)}


def mdb(tmp_path: Path) -> Path:
    (path,) = (file for file in unpack(HERE / "lsun_small_lmdb.zip", tmp_path / "db") if file.name == "data.mdb")
    return path


def test_lmdb_gives_every_entry_in_key_order(tmp_path: Path) -> None:
    items = list(read_lmdb(mdb(tmp_path)))
    assert [key for key, _ in items] == sorted(KEYS)
    for key, value in items:
        assert value.startswith(b"RIFF" if KEYS[key] % 2 else b"\xff\xd8")
    assert sum(len(value) > 2048 for _, value in items) >= 2  # no room for these in a leaf


def test_damaged_lmdb_is_refused_and_never_hangs(tmp_path: Path) -> None:
    path = mdb(tmp_path)
    whole = path.read_bytes()
    for end in (0, 40, 4096, 8192, len(whole) // 2):
        path.write_bytes(whole[:end])
        with pytest.raises(FileFormatError, match="damaged or no LMDB file"):
            list(read_lmdb(path))
    rng = np.random.default_rng(0)
    refused = 0
    for position in rng.integers(0, len(whole), 300):
        damaged = bytearray(whole)
        damaged[position] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        try:
            list(read_lmdb(path))
        except FileFormatError:
            refused += 1
    assert refused > 0


def page(kind: int, nodes: list[bytes]) -> bytes:
    """An LMDB page of 4096 bytes."""
    body, pointers, upper = b"", [], 4096
    for node in nodes:
        upper -= len(node)
        pointers.append(upper)
        body = node + body
    head = struct.pack("<QHHHH", 0, 0, kind, 16 + 2 * len(nodes), upper)
    return (head + struct.pack(f"<{len(nodes)}H", *pointers)).ljust(upper, b"\0") + body


@pytest.mark.parametrize("leads_to", ["itself", "the next page, fifty times"])
def test_an_lmdb_tree_without_end_is_refused_soon(tmp_path: Path, leads_to: str) -> None:
    database = struct.pack("<IHHQQQQQ", 0, 0, 0, 0, 0, 0, 5, 2)  # five entries, the root is page 2
    free = struct.pack("<I", 4096).ljust(48, b"\0")
    meta = (bytes(16) + struct.pack("<IIQQ", 0xBEEFC0DE, 1, 0, 0) + free + database).ljust(4096, b"\0")
    pages = [meta, meta]
    for number in range(2, 22):
        child = number if leads_to == "itself" else number + 1
        pages.append(page(1, [struct.pack("<HHHH", child, 0, 0, 0)] * 50))
    pages.append(page(2, []))
    (tmp_path / "data.mdb").write_bytes(b"".join(pages))
    with pytest.raises(FileFormatError, match="its tree goes in circles"):
        list(read_lmdb(tmp_path / "data.mdb"))


def test_lsun(tmp_path: Path) -> None:
    for scene in LSUN_SCENES:
        shutil.copy(HERE / "lsun_small_lmdb.zip", tmp_path / f"{scene}_val_lmdb.zip")
    content = read_lsun(ask(tmp_path))
    assert content.images.shape == (400, 32, 32, 3)
    assert content.labels.tolist() == [scene for scene in range(10) for _ in range(40)]
    assert content.class_names == LSUN_SCENES
    for image, key in zip(content.images[40:80], sorted(KEYS), strict=True):
        number = KEYS[key]
        assert np.abs(image.reshape(-1, 3).mean(axis=0) - (6 * number, 255 - 6 * number, 40)).max() < 12
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(f"{scene}_val_lmdb.zip" for scene in LSUN_SCENES)
    make_zip(tmp_path / "tower_val_lmdb.zip", {"tower_val_lmdb/lock.mdb": b""})
    with pytest.raises(FileFormatError, match=r"tower_val_lmdb\.zip must hold one data\.mdb; it holds 0"):
        read_lsun(ask(tmp_path))
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".unpack")]
