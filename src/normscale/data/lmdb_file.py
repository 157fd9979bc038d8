"""As much of LMDB's file format as LSUN needs: every key and value of the main database, in key order, read only.

Format (version 1, 64 bits, little-endian): pages of equal size. The first two are "meta" pages, of which the one with
the higher transaction number counts; it holds the root of a B+ tree. Branch pages point to pages, leaf pages hold
keys with values, and a value too large for a leaf lies in a run of overflow pages.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from normscale.errors import FileFormatError

_MAGIC, _VERSION = 0xBEEFC0DE, 1
_HEAD = 16
_BRANCH, _LEAF, _OVERFLOW, _META = 1, 2, 4, 8
_BIG, _SUB_DATABASE, _DUPLICATES = 1, 2, 4
_MAX_DEPTH = 32
_NO_PAGE = 0xFFFF_FFFF_FFFF_FFFF


def read_lmdb(path: str | os.PathLike[str]) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a ``data.mdb``."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        yield from _Tree(data).items()
    except (struct.error, ValueError, IndexError) as error:
        raise FileFormatError(f"{os.fspath(path)} is damaged or no LMDB file ({error}).") from error


class _Tree:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._size = struct.unpack_from("<I", data, _HEAD + 24)[0]  # kept in the first database's record
        if not 256 <= self._size <= 1 << 16:
            raise ValueError(f"its pages would have {self._size} bytes")
        metas = [self._meta(0), self._meta(self._size)]
        self._entries, self._root = max(metas)[1:]
        self._pages_left = len(data) // self._size + 1  # a tree that visits more pages goes in circles

    def _meta(self, offset: int) -> tuple[int, int, int]:
        """Transaction number, number of entries and root page of a meta page."""
        magic, version = struct.unpack_from("<II", self._data, offset + _HEAD)
        if (magic, version) != (_MAGIC, _VERSION):
            raise ValueError(f"a meta page has magic {magic:#x}, version {version}")
        main = offset + _HEAD + 24 + 48
        entries, root = struct.unpack_from("<QQ", self._data, main + 32)
        (transaction,) = struct.unpack_from("<Q", self._data, main + 48 + 8)
        return transaction, entries, root

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        count = 0
        if self._root != _NO_PAGE:
            for item in self._walk(self._root, 0):
                count += 1
                yield item
        if count != self._entries:
            raise ValueError(f"it promises {self._entries} entries and has {count}")

    def _walk(self, page: int, depth: int) -> Iterator[tuple[bytes, bytes]]:
        self._pages_left -= 1
        if depth > _MAX_DEPTH or self._pages_left < 0:
            raise ValueError("its tree goes in circles")
        start = page * self._size
        flags, lower = struct.unpack_from("<HH", self._data, start + 10)
        if not flags & (_BRANCH | _LEAF) or not _HEAD <= lower <= self._size:
            raise ValueError(f"page {page} is none of its tree")
        for position in struct.unpack_from(f"<{(lower - _HEAD) // 2}H", self._data, start + _HEAD):
            low, high, node_flags, key_size = struct.unpack_from("<HHHH", self._data, start + position)
            if flags & _BRANCH:
                yield from self._walk(low | high << 16 | node_flags << 32, depth + 1)
                continue
            if node_flags & (_SUB_DATABASE | _DUPLICATES):
                raise ValueError("it has several databases or values per key")
            key_start = start + position + 8
            value_start = key_start + key_size
            key = self._data[key_start:value_start]
            yield key, self._value(value_start, low | high << 16, big=bool(node_flags & _BIG))

    def _value(self, start: int, size: int, *, big: bool) -> bytes:
        if big:
            (page,) = struct.unpack_from("<Q", self._data, start)
            if not struct.unpack_from("<H", self._data, page * self._size + 10)[0] & _OVERFLOW:
                raise ValueError(f"page {page} is no overflow page")
            start = page * self._size + _HEAD
        value = self._data[start : start + size]
        if len(value) != size:
            raise ValueError("a value goes beyond the end of the file")
        return value
