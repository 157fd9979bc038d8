"""Text tables that may be compressed by gzip: told by their first bytes when read, by their name when written."""

from __future__ import annotations

import gzip
import io
from contextlib import AbstractContextManager
from typing import IO, cast

GZIP = b"\x1f\x8b"
SUFFIX = ".gz"


def open_bytes(path: str) -> AbstractContextManager[io.BufferedReader]:
    """A file's bytes, decompressed if they are compressed."""
    with open(path, "rb") as file:
        is_compressed = file.read(2) == GZIP
    stream = gzip.open(path, "rb") if is_compressed else open(path, "rb")  # noqa: SIM115
    return cast("io.BufferedReader", stream)  # both have read, read1 and seek


def create_text(path: str, *, named: str) -> IO[str]:
    """A new text file, compressed if it will be ``named`` so; the same rows always give the same bytes."""
    if not named.lower().endswith(SUFFIX):
        return open(path, "w", encoding="utf-8", newline="")
    raw = open(path, "wb")  # noqa: SIM115
    return io.TextIOWrapper(_Gzip(raw), encoding="utf-8", newline="")


class _Gzip(gzip.GzipFile):
    """A compressed file without name and time in its head, which closes the file below."""

    def __init__(self, raw: IO[bytes]) -> None:
        super().__init__(filename="", mode="wb", fileobj=raw, mtime=0)
        self._raw_file = raw

    def close(self) -> None:
        super().close()
        self._raw_file.close()
