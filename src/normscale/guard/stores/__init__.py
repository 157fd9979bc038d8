"""Where a guard's state and log are kept: an SQLite file, or PostgreSQL by its URL."""

from __future__ import annotations

import os

from normscale.errors import InvalidInput
from normscale.guard.stores.sql import Quarantined, SqlStore, StateHead, Transaction

__all__ = ["Quarantined", "SqlStore", "StateHead", "Transaction", "open_store"]


def open_store(where: str | os.PathLike[str]) -> SqlStore:
    """Open a store, and make it if it is not there.

    Parameters
    ----------
    where : a file (SQLite), ``postgresql://...``, or ``:memory:`` (gone with the process)
    """
    name = os.fspath(where)
    if name.startswith(("postgresql://", "postgres://")):
        from normscale.guard.stores.postgres import PostgresStore

        return PostgresStore(name)
    if "://" in name:
        scheme = name.split("://", 1)[0]
        raise InvalidInput(f"a store is a file or a postgresql:// address; got {scheme}://...")
    from normscale.guard.stores.sqlite import SqliteStore

    return SqliteStore(name)
