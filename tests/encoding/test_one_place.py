"""Byte routines are written once: the words that give a copy away stand in one module each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import normscale

PACKAGE = Path(normscale.__file__).parent


@pytest.mark.parametrize(
    ("home", "words"),
    (
        ("_lock.py", r"\bfcntl\b"),
        ("_processes.py", r"\bparent_process\b"),
        ("encoding/npy_header.py", r"x93NUMPY|[\"']fortran_order|read_array_header|read_magic"),
        ("encoding/safetensors_header.py", r"__metadata__|data_offsets"),
        ("encoding/json_text.py", r"allow_nan|parse_constant|[\"']-?Infinity[\"']"),
    ),
)
def test_no_copies(home: str, words: str) -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(words, path.read_text(encoding="utf-8"))
    }
    assert found == {home}
