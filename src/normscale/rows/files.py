"""Tables by name: which format a name or a beginning means, which files there are, and their bytes.

A format is one class, a :class:`~normscale.rows.reader.TableReader`, in a file of ``formats/`` or anywhere else::

    @register_format
    class Halves(TableReader):
        name, suffixes, described = "halves", (".f16",), "an .f16 file (rows of half floats)"

        def _read_head(self): ...       # fill n_rows, widths and the like
        def _blocks(self): ...          # give the rows

A path with a scheme (``s3://``, ``gs://``, ``hdfs://``, ...) belongs to pyarrow's file systems; what follows a question
mark in it are that file system's options, such as ``?endpoint_override=localhost:9000&scheme=http``.
"""

from __future__ import annotations

import fnmatch
import glob
import importlib
import io
import os
import pkgutil
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from normscale.errors import FileFormatError, InvalidInput, MissingExtra

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


def formats() -> list[type[TableReader]]:
    """All formats in the order of their names, text last."""
    _find_own()
    return sorted(_formats.values(), key=lambda format: (format.is_text, format.name))


@cache
def _find_own() -> None:
    package = importlib.import_module("normscale.rows.formats")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


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


class ByteSource:
    """Bytes that can be read again and again; messages call them ``shown``.

    ``path`` is that of a file on this machine, if it is one.
    """

    once = False
    """Whether it can be read once only: :class:`~normscale.rows.streams.Pipe`."""
    release: Callable[[], object] | None = None
    """Called by :meth:`close`."""

    def __init__(self, shown: str, opener: Callable[[], Any] | None, *, path: str | None = None) -> None:
        self.shown, self.path, self._opener = shown, path, opener

    @classmethod
    def of_bytes(cls, data: bytes, shown: str) -> ByteSource:
        """Bytes in memory."""
        return cls(shown, lambda: io.BytesIO(data))

    def open(self) -> io.BufferedReader:
        """The bytes from the first on; use it in a ``with`` statement."""
        assert self._opener is not None
        return cast("io.BufferedReader", self._opener())

    def head(self) -> bytes | None:
        """The first bytes, or None where they cannot be read."""
        try:
            with self.open() as stream:
                return stream.read(HEAD_BYTES)
        except OSError:
            return None

    def peeking(self) -> AbstractContextManager[None]:
        """What is read in the body of this ``with`` statement comes again; a pipe must do something for it."""
        return nullcontext()

    def close(self) -> None:
        """Let go of what it holds."""
        if self.release is not None:
            self.release()


def source_of(path: str) -> ByteSource:
    """The bytes of a file, here or in an object store; raises where there is none here."""
    if not is_remote(path):
        check_file(path)
        return ByteSource(path, lambda: open(path, "rb"), path=path)
    system, inside = file_system(path)
    return ByteSource(path, lambda: system.open_input_file(inside))


def need_arrow(module: str, path: str) -> Any:
    """Import ``pyarrow``, or one of its modules, or raise :class:`MissingExtra`."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{path}: .parquet, .jsonl and object stores need pyarrow; run: pip install 'normscale[arrow]'. "
            "Or use .npz or .safetensors, which need nothing more."
        ) from error


def file_system(path: str) -> tuple[Any, str]:
    """The pyarrow file system of a path with a scheme, and the path inside it."""
    fs = need_arrow("pyarrow.fs", path)
    if "@" in path.partition("://")[2].partition("/")[0]:  # plans and messages name paths
        raise InvalidInput("keys do not belong into a path; set AWS_ACCESS_KEY_ID and the like instead.")
    try:
        system, inside = fs.FileSystem.from_uri(path)
    except (OSError, ValueError) as error:
        raise FileFormatError(f"cannot open {path}: {error}.") from error
    return system, inside


def is_pipe(path: str) -> bool:
    """Whether a path can be read once only."""
    try:
        mode = 0 if path == "-" else os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return path == "-" or stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def check_file(path: str) -> None:
    """Raise the most helpful :class:`FileFormatError` when ``path`` is not a file that can be read."""
    if os.path.isdir(path):
        example = next(iter(_tables_in(path)), "outputs.npz")
        raise FileFormatError(f"{path} is a folder; give one file in it, such as {os.path.join(path, example)}.")
    try:
        with open(path, "rb"):
            return
    except FileNotFoundError:
        raise _missing(path) from None
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}. Check its permissions.") from error


def _missing(path: str) -> FileFormatError:
    import difflib

    folder, name = os.path.split(path)
    try:
        close = difflib.get_close_matches(name, sorted(os.listdir(folder or ".")), n=3)
    except OSError:
        return FileFormatError(f"no such file: {path}; its folder {folder!r} does not exist either.")
    if close:
        return FileFormatError(f"no such file: {path}; did you mean {' or '.join(close)}?")
    tables = _tables_in(folder or ".")
    more = f" and {len(tables) - 5} more" if len(tables) > 5 else ""
    there = f"the tables in that folder are {', '.join(tables[:5])}{more}" if tables else "there are no tables there"
    return FileFormatError(f"no such file: {path}; {there}.")


def _tables_in(folder: str) -> list[str]:
    try:
        return sorted(entry for entry in os.listdir(folder) if names_a_table(entry))
    except OSError:
        return []


def check_folder(path: str) -> None:
    """Raise before any work is done when a file cannot be made there."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise FileFormatError(f"cannot write {path}: there is no folder {os.path.dirname(path)!r}; make it first.")
    if os.path.isdir(path):
        raise FileFormatError(f"cannot write {path}: it is a folder; give the name of a file in it.")
    if not os.access(folder, os.W_OK):
        raise FileFormatError(f"cannot write {path}: its folder may not be written to; choose another.")


class SourceFile(NamedTuple):
    """A file as it was when a job was planned."""

    path: str
    size: int
    stamp: int | None
    """When it was last changed, in nanoseconds; None for what is no file."""

    def check(self) -> None:
        """Raise where the file is not the one that the job was planned with."""
        now = self if self.stamp is None else _described(self.path)
        if now != self:
            what = "is gone" if now is None else "has changed"
            everywhere = " On a cluster every machine must see it under this name." if now is None else ""
            raise FileFormatError(
                f"{self.path} {what} since this job was planned; its rows would belong to another job. Put the file "
                f"back, or start again with another output folder.{everywhere}"
            )


def find_files(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[SourceFile]:
    """The tables that files, folders and globs name; :class:`FileFormatError` where there is none.

    They come in the order of ``paths``, within a folder or a glob in the order of their names. Names that begin with
    ``.`` or ``_`` are left out. Paths of this machine become absolute: workers of a cluster run in folders of their
    own.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found: list[SourceFile] = []
    for path in (os.fspath(path) for path in given):
        files = _remote_files(path) if is_remote(path) else _local_files(path)
        if not files:
            location = path.partition("?")[0] if is_remote(path) else path
            what = "matches" if glob.has_magic(location) else "holds"
            raise FileFormatError(
                f"{path} {what} no table; expected files that end in {', '.join(known_suffixes())}, and names that do "
                "not begin with . or _."
            )
        found += files
    names = [file.path for file in found]
    if twice := next((name for name in names if len(set(names)) < len(names) and names.count(name) > 1), None):
        raise InvalidInput(f"{twice} is named twice; its rows would count twice. Leave it out once.")
    if not found:
        raise InvalidInput("no tables were given; name at least one file, folder or glob.")
    return found


def _local_files(path: str) -> list[SourceFile]:
    names: Sequence[str]
    if os.path.isdir(path):
        names = []
        for folder, folders, inside in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            names += [os.path.join(folder, name) for name in inside if _is_wanted(name)]
    elif glob.has_magic(path) and not os.path.exists(path):
        names = [name for name in glob.glob(path, recursive=True) if _is_wanted(os.path.basename(name))]
    else:
        check_file(path)
        names = [path]
    described = [_described(os.path.abspath(name)) for name in sorted(names)]
    return [file for file in described if file is not None]


def _remote_files(path: str) -> list[SourceFile]:
    fs = need_arrow("pyarrow.fs", path)
    location, mark, options = path.partition("?")
    scheme = location[: location.index("://") + 3]
    magic = re.search(r"[*\[]", location)
    start = location if magic is None else location[: location.rindex("/", 0, magic.start()) + 1]
    system, inside = file_system(start + mark + options)
    inside = inside.rstrip("/")
    try:
        info = system.get_file_info(inside)
        if info.type == fs.FileType.File:
            return [_remote(path, info)]
        listed = system.get_file_info(fs.FileSelector(inside, recursive=True, allow_not_found=True))
    except OSError as error:
        raise FileFormatError(f"cannot list {path}: {error}.") from error
    pattern = "*" if magic is None else inside + "/" + location[len(start) :]
    kept = []
    for entry in listed:
        folders = entry.path[len(inside) + 1 :].split("/")[:-1]
        hidden = any(folder.startswith((".", "_")) for folder in folders)
        is_table = entry.type == fs.FileType.File and not hidden and _is_wanted(entry.base_name)
        if is_table and fnmatch.fnmatchcase(entry.path, pattern):
            kept.append(_remote(scheme + entry.path + mark + options, entry))
    return sorted(kept)


def _is_wanted(name: str) -> bool:
    return not name.startswith((".", "_")) and names_a_table(name)


def _remote(path: str, info: Any) -> SourceFile:
    return SourceFile(path, int(info.size), int(info.mtime_ns or 0))


def _described(path: str) -> SourceFile | None:
    if is_remote(path):
        system, inside = file_system(path)
        info = system.get_file_info(inside)
        return None if info.size is None else _remote(path, info)
    try:
        status = os.stat(path)
    except OSError:
        return None
    return SourceFile(path, status.st_size, status.st_mtime_ns)
