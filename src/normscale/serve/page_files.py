"""The files of the page, read once at the start."""

from __future__ import annotations

import os
from typing import NamedTuple

_FOLDER = os.path.join(os.path.dirname(__file__), "page")
_KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class PageFile(NamedTuple):
    """One file."""

    content: bytes
    kind: str


def page_files() -> dict[str, PageFile]:
    """Path -> file: ``/`` is the page, ``/page/...`` what it loads."""
    files: dict[str, PageFile] = {}
    for name in sorted(os.listdir(_FOLDER)):
        kind = _KINDS.get(os.path.splitext(name)[1])
        if kind is None:
            continue
        with open(os.path.join(_FOLDER, name), "rb") as file:
            path = "/" if name == "index.html" else f"/page/{name}"
            files[path] = PageFile(file.read(), kind)
    return files
