"""State as a value, and in a file: records of arrays; named arrays and one JSON document as safetensors. Never pickle.

Detectors, networks, checkpoints and results are stored alike; the metadata key of the document tells the kinds apart.
Files are written to a temporary name and moved into place, so a crash leaves the old file or the new one, never half
of one.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from normscale._atomic import atomic_path
from normscale._version import __version__
from normscale.encoding.json_text import read_json, write_json
from normscale.encoding.safetensors_header import read_safetensors_header
from normscale.errors import FileFormatError, InvalidInput

FORMAT = 2
"""Grows when a file can no longer be read by older versions."""


class Kind(NamedTuple):
    """What a file holds, and what to say when it does not; ``{path}`` stands for its name."""

    key: str
    """Where in the metadata the document stands."""
    noun: str
    when_absent: str
    when_damaged: str
    when_foreign: str = "It is of another kind; choose another file."


DETECTOR = Kind(
    "normscale",
    "detector",
    "Make one with `normscale fit ... -o {path}`.",
    "restore it from a copy or fit the detector again.",
    "Is it a table of logits? Then fit a detector on it first.",
)


def save_state(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], kind: Kind = DETECTOR
) -> None:
    """Write a header and named arrays to ``path`` atomically."""
    data = pack_state(header, tensors, kind)
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(data)


def pack_state(header: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], kind: Kind = DETECTOR) -> bytes:
    """What :func:`save_state` writes, as bytes: for keeping a state in a database."""
    from safetensors.numpy import save

    document = {"format": FORMAT, "version": __version__, **header}
    arrays = {name: np.require(array, requirements="C") for name, array in tensors.items()}
    arrays.setdefault("_", np.zeros(0))  # without arrays, one tensor is still needed to be a valid file
    return save(arrays, metadata={kind.key: write_json(document)})


def packed_metadata(data: bytes) -> dict[str, str]:
    """The metadata of what :func:`pack_state` gave: the document, as it is written, by its kind's key."""
    return read_safetensors_header(io.BytesIO(data))[1]


def unpack_state(data: bytes, kind: Kind = DETECTOR) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read back what :func:`pack_state` gave."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors, metadata = load(data), packed_metadata(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise FileFormatError(f"a stored {kind.noun} is damaged ({error!r}); {kind.when_damaged}") from error
    return _document(metadata, tensors, kind, f"a stored {kind.noun}")


def load_header(path: str | os.PathLike[str], kind: Kind = DETECTOR) -> dict[str, Any]:
    """Read the header alone; the arrays stay on disk."""
    return load_state(path, kind, with_arrays=False)[0]


def load_state(
    path: str | os.PathLike[str], kind: Kind = DETECTOR, *, with_arrays: bool = True
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Read back what :func:`save_state` wrote; a damaged, foreign or newer file is a :class:`FileFormatError`."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if not os.path.isfile(name):
        raise FileFormatError(f"no {kind.noun} file at {name!r}. {kind.when_absent.format(path=name)}")
    try:
        with safe_open(name, framework="np") as file:
            metadata = file.metadata() or {}
            names = file.keys() if with_arrays else ()
            tensors = {key: file.get_tensor(key) for key in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise FileFormatError(
            f"{name!r} is not a readable safetensors file ({error}). It is damaged or of another kind; "
            f"{kind.when_damaged}"
        ) from error
    return _document(metadata, tensors, kind, repr(name))


def _document(
    metadata: Mapping[str, str], tensors: dict[str, NDArray[Any]], kind: Kind, name: str
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the arrays, once it is known that this version can read them."""
    if kind.key not in metadata:
        raise FileFormatError(
            f"{name} is a safetensors file but holds no normscale {kind.noun} (no {kind.key!r} in its metadata). "
            f"{kind.when_foreign}"
        )
    try:
        header = read_json(metadata[kind.key])
        written_as = int(header["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileFormatError(f"the header of {name} is damaged ({error!r}); {kind.when_damaged}") from error
    if written_as > FORMAT:
        raise FileFormatError(
            f"{name} was written by normscale {header.get('version', '?')} in format {written_as}; this version, "
            f"{__version__}, reads up to format {FORMAT}. Upgrade normscale."
        )
    tensors.pop("_", None)
    return header, tensors


# A record is a NamedTuple of arrays, numbers, None, other records, and tuples or dicts of records. What follows is all
# that is needed to keep one: nobody else knows the fields.

Record = TypeVar("Record", bound=tuple[Any, ...])


class Numbers:
    """What the numbers in a field of a record must be, beside its type: ``Annotated[FloatArray, Numbers("logits")]``.

    ``shape`` are the sizes of the axes; none: any shape. A name stands for a size that the reader of the record knows,
    such as the columns of an array or a parameter of a detector; else for the same size wherever it appears. No number
    may be below ``least``, and every number must be above ``above``.
    """

    def __init__(
        self, *shape: int | str, least: float | None = None, above: float | None = None, finite: bool = True
    ) -> None:
        self.shape, self.least, self.above, self.finite = shape, least, above, finite

    def check(self, value: NDArray[Any], name: str, sizes: Callable[[str], int | None], bound: dict[str, int]) -> None:
        """Raise :class:`InvalidInput` where an array is not as declared."""
        if self.shape:
            known = [size if isinstance(size, int) else sizes(size) or bound.get(size) for size in self.shape]
            if value.ndim != len(known) or any(s not in (None, n) for s, n in zip(known, value.shape, strict=True)):
                wanted = ", ".join(str(size or name) for size, name in zip(known, self.shape, strict=True))
                raise InvalidInput(f"{name} must have the shape ({wanted}); got {value.shape}.")
            bound.update({size: n for size, n in zip(self.shape, value.shape, strict=True) if isinstance(size, str)})
        if self.finite and not np.isfinite(value).all():
            raise InvalidInput(f"{name} must be finite.")
        if self.least is not None and (value < self.least).any():
            raise InvalidInput(f"{name} must be at least {self.least:g}; got {value.min():g}.")
        if self.above is not None and not (value > self.above).all():
            raise InvalidInput(f"{name} must be above {self.above:g}; got {value.min():g}.")


Declared = Numbers | Mapping[str, "Numbers"]
_Sizes = tuple[Callable[[str], int | None], dict[str, int]]
_ANY = Numbers()


def record_arrays(record: Any, name: str = "") -> dict[str, NDArray[Any]]:
    """The numbers of a record as arrays with dotted names; None and empty records leave nothing.

    Examples
    --------
    >>> class Line(NamedTuple):
    ...     slope: float
    ...     offset: float | None
    >>> record_arrays({"line": Line(2.0, None)})
    {'line.slope': array(2.)}
    """
    if record is None:
        return {}
    parts: Iterable[tuple[Any, Any]]
    if isinstance(record, Mapping):
        parts = record.items()
    elif isinstance(record, tuple):
        parts = zip(getattr(record, "_fields", range(len(record))), record, strict=True)
    else:
        return {name: np.asarray(record)}
    dot = f"{name}." if name else ""
    return {key: array for part, value in parts for key, array in record_arrays(value, f"{dot}{part}").items()}


def record_of(
    kind: type[Record],
    arrays: Mapping[str, NDArray[Any]],
    name: str = "",
    sizes: Callable[[str], int | None] = lambda _: None,
    like: Any = None,
) -> Record:
    """The record that :func:`record_arrays` wrote, checked against what its fields declare.

    Raises :class:`InvalidInput` where an array is missing or not as declared. A record that has a method ``check`` is
    asked by it whether its fields fit together. ``name`` is what the record is called in ``arrays``; ``sizes`` are what
    names in :class:`Numbers` stand for; ``like`` is a record of the same form, for fields declared as Any.
    """
    found: Record = _read(kind, arrays, name, _ANY, (sizes, {}), like)
    return found


def _read(
    hint: Any, arrays: Mapping[str, NDArray[Any]], name: str, declared: Declared, sizes: _Sizes, like: Any
) -> Any:
    """A value of a declared type, from the arrays whose names begin with ``name``."""
    if hint is Any:
        hint = type(like)
    origin = get_origin(hint)
    if origin is Annotated:
        hint, declared = get_args(hint)[:2]
        origin = get_origin(hint)
    if origin in (Union, UnionType):
        if not any(key == name or key.startswith(f"{name}.") for key in arrays):
            return None
        return _read(next(one for one in get_args(hint) if one is not type(None)), arrays, name, declared, sizes, like)
    if hint is type(None):
        return None
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        return _read_fields(hint, arrays, f"{name}." if name else "", declared, sizes, like)
    if origin in (tuple, dict):
        inside = get_args(hint)[0 if origin is tuple else 1]
        start = len(name) + 1
        keys = dict.fromkeys(key[start:].partition(".")[0] for key in arrays if key.startswith(f"{name}."))
        values = {key: _read(inside, arrays, f"{name}.{key}", declared, sizes, None) for key in keys}
        return values if origin is dict else tuple(values[str(i)] for i in range(len(values)))
    if name not in arrays:
        raise InvalidInput(f"{name} is missing.")
    value = np.asarray(arrays[name])
    is_number = hint in (float, int, bool)
    wanted = np.dtype(hint) if is_number else _dtype_of(hint)
    if value.dtype.kind not in "biuf" or (is_number and value.ndim):
        raise InvalidInput(f"{name} must be {'a number' if is_number else 'numbers'}; got {value.dtype} {value.shape}.")
    if wanted is not None:
        if wanted.kind in "iub" and not (np.isfinite(value).all() and (value == value.astype(wanted)).all()):
            raise InvalidInput(f"{name} must be whole numbers.")
        value = value.astype(wanted, copy=False)
    assert isinstance(declared, Numbers)
    declared.check(value, name, *sizes)
    return value.item() if is_number else value


def _read_fields(
    kind: Any, arrays: Mapping[str, NDArray[Any]], dot: str, declared: Declared, sizes: _Sizes, like: Any
) -> Any:
    given = declared if isinstance(declared, Mapping) else {}
    own = sizes[0], dict(sizes[1])  # a name stands for one size within a record, and in those inside it
    record = kind(
        *(
            _read(hint, arrays, f"{dot}{field}", given.get(field, _ANY), own, getattr(like, field, None))
            for field, hint in _hints(kind)
        )
    )
    if hasattr(record, "check"):
        record.check()
    return record


@cache
def _hints(kind: Any) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(field, hints[field]) for field in kind._fields]


def _dtype_of(hint: Any) -> np.dtype[Any] | None:
    """The dtype that an array type names; None where it names none, and any will do."""
    inner = get_args(get_args(hint)[1])[0] if get_args(hint) else None
    return np.dtype(inner) if isinstance(inner, type) and inner is not Any else None


def copied(record: Any) -> Any:
    """A record that may be changed in place: every array in it is a copy."""
    if isinstance(record, np.ndarray):
        return record.copy()
    if isinstance(record, tuple):
        parts = [copied(part) for part in record]
        return type(record)(*parts) if hasattr(record, "_fields") else tuple(parts)
    return {key: copied(part) for key, part in record.items()} if isinstance(record, Mapping) else record


def same_records(first: Any, second: Any) -> bool:
    """Whether two records hold the same numbers, to the bit."""
    one, other = record_arrays(first), record_arrays(second)
    return one.keys() == other.keys() and all(np.array_equal(array, other[key]) for key, array in one.items())
