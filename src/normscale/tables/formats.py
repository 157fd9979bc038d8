"""Which format a file has, by its name and by its first bytes, and what to say when the two disagree."""

from __future__ import annotations

import os

from normscale.encoding.npy_header import MAGIC
from normscale.errors import FileFormatError

SUFFIXES = {
    ".npz": "npz",
    ".npy": "npy",
    ".safetensors": "safetensors",
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
}
TEXTS = ("csv", "tsv", "jsonl")
"""Formats that are lines of text, and may be compressed: .csv.gz and so on."""

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib", ".bin", ".ckpt")
_MAGIC = {MAGIC: "npy", b"PK\x03\x04": "npz", b"PK\x05\x06": "npz", b"PAR1": "parquet"}


def format_by_suffix(path: str) -> str:
    """The format a file's name claims.

    Raises
    ------
    FileFormatError
        For any other suffix, with what to do instead.
    """
    stem, suffix = os.path.splitext(path.lower())
    if suffix == ".gz":
        inner = os.path.splitext(stem)[1]
        if SUFFIXES.get(inner) in TEXTS:
            return SUFFIXES[inner]
        suffix = f"{inner}.gz"
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    known = ", ".join([*SUFFIXES, ".csv.gz"])
    if suffix in _PICKLES:
        raise FileFormatError(
            f"{path}: {suffix} files are pickles, which can run code, so they are never opened here. "
            "If you trust it, load it yourself and write numpy.savez('outputs.npz', logits=..., labels=...)."
        )
    what = f"the suffix {suffix!r} is not known" if suffix else "the name has no suffix"
    raise FileFormatError(f"{path}: {what}; expected one of {known}, or '-' for a pipe.")


def format_by_content(head: bytes) -> str:
    """The format the first bytes of a file or pipe show; text is taken for CSV, or for lines of JSON.

    Nine bytes are enough.
    """
    for magic, name in _MAGIC.items():
        if head.startswith(magic):
            return name
    # safetensors: the length of a JSON header in eight bytes, then its opening brace
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 40:
        return "safetensors"
    return "jsonl" if head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else "csv"


def check_file(path: str) -> None:
    """Raise the most helpful :class:`FileFormatError` when ``path`` is not a file that can be read."""
    try:
        if os.path.isdir(path):
            raise FileFormatError(f"{path} is a folder; give one file in it, such as {_example_in(path)}.")
        with open(path, "rb"):
            return
    except FileNotFoundError:
        raise _missing(path) from None
    except FileFormatError:
        raise
    except OSError as error:
        raise FileFormatError(f"cannot read {path}: {error.strerror or error}. Check its permissions.") from error


def damaged(path: str, expected: str, reason: str, *, shown: str) -> FileFormatError:
    """The error for a file that is not what its name says, or not whole; the message calls it ``shown``."""
    try:
        with open(path, "rb") as file:
            head = file.read(9)
    except OSError:
        head = None
    advice = "Was it copied or written in full? Make it again."
    if head == b"":
        return FileFormatError(f"{shown} is empty; expected {_described(expected)}. {advice}")
    if head is not None:
        found = format_by_content(head)
        if found != expected and found not in TEXTS:
            suffix = next(suffix for suffix, name in SUFFIXES.items() if name == found)
            return FileFormatError(
                f"{shown} is named as {_described(expected)} but begins like {_described(found)}; "
                f"rename it to end in {suffix}."
            )
    return FileFormatError(
        f"{shown} is damaged, or is not {_described(expected)}: {reason.strip().rstrip('.')}. {advice}"
    )


def _described(name: str) -> str:
    return {
        "npz": "an .npz file (a zip archive of numpy arrays)",
        "npy": "an .npy file (one numpy array)",
        "safetensors": "a .safetensors file",
        "parquet": "a .parquet file",
        "csv": "a .csv file (one row of numbers per line)",
        "tsv": "a .tsv file (one row of numbers per line)",
        "jsonl": "a .jsonl file (one JSON object per line)",
    }[name]


def names_a_table(path: str) -> bool:
    """Whether a file's name claims a format that is read.

    Examples
    --------
    >>> [names_a_table(name) for name in ("a.csv", "a.CSV.gz", "a.npz.gz", "a.txt")]
    [True, True, False, False]
    """
    try:
        format_by_suffix(path)
    except FileFormatError:
        return False
    return True


def _missing(path: str) -> FileFormatError:
    """Say that a file is missing, and which files there might have been meant."""
    import difflib

    folder, name = os.path.split(path)
    try:
        there = sorted(os.listdir(folder or "."))
    except OSError:
        return FileFormatError(f"no such file: {path}; its folder {folder!r} does not exist either.")
    close = difflib.get_close_matches(name, there, n=3)
    if close:
        return FileFormatError(f"no such file: {path}; did you mean {' or '.join(close)}?")
    tables = [entry for entry in there if names_a_table(entry)]
    if tables:
        shown = ", ".join(tables[:5]) + (f" and {len(tables) - 5} more" if len(tables) > 5 else "")
        return FileFormatError(f"no such file: {path}; the tables in that folder are {shown}.")
    return FileFormatError(f"no such file: {path}; there are no tables in that folder.")


def _example_in(folder: str) -> str:
    try:
        tables = sorted(entry for entry in os.listdir(folder) if names_a_table(entry))
    except OSError:
        tables = []
    return os.path.join(folder, tables[0] if tables else "outputs.npz")
