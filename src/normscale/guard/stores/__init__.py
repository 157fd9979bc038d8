"""Where a guard's state and log are kept, by the scheme of an address; a file without one is SQLite's.

A package joins stores of its own by :func:`register_store`, in modules of the entry-point group ``normscale.stores``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points

from normscale.errors import InvalidInput
from normscale.guard.stores.postgres import PostgresStore
from normscale.guard.stores.sqlite import SqliteStore
from normscale.guard.stores.store import Entry, Event, Standing, Store, StoredStream, Transaction

__all__ = ["Entry", "Event", "Standing", "Store", "StoredStream", "Transaction", "open_store", "register_store"]

GROUP = "normscale.stores"
_openers: dict[str, Callable[[str], Store]] = {}


def register_store(scheme: str, opener: Callable[[str], Store]) -> None:
    """Make a kind of store known: ``opener`` opens the store of an address ``scheme://...``, or makes it."""
    if _openers.setdefault(scheme, opener) is not opener:
        raise InvalidInput(f"stores of {scheme}:// are there already ({_openers[scheme]!r}); choose another scheme.")


register_store("", SqliteStore)
for _scheme in ("postgresql", "postgres"):
    register_store(_scheme, PostgresStore)


def open_store(where: str | os.PathLike[str]) -> Store:
    """Open a file (SQLite), ``postgresql://...``, ``:memory:`` or an address of another scheme; make it if need be."""
    address = os.fspath(where)
    scheme = address.partition("://")[0] if "://" in address else ""
    if scheme not in _openers:
        for point in entry_points(group=GROUP):
            point.load()
    if scheme not in _openers:
        known = ", ".join(f"{one}://" for one in _openers if one)
        raise InvalidInput(f"a store is a file or an address of {known}; got {scheme}://...")
    return _openers[scheme](address)
