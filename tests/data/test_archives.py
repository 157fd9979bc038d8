"""Archives that mean harm are refused with a sentence, and nothing of them is left on disk."""

from __future__ import annotations

import io
import stat
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from data.making import make_tar, make_zip
from normscale.data.archives import Limits, members, unpack
from normscale.errors import FileFormatError

FILES = {"set/a.txt": b"first", "set/deep/er/b.bin": bytes(range(256)) * 50, "c": b""}


def special_tar(path: Path, name: str, kind: bytes, target: str = "") -> Path:
    with tarfile.open(path, "w") as archive:
        archive.addfile(_info("good.txt", 4), io.BytesIO(b"good"))
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info)
        archive.addfile(_info("link/inside.txt", 4), io.BytesIO(b"evil"))
    return path


def special_zip(path: Path, name: str, mode: int) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("good.txt", b"good")
        info = zipfile.ZipInfo(name)
        info.create_system = 3
        info.external_attr = mode << 16
        archive.writestr(info, "/etc/passwd")
    return path


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def assert_refused(archive: Path, says: str, limits: Limits | None = None) -> None:
    target = archive.parent / "unpacked" / "here"
    with pytest.raises(FileFormatError, match=says) as caught:
        unpack(archive, target, limits)
    assert str(archive) in str(caught.value)
    with pytest.raises(FileFormatError, match=says):
        _ = [member.read() for member in members(archive, limits)]
    assert list((archive.parent / "unpacked").iterdir()) == []  # not the target, and no temporary folder


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_a_harmless_archive(tmp_path: Path, make: Any) -> None:
    archive = make(tmp_path / "a", FILES)
    assert {member.name: member.read() for member in members(archive)} == FILES
    paths = unpack(archive, tmp_path / "out")
    assert {str(path.relative_to(tmp_path / "out")): path.read_bytes() for path in paths} == FILES
    assert sorted(tmp_path.iterdir()) == [archive, tmp_path / "out"]
    with pytest.raises(FileFormatError, match="is there already"):
        unpack(archive, tmp_path / "out")


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_every_compression_of_tar(tmp_path: Path, mode: str) -> None:
    archive = make_tar(tmp_path / "a", FILES, mode)
    assert {member.name: member.read() for member in members(archive)} == FILES


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize(
    "name", ["../evil", "set/../../evil", "/etc/evil", "set\\..\\..\\evil", "\\evil", "C:\\evil", "c:evil", ".."]
)
def test_no_path_leaves_the_folder(tmp_path: Path, make: Any, name: str) -> None:
    archive = make(tmp_path / "a", {"good.txt": b"good", name: b"evil"})
    assert_refused(archive, "would leave the folder")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (tarfile.SYMTYPE, "is a link to '/etc'"),
        (tarfile.LNKTYPE, "is a link to '/etc'"),
        (tarfile.CHRTYPE, "is a device or pipe"),
        (tarfile.BLKTYPE, "is a device or pipe"),
        (tarfile.FIFOTYPE, "is a device or pipe"),
    ],
)
def test_tar_without_links_and_devices(tmp_path: Path, kind: bytes, says: str) -> None:
    assert_refused(special_tar(tmp_path / "a.tar", "link", kind, "/etc"), says)


@pytest.mark.parametrize(
    ("mode", "says"), [(stat.S_IFLNK, "is a link"), (stat.S_IFCHR, "is a device or pipe"), (stat.S_IFIFO, "device")]
)
def test_zip_without_links_and_devices(tmp_path: Path, mode: int, says: str) -> None:
    assert_refused(special_zip(tmp_path / "a.zip", "link", mode | 0o777), says)


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_bombs(tmp_path: Path, make: Any) -> None:
    bomb = make(tmp_path / "a", {"zeros": bytes(30_000_000)})
    assert bomb.stat().st_size < 60_000
    assert_refused(bomb, r"over 100 times as many \(a bomb\?\)")
    many = make(tmp_path / "b", {f"file{number}": b"" for number in range(60)})
    assert_refused(many, "it has more than 50 members", Limits(members=50))
    large = make(tmp_path / "c", {"one": bytes(600), "two": bytes(600)})
    assert_refused(large, "it unpacks to more than 1000 bytes", Limits(total_bytes=1000))


def test_a_zip_that_lies_about_a_size(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"zeros": bytes(5_000_000)})
    data = bytearray(archive.read_bytes())
    for position in (data.find(b"PK\x03\x04") + 22, data.find(b"PK\x01\x02") + 24):
        struct.pack_into("<I", data, position, 10)
    archive.write_bytes(data)
    assert_refused(archive, "damaged")


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_a_name_twice(tmp_path: Path, make: Any) -> None:
    archive = tmp_path / "a"
    if make is make_zip:
        with zipfile.ZipFile(archive, "w") as zipped:
            zipped.writestr("same", b"one")
            with pytest.warns(UserWarning, match="Duplicate name"):
                zipped.writestr("same", b"two")
    else:
        with tarfile.open(archive, "w") as tar:
            for data in (b"one", b"two"):
                tar.addfile(_info("same", 3), io.BytesIO(data))
    with pytest.raises(FileFormatError, match="member 'same' appears twice"):
        unpack(archive, tmp_path / "out")
    file_and_folder = make(tmp_path / "b", {"x": b"file", "x/y": b"folder"})
    with pytest.raises(FileFormatError, match="member 'x/y' appears twice"):
        unpack(file_and_folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("make", [make_tar, make_zip])
def test_damage_is_one_sentence(tmp_path: Path, make: Any) -> None:
    archive = make(tmp_path / "a", {"x": bytes(range(256)) * 400, "y": bytes(range(255, -1, -1)) * 400})
    whole = archive.read_bytes()
    for damaged in (b"", b"PK\x03\x04 nonsense", whole[: len(whole) // 2], whole[:-40], b"\x1f\x8b" + bytes(50)):
        archive.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="damaged"):
            unpack(archive, tmp_path / "out")
    middle = bytearray(whole)
    middle[len(whole) // 3] ^= 0xFF
    archive.write_bytes(middle)
    with pytest.raises(FileFormatError, match="damaged"):
        unpack(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_encrypted_zip(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "a.zip", {"secret": b"text"})
    data = bytearray(archive.read_bytes())
    for position in (data.find(b"PK\x03\x04") + 6, data.find(b"PK\x01\x02") + 8):
        data[position] |= 1
    archive.write_bytes(data)
    assert_refused(archive, "encrypted")


def test_a_missing_archive_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(members(tmp_path / "none"))
