"""The files of the page, read once at the start."""

from __future__ import annotations

import os

_FOLDER = os.path.join(os.path.dirname(__file__), "page")
_CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


def page_files() -> dict[str, tuple[bytes, str]]:
    """Path -> content and its type: ``/`` is the page, ``/page/...`` what it loads."""
    files: dict[str, tuple[bytes, str]] = {}
    for name in sorted(os.listdir(_FOLDER)):
        content_type = _CONTENT_TYPES.get(os.path.splitext(name)[1])
        if content_type is None:
            continue
        with open(os.path.join(_FOLDER, name), "rb") as file:
            path = "/" if name == "index.html" else f"/page/{name}"
            files[path] = file.read(), content_type
    return files
