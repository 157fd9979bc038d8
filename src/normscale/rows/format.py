"""What a format is, and which there are: one file each, which says its suffixes, its media types, and how it is read.

Every module of ``formats/`` is looked at by itself. One from elsewhere joins by the decorator
:func:`register_format`, in any module that is imported before the table is opened::

    @register_format
    class Halves(TableFormat):
        name, suffixes, described = "halves", (".f16",), "an .f16 file (rows of half floats)"

        def open(self, source, options):
            return HalvesReader(self, source, options)      # a TableReader: two methods
"""

from __future__ import annotations

import os
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from normscale.errors import BodyRefused, FileFormatError, InvalidInput, NormscaleError
from normscale.rows.source import ByteSource, is_remote

if TYPE_CHECKING:
    from normscale.rows.reader import ReadOptions, TableReader
    from normscale.rows.writing import About, Sink

Body = bytes | bytearray
"""What a client sent."""
ArrayMap = dict[str, np.ndarray[Any, np.dtype[Any]]]

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".bin", ".ckpt")
_LONGEST_QUOTE = 100
_JSON = "application/json"
_formats: dict[str, TableFormat] = {}
_by_media_type: dict[str, TableFormat] = {}
_found = False


class BodyLimits(NamedTuple):
    """What rows that a stranger sent may be; looked at before memory is taken for them."""

    widths: Mapping[str, int]
    """The arrays that must come, and no others, with their columns."""
    rows: int
    """The most."""


class TableFormat(ABC):
    """How rows lie in a file, a pipe or the body of a request."""

    name: ClassVar[str]
    described: ClassVar[str]
    """With its article: ``an .npy file (one numpy array)``."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    media_types: ClassVar[tuple[str, ...]] = ()
    """Content types of a request's body that :meth:`parse` reads; empty: a guard does not take it."""
    magic: ClassVar[tuple[bytes, ...]] = ()
    """How its bytes begin; a pipe is recognised by these."""
    is_text: ClassVar[bool] = False
    """Lines of text: may be compressed by gzip, and is read from a pipe as it comes."""
    streams: ClassVar[bool] = False
    """Read from a pipe as it comes; what does not goes through a temporary file."""
    by_columns: ClassVar[bool] = False
    """A column for each class, instead of an array of all logits."""
    prefers_lists: ClassVar[bool] = False
    """The logits of a row stand in one list where the classes have no names."""
    keeps: ClassVar[frozenset[str]] = frozenset({"arrays", "labels", "head", "class names"})
    """What a table may hold beside its logits."""

    def begins(self, head: bytes) -> bool:
        """Whether the first nine bytes of a file are of this format."""
        return head.startswith(self.magic)

    @abstractmethod
    def open(self, source: ByteSource, options: ReadOptions) -> TableReader:
        """Read the head of a table; its rows when they are asked for."""

    def sink(self, file: str, path: str, columns: Mapping[str, Any], about: About) -> Sink:
        """Begin to write columns to ``file``, which messages call ``path``."""
        raise InvalidInput(f"{path}: {self.described} is read and not written; choose another suffix.")

    def parse(self, body: Body, limits: BodyLimits) -> ArrayMap:
        """The arrays in the body of a request, by name; :class:`~normscale.errors.BodyRefused` for anything else.

        As it stands it opens the bytes like a file; a format whose head may lie about sizes overrides it.
        """
        from normscale.rows.reader import ReadOptions

        try:
            with self.open(
                ByteSource.of_bytes(bytes(body), "the body"), ReadOptions(chunk_rows=limits.rows + 1)
            ) as table:
                if table.widths != dict(limits.widths):
                    raise BodyRefused(
                        "rule", f"the body must hold {_shown_widths(limits.widths)}; got {_shown_widths(table.widths)}."
                    )
                first = next(table.chunks(), None)
        except BodyRefused:
            raise
        except (InvalidInput, FileFormatError) as error:
            raise BodyRefused("damaged" if isinstance(error, OSError) else "rule", quoted(error, 300)) from None
        if first is None:
            raise BodyRefused("rule", "the body holds no rows; at least one is needed.")
        if len(first) > limits.rows:
            raise BodyRefused("too large", f"more than {limits.rows} rows in one request. Send them in parts.")
        return {name: first.array(name) for name in limits.widths}


FormatClass = TypeVar("FormatClass", bound="type[TableFormat]")


def register_format(cls: FormatClass) -> FormatClass:
    """Make a format known by its name, its suffixes and its media types.

    Raises
    ------
    InvalidInput
        Where another format has one of them.
    """
    made = cls()
    for other in _formats.values():
        same = {made.name, *made.suffixes, *made.media_types} & {other.name, *other.suffixes, *other.media_types}
        if same and type(other).__qualname__ != cls.__qualname__:
            raise InvalidInput(f"the format {other.name} is called {min(same)} already; choose another name.")
    if any(not suffix.startswith(".") or suffix != suffix.lower() for suffix in made.suffixes):
        raise InvalidInput(f"suffixes begin with a point and have small letters; got {', '.join(made.suffixes)}.")
    _formats[made.name] = made
    _by_media_type.update(dict.fromkeys(made.media_types, made))
    return cls


def unregister_format(name: str) -> None:
    """Forget a format, for tests."""
    gone = _formats.pop(name, None)
    for media_type in () if gone is None else gone.media_types:
        _by_media_type.pop(media_type, None)


def formats() -> list[TableFormat]:
    """All formats in the order of their names, text last."""
    global _found
    if not _found:
        _found = True
        package = import_module("normscale.rows.formats")
        for module in pkgutil.iter_modules(package.__path__):
            import_module(f"{package.__name__}.{module.name}")
    return sorted(_formats.values(), key=lambda format: (format.is_text, format.name))


def known_suffixes() -> list[str]:
    """How names of tables end."""
    return [suffix for format in formats() for suffix in format.suffixes]


def format_of(path: str) -> TableFormat:
    """The format that a file's name claims.

    Raises
    ------
    FileFormatError
        For any other suffix, with what to do instead.

    Examples
    --------
    >>> format_of("a.CSV.gz").name, format_of("s3://bucket/a.parquet?region=eu").name
    ('csv', 'parquet')
    """
    plain = path.partition("?")[0] if is_remote(path) else path
    stem, suffix = os.path.splitext(plain.lower())
    is_compressed = suffix == ".gz"
    if is_compressed:
        suffix = os.path.splitext(stem)[1]
    for format in formats():
        if suffix in format.suffixes and (format.is_text or not is_compressed):
            return format
    suffix += ".gz" if is_compressed else ""
    if suffix in _PICKLES:
        raise FileFormatError(
            f"{path}: {suffix} files are pickles, which can run code, so they are never opened here. "
            "If you trust it, load it yourself and write numpy.savez('outputs.npz', logits=..., labels=...)."
        )
    what = f"the suffix {suffix!r} is not known" if suffix else "the name has no suffix"
    known = ", ".join([*known_suffixes(), ".csv.gz"])
    raise FileFormatError(f"{path}: {what}; expected one of {known}, or '-' for a pipe.")


def format_of_content(head: bytes) -> TableFormat:
    """The format that the first nine bytes of a file or pipe show; any other text is taken for CSV."""
    return next((format for format in formats() if format.suffixes and format.begins(head)), _formats["csv"])


def format_of_media_type(content_type: str | None, body: Body) -> TableFormat:
    """The format that a header Content-Type names; JSON where there is none.

    ``application/octet-stream`` is whatever the body begins like.
    """
    if not _found:
        formats()
    if content_type is None or content_type == _JSON:
        return _by_media_type[_JSON]
    name = content_type.partition(";")[0].strip().lower()
    found = _by_media_type.get(name)
    if found is None and name.startswith("application/") and name.endswith("+json"):
        found = _by_media_type[_JSON]
    if found is None and name == "application/octet-stream":
        found = next((one for one in _by_media_type.values() if one.begins(bytes(body[:9]))), None)
    if found is None:
        known = ", ".join([_JSON, *sorted(kind for kind in _by_media_type if kind != _JSON)])
        raise BodyRefused(
            "unknown format",
            f"content type {quoted(name) or 'of no name'} is not known; send {known}, and say which in the header "
            "Content-Type.",
        )
    return found


def media_types() -> list[str]:
    """The content types of bodies that are read."""
    return [kind for format in formats() for kind in format.media_types]


def names_a_table(path: str) -> bool:
    """Whether a file's name claims a format that is read.

    Examples
    --------
    >>> [names_a_table(name) for name in ("a.csv", "a.CSV.gz", "a.npz.gz", "a.txt")]
    [True, True, False, False]
    """
    try:
        format_of(path)
    except FileFormatError:
        return False
    return True


def quoted(text: object, longest: int = _LONGEST_QUOTE) -> str:
    """What a stranger sent, fit for an error message: plain ASCII on one line, at most 100 characters.

    Examples
    --------
    >>> quoted("x" * 5000)[-6:], len(quoted("x" * 5000))
    ('xxx...', 100)
    >>> print(quoted("caf\\u00e9\\n"))
    caf\\xe9\\n
    """
    line = str(text)[: longest + 1].encode("unicode_escape").decode("ascii")
    return line if len(line) <= longest else line[: longest - 3] + "..."


def explained(
    action: Callable[[], Any], damage: tuple[type[Exception], ...], error: Callable[[str], FileFormatError]
) -> Any:
    """Run ``action``; what a library says about damaged files becomes :class:`FileFormatError`."""
    try:
        return action()
    except NormscaleError:
        raise
    except damage as caught:
        raise error(str(caught) or type(caught).__name__) from caught


def damaged(head: bytes | None, format: TableFormat, reason: str, shown: str) -> FileFormatError:
    """The error for a file that is not what its name says, or not whole; ``head`` is how it begins."""
    advice = "Was it copied or written in full? Make it again."
    if head == b"":
        return FileFormatError(f"{shown} is empty; expected {format.described}. {advice}")
    if head is not None:
        found = format_of_content(head)
        if found is not format and not found.is_text:
            return FileFormatError(
                f"{shown} is named as {format.described} but begins like {found.described}; rename it to end in "
                f"{found.suffixes[0]}."
            )
    return FileFormatError(f"{shown} is damaged, or is not {format.described}: {reason.strip().rstrip('.')}. {advice}")


def _shown_widths(widths: Mapping[str, int]) -> str:
    return " and ".join(f"{quoted(name)} of {width} columns" for name, width in widths.items()) or "nothing"
