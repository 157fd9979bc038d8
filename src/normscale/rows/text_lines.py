"""What formats of text share: the first line, blocks of whole lines as they come, and writing lines."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

from normscale.rows.reader import TableReader
from normscale.rows.streams import GZIP, OwningGzip, first_line, whole_lines
from normscale.rows.writing import About, Sink


class LineReader(TableReader):
    """Base class; a subclass begins its ``_read_head`` with :meth:`_read_first_line`."""

    is_text = streams = by_columns = True

    _head: bytes
    """Up to the end of the first line that is not blank."""
    _rest: bytes
    """What was read beyond it."""

    def _lines(self) -> Any:
        """The bytes of the text, without compression."""
        stream = self.source.open()
        if self.source.once:
            return stream
        is_compressed = stream.read(2) == GZIP
        stream.seek(0)
        return OwningGzip(stream) if is_compressed else stream

    def _read_first_line(self) -> None:
        with self._lines() as stream:
            self._head, self._rest = first_line(getattr(stream, "read1", stream.read))
        if not self._head.strip():
            raise self._damaged("there is no line with anything on it")

    def _line_blocks(self, skipped: int = 0) -> Iterator[bytes]:
        """The bytes behind the first ``skipped``, cut behind line breaks; the last block may lack one."""
        with self._lines() as stream:
            stream.read(skipped)
            yield from whole_lines(stream.read1 if self.source.once else stream.read)


class LineSink(Sink):
    """Lines of text, written as they come."""

    def __init__(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> None:
        super().__init__(file, path, columns, about)
        self._text: IO[str] = sys.stdout
        if path != "-":
            raw: Any = open(file, "wb")  # noqa: SIM115 - closed by finish and abandon
            stream = OwningGzip(raw, "wb") if path.lower().endswith(".gz") else raw
            self._text = io.TextIOWrapper(stream, encoding="utf-8", newline="")

    def write_lines(self, lines: list[str]) -> None:
        """Write lines; on standard output whoever reads the pipe sees them now."""
        self._text.write("\n".join(lines) + "\n")
        if self.path == "-":
            self._text.flush()

    def finish(self) -> None:
        """Close the file, unless it is standard output."""
        if self.path == "-":
            self._text.flush()
        else:
            self._text.close()

    abandon = finish
