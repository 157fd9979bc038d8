"""A guard's store in PostgreSQL: for replicas on several machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn
from urllib.parse import urlsplit

from normscale.errors import StoreUnavailable, needs
from normscale.guard.stores.store import Store

_LOCK = 0x6E6F726D7363616C  # "normscal": the advisory lock that guards of one database queue at
_LONGEST_PAUSE = 30  # seconds between two statements of a transaction
_PATIENCE = 10


class PostgresStore(Store):
    """A database by its URL; a connection that breaks is opened again for the next transaction."""

    byte_type = "BYTEA"

    def __init__(self, url: str) -> None:
        with needs("a postgresql:// store needs psycopg", "postgres"):
            import psycopg
        self._psycopg = psycopg
        self._url = url
        parts = urlsplit(url)
        self.name = f"postgresql://{parts.hostname or 'localhost'}{parts.path}"  # never the password
        self._connection: Any = None
        self.create()

    def begin(self) -> None:
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._psycopg.connect(self._url, autocommit=True, connect_timeout=5)
                # An acknowledged row is on disk, whatever the server's default is.
                self._connection.execute("SET synchronous_commit = on")
                # Who vanishes within a transaction must not keep the lock from the others until TCP gives up.
                self._connection.execute(f"SET idle_in_transaction_session_timeout = '{_LONGEST_PAUSE}s'")
                self._connection.execute(f"SET lock_timeout = '{_PATIENCE}s'")
            # Each statement must see what others committed while this one waited for the lock, whatever the default is.
            self._connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        except self._psycopg.Error as error:
            self.rollback()
            self._explain(error)

    def commit(self) -> None:
        """Return once the server has it on disk.

        When the connection breaks here, nobody knows whether it was committed; the next transaction reads the state
        and sees. A client that sent an Idempotency-Key may safely send the rows again.
        """
        try:
            self._connection.execute("COMMIT")
        except self._psycopg.Error as error:
            self._drop()
            self._explain(error, unknown=True)

    def rollback(self) -> None:
        if self._connection is None:
            return
        try:
            self._connection.execute("ROLLBACK")
        except self._psycopg.Error:
            self._drop()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        try:
            cursor = self._connection.execute(statement.replace("?", "%s"), tuple(values))
            return list(cursor.fetchall()) if cursor.description else []
        except self._psycopg.Error as error:
            self._explain(error)

    def close(self) -> None:
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _explain(self, error: Exception, *, unknown: bool = False) -> NoReturn:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        outcome = (
            "whether the rows were taken in is not known. Send them again with the same Idempotency-Key."
            if unknown
            else "nothing was taken in. Send the rows again."
        )
        full = getattr(error, "sqlstate", None) == "53100"
        raise StoreUnavailable(f"{self.name} could not be written ({text}); {outcome}", full=full) from error
