"""What formats of text share: the first line, blocks of whole lines as they come, and writing lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import IO, Any

from normscale.rows.reader import TableReader
from normscale.rows.source import Pipe, create_text, first_line, whole_lines
from normscale.rows.writing import About, Sink


class LineReader(TableReader):
    """Base class; a subclass begins its ``_read_head`` with :meth:`_read_first_line`."""

    _head: bytes
    """Up to the end of the first line that is not blank."""
    _rest: bytes
    """What was read beyond it."""

    def _read_first_line(self) -> None:
        stream = self.source.open_lines()
        try:
            self._head, self._rest = first_line(stream)
        finally:
            if not self.source.once:
                stream.close()

    def _line_blocks(self, skipped: int = 0) -> Iterator[bytes]:
        """The bytes behind the first ``skipped``, cut behind line breaks; the last block may lack one."""
        if isinstance(self.source, Pipe):
            self.source.start()
            yield from whole_lines((self._head + self._rest)[skipped:], self.source.read1)
        else:
            with self.source.open_lines() as stream:
                stream.seek(skipped)
                yield from whole_lines(b"", stream.read)


class LineSink(Sink):
    """Lines of text, written as they come."""

    def __init__(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> None:
        super().__init__(file, path, columns, about)
        self._text: IO[str] = sys.stdout if path == "-" else create_text(file, named=path)

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

    def abandon(self) -> None:
        """Close the file."""
        self.finish()
