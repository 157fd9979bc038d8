"""By which names a server may be addressed.

A page anywhere in the web can let its own name point to 127.0.0.1 and then talk to whatever listens there as if it
were its own server (DNS rebinding). The browser still says the page's name in the header Host, so a server that
answers to its own names only is safe. Bare addresses cannot be pointed elsewhere.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection

from normscale.errors import InvalidInput

SECURITY_HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
_HOST = re.compile(r"(\[[0-9a-f:.]{2,45}\]|[a-z0-9._-]{1,253})(?::\d{1,5})?")


class Hosts:
    """The names that are answered to: loopback, the address bound to, and those named; ``*`` stands for all.

    Where the server listens on all addresses, any bare address will do.
    """

    def __init__(self, bound: str, names: Collection[str] = ()) -> None:
        self._all = "*" in names
        self._any_address = bound in ("0.0.0.0", "::", "")
        own = ("localhost", "127.0.0.1", "[::1]", _written(bound))
        self._names = {*own, *(_checked(name) for name in names if name != "*")}

    def allow(self, host: bytes) -> bool:
        """Whether a request with this header Host is for this server."""
        match = _HOST.fullmatch(host.decode("latin-1").lower())
        name = match[1].rstrip(".") if match else ""
        return match is not None and (self._all or name in self._names or (self._any_address and _is_address(name)))


def _written(address: str) -> str:
    return f"[{address.lower()}]" if ":" in address and not address.startswith("[") else address.lower()


def _checked(name: str) -> str:
    written = _written(name).rstrip(".")
    match = _HOST.fullmatch(written)
    if match is None or match[1] != written or (written.startswith("[") and not _is_address(written)):
        raise InvalidInput(f"an allowed host must be a name or an address without port or scheme; got {name!r}.")
    return written


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
