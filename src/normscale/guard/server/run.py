"""Start a server: bind, then one process or several."""

from __future__ import annotations

import ipaddress
import logging.config
import os
import signal
import socket
import sys
import tempfile
import time
from functools import partial
from typing import NoReturn

import uvicorn
from uvicorn.supervisors import Multiprocess

from normscale.errors import InvalidInput
from normscale.guard.server.app import worker_app
from normscale.guard.server.events import checked_webhook, log_config, tell
from normscale.guard.server.hosts import Hosts
from normscale.guard.server.instruments import MULTIPROCESS
from normscale.guard.server.protocol import GuardProtocol
from normscale.guard.server.settings import ServerSettings
from normscale.guard.server.tokens import Tokens

_SHUTDOWN_SECONDS = 3
_WORKER_SECONDS = 15  # for a worker to end, before it is killed; its rows are on disk
_HEALTH_SECONDS = 30  # for a worker to say that it lives: on a busy machine uvicorn's five are too few for its start
_OTHER_FILES = 256  # open files of a process besides its connections


def check_settings(settings: ServerSettings) -> None:
    """Refuse names and addresses that no request could have, before anything is made."""
    Hosts(settings.host, settings.hosts)
    for proxy in settings.proxies:
        try:
            ipaddress.ip_network(proxy)
        except ValueError as error:
            raise InvalidInput(f"a trusted proxy is an address or a network such as 10.0.0.0/8; {error}.") from None
    if settings.webhook is not None:
        checked_webhook(settings.webhook)
    if settings.workers > 1 and any(guard.store == ":memory:" for guard in settings.guards.values()):
        raise InvalidInput("a store in memory cannot be shared by several workers; give --store FILE.")
    without = [name for name, guard in settings.guards.items() if not len(Tokens(guard.tokens))]
    reached = settings.host if not settings.is_loopback else "a server behind --allow-host" if settings.hosts else ""
    if reached and without:
        raise InvalidInput(
            f"{reached} can be reached from other machines, and without tokens anyone could send rows and change "
            "the guard. Make a token (normscale token NAME --role admin --file tokens.jsonl) and give --tokens "
            "tokens.jsonl, or stay on 127.0.0.1."
        )


def bind(settings: ServerSettings) -> socket.socket:
    """Listen."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise InvalidInput(
            f"cannot listen: {error.strerror}. Choose another --port; 0 takes one that is free."
        ) from error
    listener.set_inheritable(True)
    return listener


def start_log(settings: ServerSettings) -> None:
    """From now on :func:`tell` writes lines of the chosen form."""
    logging.config.dictConfig(log_config(settings.log_format))


def serve(settings: ServerSettings, listener: socket.socket) -> None:
    """Serve until told to stop (SIGINT, SIGTERM); both are an orderly end."""
    start_log(settings)
    # uvicorn, having stopped in good order, raises the signal once more: without this it would end the process here.
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    if hasattr(signal, "SIGHUP"):  # not on Windows
        signal.signal(signal.SIGHUP, _stay)
    _allow_connections(settings.bounds.max_connections)
    tell("start", pid=os.getpid(), workers=settings.workers)
    try:
        if settings.workers == 1:
            uvicorn.Server(_configuration(settings)).run(sockets=[listener])
            return
        with tempfile.TemporaryDirectory(prefix="normscale-metrics-") as shared:
            os.environ[MULTIPROCESS] = shared  # before any worker counts anything
            Workers(_configuration(settings), sockets=[listener]).run()
    finally:
        tell("stop", pid=os.getpid())


class Workers(Multiprocess):
    """uvicorn's workers; a death is told, and none of them, hung or stopped, outlives the server."""

    def keep_subprocess_alive(self) -> None:
        before = list(self.processes)
        super().keep_subprocess_alive()
        for old, new in zip(before, self.processes, strict=False):
            if old is not new:
                tell("worker", level=logging.ERROR, died=old.pid, exit_code=old.exitcode, replaced_by=new.pid)

    def handle_hup(self) -> None:
        """Go on, where uvicorn would end its workers and start others."""
        _stay()

    def join_all(self) -> None:
        deadline = time.monotonic() + _WORKER_SECONDS
        for process in self.processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
            if process.process.is_alive():
                tell("worker", level=logging.ERROR, died=process.pid, because="it did not end when told to")
                process.process.kill()
                process.process.join()


def _configuration(settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        partial(worker_app, settings),  # like the next, sent to the workers: by name, and what it holds
        factory=True,
        http=GuardProtocol,
        loop="auto",  # uvloop where there is one: not on Windows
        ws="none",
        lifespan="on",
        proxy_headers=bool(settings.proxies),  # anyone else could say it is someone else
        forwarded_allow_ips=list(settings.proxies),
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=log_config(settings.log_format),
        workers=settings.workers,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        timeout_worker_healthcheck=_HEALTH_SECONDS,
    )


def _leave(*_: object) -> NoReturn:
    sys.exit(0)


def _stay(*_: object) -> None:
    """SIGHUP, by which others read their settings again or end with a terminal, ends nothing here."""
    because = "tokens are read again whenever their file changes; for all other settings restart the server"
    tell("hangup", pid=os.getpid(), because=because)


def _allow_connections(wanted: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted + _OTHER_FILES if hard == resource.RLIM_INFINITY else min(wanted + _OTHER_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
