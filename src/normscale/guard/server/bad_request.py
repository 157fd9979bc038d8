"""The one error of everything that reads what a client sent."""

from __future__ import annotations

from normscale.errors import NormscaleError
from normscale.rows.format import Body
from normscale.rows.format import quoted as shown

__all__ = ["BadRequest", "Body", "shown"]


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
