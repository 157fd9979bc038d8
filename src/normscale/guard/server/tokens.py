"""Who may do what: a file of clients, each with a role and the hash of its secret.

One client per line, as JSON: ``{"name": "camera-7", "role": "score", "sha256": "9f86d0..."}``. A secret is 256 random
bits, so its plain SHA-256 cannot be turned back and the file may be read by anyone. It must not be writable by
everyone, for a line more is a client more. Roles are no ladder: a camera that sends rows has no business in the
statistics, and whoever watches them must not move them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from normscale._lock import lock_file
from normscale.errors import FileFormatError, InvalidInput

ROLES: Mapping[str, frozenset[str]] = {
    "score": frozenset({"score"}),
    "read": frozenset({"read"}),
    "admin": frozenset({"score", "read", "admin"}),
}
"""Role -> the actions it may take: send rows, look at the state, the page and the metrics, change the guard."""
ENVIRONMENT = "NORMSCALE_TOKEN"  # the environment variable that holds the secret of one more client, an administrator
_PREFIX = "nsk_"  # lets people and secret scanners see what it is
_SHORTEST = 20
_RULES = {
    "name": (re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"), "1 to 64 letters, digits, dots, dashes or underscores"),
    "role": (re.compile("|".join(ROLES)), f"one of {', '.join(ROLES)}"),
    "sha256": (re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits in lower case"),
}
"""Field of a line -> what it must look like, for the program and for people."""


class Client(NamedTuple):
    """Who sends requests."""

    name: str
    role: str
    sha256: str

    def may(self, action: str) -> bool:
        """Whether its role may ``score``, ``read`` or ``admin``."""
        return action in ROLES[self.role]


class Tokens:
    """The clients of a file as it is now, and the administrator whose secret the environment holds.

    A line that is removed stops working at once. A file that was emptied lets nobody in, not everybody.
    """

    def __init__(self, path: str | None, environment: Mapping[str, str] = os.environ) -> None:
        self.required = path is not None or ENVIRONMENT in environment
        self._path = path
        self._environment = environment
        self._stamp: tuple[int, ...] | None = None
        self._clients = self._read()

    def __len__(self) -> int:
        return len(self._clients)

    def identify(self, authorization: str | None) -> Client | None:
        """Whose secret a header ``Authorization: Bearer nsk_...`` holds, or the password of ``Basic``; None: nobody's.

        Takes as long for the first client as for the last and for a stranger. Raises :class:`FileFormatError` while the
        file cannot be read.
        """
        self._refresh()
        scheme, _, secret = (authorization or "").partition(" ")
        if scheme.lower() == "basic":  # of senders that know an address with a password and nothing else
            try:
                secret = base64.b64decode(secret, validate=True).decode("latin-1").partition(":")[2]
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        digest = hashlib.sha256(secret.strip().encode("utf-8", "surrogatepass")).hexdigest()
        found = [client for client in self._clients if hmac.compare_digest(client.sha256, digest)]
        return found[0] if found else None

    def _refresh(self) -> None:
        if self._path is None:
            return
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode)
        except OSError:
            stamp = None
        if stamp is None or stamp != self._stamp:
            self._stamp = None
            self._clients = self._read()
            self._stamp = stamp

    def _read(self) -> list[Client]:
        clients = [] if self._path is None else _parse(_text(self._path), self._path)
        secret = self._environment.get(ENVIRONMENT)
        if secret is not None:
            if len(secret) < _SHORTEST or secret != secret.strip():
                raise InvalidInput(
                    f"{ENVIRONMENT} must be at least {_SHORTEST} characters without spaces around them; got "
                    f"{len(secret)} characters. Make one: normscale token NAME --role admin."
                )
            clients.append(Client("environment", "admin", hashlib.sha256(secret.encode()).hexdigest()))
        return _without_twins(clients, self._path or ENVIRONMENT)


def add_token(path: str | os.PathLike[str], name: str, role: str) -> str:
    """Make a client known in a file, which is made for its owner alone when it is not there; returns the secret."""
    for field, value in (("name", name), ("role", role)):
        pattern, rule = _RULES[field]
        if not pattern.fullmatch(value):
            raise InvalidInput(f"a token's {field} must be {rule}; got {value[:80]!r}.")
    secret = _PREFIX + secrets.token_urlsafe(32)
    line = json.dumps(Client(name, role, hashlib.sha256(secret.encode()).hexdigest())._asdict())
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with open(handle, "r+", encoding="utf-8", errors="backslashreplace") as file:
        lock_file(handle)  # on Windows nothing is done: appending a line is all that can collide
        text = file.read()
        if any(client.name == name for client in _parse(text, os.fspath(path))):
            raise InvalidInput(f"{os.fspath(path)} knows {name!r} already; take another name or remove its line.")
        file.write("\n" * (text != "" and not text.endswith("\n")) + line + "\n")
        file.flush()
        os.fsync(handle)
    return secret


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            open_to_all = os.name == "posix" and os.fstat(file.fileno()).st_mode & 0o002
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise FileFormatError(
            f"cannot read the tokens in {path}: {reason}. Make it: normscale token NAME --role score --file {path}."
        ) from None
    if open_to_all:
        raise FileFormatError(f"{path} can be written by everyone, so anyone could add a client. chmod o-w it.")
    return text


def _parse(text: str, shown: str) -> list[Client]:
    clients = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            clients += [_client(line)] if line.strip() else []
        except ValueError as error:
            raise FileFormatError(f"{shown}, line {number}: {error}. Make it again with: normscale token.") from None
    return _without_twins(clients, shown)


def _client(line: str) -> Client:
    """The client of a line; ``ValueError`` says what is wrong with it."""
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
    return Client(**entry)


def _without_twins(clients: list[Client], shown: str) -> list[Client]:
    for field, what in (("name", "name"), ("sha256", "secret")):
        values = [getattr(client, field) for client in clients]
        twins = [client.name for client in clients if values.count(getattr(client, field)) > 1]
        if twins:
            raise FileFormatError(f"{shown}: two clients have one {what} ({', '.join(twins[:2])}). Remove one of them.")
    return clients
