"""How much a client may ask for: the one place where these defaults stand."""

from __future__ import annotations

from typing import NamedTuple


class Bounds(NamedTuple):
    """Bounds of one worker; the command line sets the first four."""

    max_body: int = 16 << 20
    """Bytes of a body."""
    max_rows: int = 100_000
    """Rows in one request."""
    max_requests: int = 256
    """Requests at once; health, metrics and the page are not counted."""
    max_seconds: float = 30.0
    """For a body to arrive, and again for its answer; the answer of a live stream may last."""
    max_bodies: int = 128 << 20
    """Bytes of all bodies that are arriving or being answered."""
    max_live: int = 32
    """Live streams at once."""
    max_head: int = 16 << 10
    """Bytes of a request's head."""
    head_seconds: float = 10.0
    """For a head to arrive."""
    max_connections: int = 1024
    """Open connections."""
