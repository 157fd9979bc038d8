"""A real PostgreSQL server out of Debian's package, for as long as somebody needs one."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from contextlib import closing, suppress
from pathlib import Path
from typing import Self

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/local/pgsql/bin", "/opt/homebrew/opt/postgresql*/bin")


def programs() -> Path | None:
    """The folder of ``initdb`` and ``pg_ctl``; None when PostgreSQL is not installed."""
    found = [folder for place in _PLACES for folder in Path("/").glob(place[1:]) if (folder / "pg_ctl").exists()]
    if found:
        return max(found)
    on_path = shutil.which("pg_ctl")
    return Path(on_path).resolve().parent if on_path else None


class Postgres:
    """A server on the loopback with a folder of its own; every commit is flushed, as by default."""

    def __init__(self, bin_folder: Path) -> None:
        self._bin = bin_folder
        self._user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        self._folder = Path(tempfile.mkdtemp(prefix="normscale-postgres-"))
        if self._user is not None:
            shutil.chown(self._folder, self._user, self._user)
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = int(free.getsockname()[1])
        self._run("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username=guard")
        self.start()

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories= -c fsync=on"
        self._run("pg_ctl", "start", "--wait", "--silent", f"--log={self._folder / 'log'}", "--options", options)

    def kill(self) -> None:
        """As if the machine's power went: no checkpoint, connections cut."""
        self._run("pg_ctl", "stop", "--mode=immediate", "--silent")

    def new_database(self, name: str) -> str:
        """Make a database; its URL, with a password that must never be shown."""
        import psycopg

        with psycopg.connect(f"{self._url}/postgres", autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')
        return f"{self._url}/{name}"

    @property
    def _url(self) -> str:
        return f"postgresql://guard:not-to-be-shown@127.0.0.1:{self.port}"

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), f"--pgdata={self._folder / 'data'}", *arguments]
        # pg_ctl's server would keep a pipe open for ever, so what is said goes to a file.
        with (self._folder / "said").open("w+b") as said:
            if self._user is not None:
                os.fchmod(said.fileno(), 0o644)
            ended = subprocess.run(
                command, cwd=self._folder, stdout=said, stderr=said, user=self._user, timeout=120, check=False
            )
            said.seek(0)
            text = said.read().decode()
        if ended.returncode:
            raise RuntimeError(f"{program} as {self._user or getpass.getuser()}: {text}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(RuntimeError):  # it may be down already
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
