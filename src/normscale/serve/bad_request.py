"""The one error of everything that reads what a client sent."""

from __future__ import annotations

from typing import TypeAlias

from normscale.errors import NormscaleError

Body: TypeAlias = bytes | bytearray
"""What a client sent."""

_LONGEST = 100


class BadRequest(NormscaleError):
    """A request that is refused; nothing was taken in.

    Parameters
    ----------
    status : int
        400 what came in cannot be read, 413 it is too large, 415 its format is not known, 422 it can be read but
        breaks a rule.
    sentence : str
        What came in, the rule, and what to try. Quote the client only through :func:`shown`.
    """

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def shown(text: object) -> str:
    """What a client sent, fit for an error message: plain ASCII on one line, at most 100 characters.

    Examples
    --------
    >>> shown("x" * 5000)[-6:], len(shown("x" * 5000))
    ('xxx...', 100)
    >>> print(shown("caf\\u00e9\\n"))
    caf\\xe9\\n
    """
    line = str(text)[: _LONGEST + 1].encode("unicode_escape").decode("ascii")
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
