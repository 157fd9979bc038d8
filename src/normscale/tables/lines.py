"""Text cut into lines: the first one, and blocks of whole ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BufferedIOBase

_BLOCK_BYTES = 1 << 22
_LONGEST_HEAD = 1 << 24  # bytes: a million columns


def first_line(stream: BufferedIOBase) -> tuple[bytes, bytes]:
    """Everything up to the end of the first line that is not blank, and what was read beyond it."""
    seen, start, searched = bytearray(), 0, 0
    while True:
        stop = seen.find(b"\n", searched) + 1
        if stop and seen[start:stop].strip():
            return bytes(seen[:stop]), bytes(seen[stop:])
        if stop:
            start = searched = stop
            continue
        searched = len(seen)
        piece = stream.read1(1 << 16)
        if not piece:
            return bytes(seen), b""
        seen += piece
        if b"\0" in piece or len(seen) > _LONGEST_HEAD:
            raise ValueError("it is not text, or its first line is too long")


def whole_lines(ahead: bytes, read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Cut what ``read`` gives behind line breaks; lines longer than a block are put together."""
    pieces: list[bytes] = []
    piece = ahead or read(_BLOCK_BYTES)
    while piece:
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*pieces, piece[:cut]])
            pieces = []
        if cut < len(piece):
            pieces.append(piece[cut:])
        piece = read(_BLOCK_BYTES)
    if pieces:
        yield b"".join(pieces)
