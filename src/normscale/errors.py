"""Every exception and warning of normscale.

All errors derive from :class:`NormscaleError`, so ``except ns.NormscaleError`` catches what this library
says and nothing else. Each also derives from the built-in a caller would expect (``ValueError`` for bad
input, ``RuntimeError`` for a wrong order of calls, ``OSError`` for files).

Every message names the argument, the rule, what came in, and the next step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class NormscaleError(Exception):
    """Base class of every error raised by normscale."""


def first_line(error: BaseException) -> str:
    """The first line of what an error of others says, or what kind it is."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


class InvalidInput(NormscaleError, ValueError):
    """An argument breaks a rule; nothing was taken in."""


class MissingOutput(InvalidInput, AttributeError):
    """Outputs were asked for an array that they do not have."""


class NotFitted(NormscaleError, RuntimeError):
    """A detector was asked to score before it was fitted or loaded."""


class UnknownDetector(NormscaleError, KeyError):
    """No detector is registered under that name."""

    def __str__(self) -> str:
        """Print the sentence itself; ``KeyError`` would print its repr."""
        return str(self.args[0]) if self.args else ""


class FileFormatError(NormscaleError, OSError):
    """A file is damaged, newer than this version, or not what it claims to be."""


class EmptyTable(FileFormatError):
    """A file holds no rows, and does not say what its rows would be."""


class FolderInUse(NormscaleError, OSError):
    """Another process is at work in that folder."""


class StoreUnavailable(NormscaleError, OSError):
    """The store of a guard cannot be read or written just now."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        """Say what; ``full``: for want of room on its disk."""
        super().__init__(message)
        self.full = full


class StoreHeld(StoreUnavailable):
    """Another process has kept the store to itself for longer than anyone should wait."""


class MissingExtra(NormscaleError, ImportError):
    """A feature needs an optional dependency that is not installed."""


@contextmanager
def needs(why: str, extra: str, otherwise: str = "") -> Iterator[None]:
    """What is imported in here, or else which extra to install; ``why`` begins the sentence."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingExtra):
            raise
        raise MissingExtra(f"{why} ({error}). Run: pip install 'normscale[{extra}]'{otherwise}") from error


class TrainingDiverged(NormscaleError, ArithmeticError):
    """The loss became NaN or infinite."""


class NumericalWarning(UserWarning):
    """A result is defined and exact but probably not what the caller hoped for."""
