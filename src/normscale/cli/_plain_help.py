"""Help that names types in words that people know."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command whose help shows ``<str>...`` for what may be repeated, and not the type of the Python variable."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for parameter in self.params:
            shown = getattr(parameter, "display_type", None)  # other versions of typer name types otherwise
            if shown is not None:
                parameter.display_type = _plain(shown)  # type: ignore[attr-defined]


def _plain(shown: Any) -> Any:
    def display_type(*arguments: Any, **options: Any) -> str:
        return re.sub(r"<list\[(.*)\]>", r"<\1>...", str(shown(*arguments, **options)))

    return display_type
