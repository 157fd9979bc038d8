"""The JSON bodies of decisions and of errors as types: they are read and written by them, and documented by them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct


class NewThreshold(Struct, forbid_unknown_fields=True):
    """Flag scores above this; null: above the detector file's own threshold."""

    value: float | None


class Reason(Struct, forbid_unknown_fields=True):
    """Why somebody decides so."""

    reason: Annotated[str, Meta(max_length=500)] = "a person said so"


class Nothing(Struct, forbid_unknown_fields=True):
    """No fields."""


class OfClient(Struct, forbid_unknown_fields=True):
    """Only what this client sent; null: what all of them sent."""

    client: Annotated[str, Meta(min_length=1, max_length=160, pattern="^[ -~]+$")] | None = None


class Decided(Struct):
    """The guard after a decision."""

    mode: Literal["running", "frozen", "static"]
    rows: int
    quarantined: int
    frozen_because: str | None


class ErrorAnswer(Struct):
    """Refused; nothing was taken in."""

    error: str


encode_json = msgspec.json.Encoder().encode


def error_body(sentence: str) -> bytes:
    """The body of every response that is an error.

    Examples
    --------
    >>> error_body("no such page.")
    b'{"error":"no such page."}'
    """
    return encode_json(ErrorAnswer(sentence))
