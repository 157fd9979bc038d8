"""What readers of text share: the first line, and blocks of whole lines, from a file or from a pipe as they come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from normscale.tables.compressed import open_bytes
from normscale.tables.lines import first_line, whole_lines
from normscale.tables.pipe import PipeSource
from normscale.tables.reader import TableReader


class LineReader(TableReader):
    """Base class; a subclass begins its ``_read_head`` with :meth:`_read_first_line`."""

    _head: bytes
    """Up to the end of the first line that is not blank."""
    _rest: bytes
    """What was read beyond it."""

    def __init__(
        self,
        path: str,
        chunk_rows: int | None,
        *,
        shown: str | None = None,
        names: Sequence[str] | None = None,
        keep: Sequence[str] = (),
        source: PipeSource | None = None,
    ) -> None:
        """Read the first line of the file ``path``, or of ``source`` if given."""
        self._source = source
        super().__init__(path, chunk_rows, shown=shown, names=names, keep=keep)
        if source is not None:
            self.release = source.close

    def _read_first_line(self) -> None:
        if self._source is not None:
            self._head, self._rest = first_line(self._source)
        else:
            with open_bytes(self._file) as file:
                self._head, self._rest = first_line(file)

    def _line_blocks(self, skipped: int = 0) -> Iterator[bytes]:
        """The bytes behind the first ``skipped``, cut behind line breaks; the last block may lack one."""
        if self._source is not None:
            self._source.start()
            yield from whole_lines((self._head + self._rest)[skipped:], self._source.read1)
        else:
            with open_bytes(self._file) as file:
                file.seek(skipped)
                yield from whole_lines(b"", file.read)
