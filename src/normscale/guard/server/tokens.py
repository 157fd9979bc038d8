"""Who may do what: a file of clients, each with a role and the hash of its secret.

One client per line, as JSON::

    {"name": "camera-7", "role": "score", "sha256": "9f86d0..."}

A secret is 256 random bits, so its plain SHA-256 cannot be turned back and the file may be read by anyone; it must not
be writable by everyone, for a line more is a client more. Roles are no ladder: a camera that sends rows has no business
in the statistics, and whoever watches them must not move them.

========  ==================================================
``score``  send rows or inputs to be scored, nothing else
``read``   look at the state, the page, the metrics, nothing else
``admin``  both, and change the guard
========  ==================================================
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from normscale._lock import lock_file
from normscale.errors import FileFormatError, InvalidInput

ROLES: Mapping[str, frozenset[str]] = {
    "score": frozenset({"score"}),
    "read": frozenset({"read"}),
    "admin": frozenset({"score", "read", "admin"}),
}
"""Role -> the actions it may take."""

ENVIRONMENT = "NORMSCALE_TOKEN"
"""The environment variable that holds the secret of one more client, an administrator."""

_PREFIX = "nsk_"  # lets people and secret scanners see what it is
_SHORTEST = 20
_RULES = {
    "name": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), "1 to 64 letters, digits, dots, dashes or underscores"),
    "role": (re.compile("|".join(ROLES)), f"one of {', '.join(ROLES)}"),
    "sha256": (re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits in lower case"),
}
"""Field of a line -> what it must look like, for the program and for people."""


class Client(NamedTuple):
    """Who sent a request."""

    name: str
    role: str


class Tokens:
    """The clients that are known, by the hashes of their secrets."""

    __slots__ = ("_clients",)

    def __init__(self, clients: Iterable[tuple[str, str, str]]) -> None:
        """Take (name, role, sha256) of each client."""
        self._clients = tuple((bytes.fromhex(digest), Client(name, role)) for name, role, digest in clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        """Say how many there are; neither secrets nor hashes."""
        return f"Tokens({len(self)} clients)"

    def identify(self, authorization: str | None) -> Client | None:
        """Whose secret a header ``Authorization: Bearer nsk_...`` holds, or the password of ``Basic``; None: nobody's.

        Takes as long for the first client as for the last and for a stranger.

        Examples
        --------
        >>> secret, line = new_token("camera-7", "score")
        >>> tokens = Tokens([parse_line(line)])
        >>> tokens.identify(f"Bearer {secret}")
        Client(name='camera-7', role='score')
        >>> tokens.identify("Bearer nsk_guess") is None
        True
        """
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() == "basic":  # of senders that know an address with a password and nothing else
            try:
                secret = base64.b64decode(secret, validate=True).decode("latin-1").partition(":")[2]
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        digest = hashlib.sha256(secret.strip().encode("utf-8", "surrogatepass")).digest()
        found: Client | None = None
        for known, client in self._clients:
            if hmac.compare_digest(known, digest):
                found = client
        return found


class TokenFile:
    """The clients of a file as it is now: a line that is removed stops working at once.

    Attributes
    ----------
    required : bool
        Whether a token is needed at all. A file that was emptied lets nobody in, not everybody.
    """

    def __init__(self, path: str | None, environment: Mapping[str, str] = os.environ) -> None:
        self.required = path is not None or ENVIRONMENT in environment
        self._path = path
        self._environment = environment
        self._stamp: tuple[int, ...] | None = None
        self._tokens = load_tokens(path, environment)

    def current(self) -> Tokens:
        """Everyone who is known; :class:`FileFormatError` while the file cannot be read."""
        if self._path is None:
            return self._tokens
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
        except OSError:
            stamp = None
        if stamp is None or stamp != self._stamp:
            self._stamp = None
            self._tokens = load_tokens(self._path, self._environment)
            self._stamp = stamp
        return self._tokens


def may(role: str, action: str) -> bool:
    """Whether a role may take an action: ``score``, ``read`` or ``admin``.

    Examples
    --------
    >>> may("score", "score"), may("score", "read"), may("read", "score"), may("admin", "read")
    (True, False, False, True)
    """
    return action in ROLES.get(role, frozenset())


def new_token(name: str, role: str) -> tuple[str, str]:
    """A fresh secret, and the line that makes its owner known. The secret is kept nowhere."""
    for field, value in (("name", name), ("role", role)):
        pattern, rule = _RULES[field]
        if not pattern.fullmatch(value):
            raise InvalidInput(f"a token's {field} must be {rule}; got {value[:80]!r}.")
    secret = _PREFIX + secrets.token_urlsafe(32)
    return secret, json.dumps({"name": name, "role": role, "sha256": _digest(secret)})


def parse_line(line: str) -> tuple[str, str, str]:
    """Name, role and hash out of a line; ``ValueError`` says what is wrong with it."""
    try:
        pairs = json.loads(line, object_pairs_hook=tuple)  # as pairs, so that a field said twice is seen
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(pairs, tuple) or sorted(key for key, _ in pairs) != ["name", "role", "sha256"]:
        raise ValueError("it must have the fields name, role and sha256, each once, and no others")
    entry = dict(pairs)
    for field, (pattern, rule) in _RULES.items():
        if not isinstance(entry[field], str) or not pattern.fullmatch(entry[field]):
            raise ValueError(f"its {field} must be {rule}")
    return entry["name"], entry["role"], entry["sha256"]


def load_tokens(path: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> Tokens:
    """The clients of a file, and the administrator whose secret the environment holds as ``NORMSCALE_TOKEN``.

    Raises
    ------
    FileFormatError
        When the file cannot be read, can be written by everyone, or has a line that is no client.
    InvalidInput
        When the secret of the environment is too short to be one.
    """
    entries = [] if path is None else _read(path)
    secret = environment.get(ENVIRONMENT)
    if secret is not None:
        if len(secret) < _SHORTEST or secret != secret.strip():
            raise InvalidInput(
                f"{ENVIRONMENT} must be at least {_SHORTEST} characters without spaces around them; got "
                f"{len(secret)} characters. Make one: normscale token NAME --role admin."
            )
        entries.append(("environment", "admin", _digest(secret)))
    _refuse_twins(entries, ENVIRONMENT if path is None else os.fspath(path))
    return Tokens(entries)


def add_token(path: str | os.PathLike[str], name: str, role: str) -> str:
    """Make a client known in a file, which is made for its owner alone when it is not there; returns the secret."""
    secret, line = new_token(name, role)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with open(handle, "r+", encoding="utf-8", errors="backslashreplace") as file:
        lock_file(handle)  # on Windows nothing is done: appending a line is all that can collide
        text = file.read()
        if any(known == name for known, _, _ in _parse(text, os.fspath(path))):
            raise InvalidInput(f"{os.fspath(path)} knows {name!r} already; take another name or remove its line.")
        file.write("\n" * (text != "" and not text.endswith("\n")) + line + "\n")
        file.flush()
        os.fsync(handle)
    return secret


def _read(path: str | os.PathLike[str]) -> list[tuple[str, str, str]]:
    shown = os.fspath(path)
    try:
        with open(path, encoding="utf-8") as file:
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o002:
                raise FileFormatError(
                    f"{shown} can be written by everyone, so anyone could add a client. chmod o-w it."
                )
            text = file.read()
    except FileFormatError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise FileFormatError(
            f"cannot read the tokens in {shown}: {reason}. Make it: normscale token NAME --role score --file {shown}."
        ) from None
    return _parse(text, shown)


def _parse(text: str, shown: str) -> list[tuple[str, str, str]]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            entries.append(parse_line(line))
        except ValueError as error:
            raise FileFormatError(f"{shown}, line {number}: {error}. Make it again with: normscale token.") from None
    _refuse_twins(entries, shown)
    return entries


def _refuse_twins(entries: list[tuple[str, str, str]], shown: str) -> None:
    for column, what in ((0, "name"), (2, "secret")):
        values = [entry[column] for entry in entries]
        twins = [entry[0] for entry in entries if values.count(entry[column]) > 1]
        if twins:
            raise FileFormatError(f"{shown}: two clients have one {what} ({', '.join(twins[:2])}). Remove one of them.")


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
