"""Which formats there are, and which one a name or a beginning means.

A format is one class, a :class:`~normscale.rows.reader.TableReader`, in a file of ``formats/`` or anywhere else::

    @register_format
    class Halves(TableReader):
        name, suffixes, described = "halves", (".f16",), "an .f16 file (rows of half floats)"

        def _read_head(self): ...       # fill n_rows, widths and the like
        def _blocks(self): ...          # give the rows
"""

from __future__ import annotations

import os
import pkgutil
import re
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from normscale.errors import FileFormatError, InvalidInput

if TYPE_CHECKING:
    from normscale.rows.reader import TableReader

HEAD_BYTES = 9
"""How many first bytes tell a format."""
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".bin", ".ckpt")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")
_formats: dict[str, type[TableReader]] = {}

FormatClass = TypeVar("FormatClass", bound="type[TableReader]")


def register_format(cls: FormatClass) -> FormatClass:
    """Make a format known by its name and its suffixes; none of them may be taken.

    One from outside the package must be registered before a table is opened.
    """
    for other in _formats.values():
        same = {cls.name, *cls.suffixes} & {other.name, *other.suffixes}
        if same and other.__qualname__ != cls.__qualname__:
            raise InvalidInput(f"the format {other.name} is called {min(same)} already; choose another name.")
    if any(not suffix.startswith(".") or suffix != suffix.lower() for suffix in cls.suffixes):
        raise InvalidInput(f"suffixes begin with a point and have small letters; got {', '.join(cls.suffixes)}.")
    _formats[cls.name] = cls
    return cls


def unregister_format(name: str) -> None:
    """Forget a format, for tests."""
    _formats.pop(name, None)


def formats() -> list[type[TableReader]]:
    """All formats in the order of their names, text last."""
    _find_own()
    return sorted(_formats.values(), key=lambda format: (format.is_text, format.name))


@cache
def _find_own() -> None:
    package = import_module("normscale.rows.formats")
    for module in pkgutil.iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")


def known_suffixes() -> list[str]:
    """How names of tables end."""
    return [suffix for format in formats() for suffix in format.suffixes]


def is_remote(path: str) -> bool:
    """Whether a path is one of an object store, such as ``s3://bucket/logits/``."""
    return _SCHEME.match(path) is not None


def names_a_table(path: str) -> bool:
    """Whether a file's name claims a format that is read."""
    return _claimed(path)[0] is not None


def format_of(path: str) -> type[TableReader]:
    """The format that a file's name claims; :class:`FileFormatError` for any other suffix.

    Examples
    --------
    >>> format_of("a.CSV.gz").name, format_of("s3://bucket/a.parquet?region=eu").name
    ('csv', 'parquet')
    """
    if path == "-":
        return format_of_content(b"")
    format, suffix = _claimed(path)
    if format is not None:
        return format
    if suffix in _PICKLES:
        raise FileFormatError(
            f"{path}: {suffix} files are pickles, which can run code, so they are never opened here. "
            "If you trust it, load it yourself and write numpy.savez('outputs.npz', logits=..., labels=...)."
        )
    what = f"the suffix {suffix!r} is not known" if suffix else "the name has no suffix"
    known = ", ".join([*known_suffixes(), ".csv.gz"])
    raise FileFormatError(f"{path}: {what}; expected one of {known}, or '-' for a pipe.")


def _claimed(path: str) -> tuple[type[TableReader] | None, str]:
    plain = path.partition("?")[0] if is_remote(path) else path
    stem, suffix = os.path.splitext(plain.lower())
    packed = suffix == ".gz"
    suffix = os.path.splitext(stem)[1] if packed else suffix
    found = (one for one in formats() if suffix in one.suffixes and (one.is_text or not packed))
    return next(found, None), suffix + ".gz" * packed


def format_of_content(head: bytes) -> type[TableReader]:
    """The format that the first nine bytes of a file or pipe show; any other text is taken for CSV."""
    return next((format for format in formats() if format.suffixes and format.begins(head)), _formats["csv"])
