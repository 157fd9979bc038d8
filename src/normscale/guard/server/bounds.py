"""How much clients may ask for, and the shares of it that each of them has."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from normscale.guard.server.request import BadRequest


class Bounds(NamedTuple):
    """Bounds of one worker; the command line sets the first four."""

    max_body: int = 16 << 20
    max_rows: int = 100_000
    max_requests: int = 256
    """Requests with rows at once; one client has half of them at most."""
    max_seconds: float = 30.0
    """For a body to arrive, and again for its answer; the answer of a live stream may last."""
    max_bodies: int = 128 << 20
    """Bytes of all rows that are arriving or being answered; one client has half of them at most."""
    max_controls: int = 32
    """Other requests that need a token at once, such as a freeze, health and metrics aside; of one client half ..."""
    max_control_body: int = 1 << 16
    """... and the bytes of their bodies."""
    max_live: int = 32
    """Live streams at once; of one client half."""
    max_head: int = 16 << 10
    head_seconds: float = 10.0
    max_connections: int = 1024
    """Open connections; beyond, idle ones and those of strangers are closed first."""


class Shares:
    """So much for all clients, and half of it for any one of them: one token cannot keep all others out."""

    def __init__(self, most: int, full: str) -> None:
        self._most = most
        self._full = full
        self._by_client: Counter[str] = Counter()
        self.taken = 0

    def take(self, client: str, amount: int = 1) -> None:
        """Take a share, or raise :class:`BadRequest` 503."""
        if self.taken + amount > self._most or self._by_client[client] + amount > (self._most + 1) // 2:
            raise BadRequest(503, f"{self._full}. Try again in a second.")
        self.taken += amount
        self._by_client[client] += amount

    def give_back(self, client: str, amount: int = 1) -> None:
        """Give a share back."""
        self.taken -= amount
        self._by_client[client] -= amount
        if not self._by_client[client]:
            del self._by_client[client]
