"""Start a server: bind, then one process or several."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from typing import NoReturn

import uvicorn
from uvicorn.supervisors import Multiprocess

from normscale.errors import InvalidInput
from normscale.serve.hosts import Hosts, checked_origin
from normscale.serve.instruments import MULTIPROCESS
from normscale.serve.protocol import GuardProtocol
from normscale.serve.settings import ENVIRONMENT, ServerSettings
from normscale.serve.tokens import load_tokens

_SHUTDOWN_SECONDS = 3


def check_addresses(settings: ServerSettings) -> None:
    """Refuse names and origins that no request could have, before anything is made."""
    Hosts(settings.host, settings.hosts)
    for origin in settings.origins:
        checked_origin(origin)


def bind(settings: ServerSettings) -> socket.socket:
    """Listen, on an address that strangers can reach only when they need a token."""
    tokens = load_tokens(settings.tokens)
    if not settings.is_loopback and not len(tokens):
        raise InvalidInput(
            f"{settings.host} can be reached from other machines, and without tokens anyone could send rows and change "
            "the guard. Make a token (normscale token NAME --role admin --file tokens.jsonl) and give --tokens "
            "tokens.jsonl, or stay on 127.0.0.1."
        )
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    if os.name == "posix":  # on Windows it would let two servers have one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise InvalidInput(
            f"cannot listen on {settings.host} port {settings.port} ({error.strerror}). Choose another --port; 0 takes "
            "one that is free."
        ) from error
    listener.set_inheritable(True)
    return listener


def serve(settings: ServerSettings, listener: socket.socket) -> None:
    """Serve until told to stop (SIGINT, SIGTERM); both are an orderly end."""
    os.environ[ENVIRONMENT] = settings.to_json()
    # uvicorn, having stopped in good order, raises the signal once more: without this it would end the process here.
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    if settings.workers == 1:
        uvicorn.Server(_configuration(settings)).run(sockets=[listener])
        return
    with tempfile.TemporaryDirectory(prefix="normscale-metrics-") as shared:
        os.environ[MULTIPROCESS] = shared  # before any worker counts anything
        Multiprocess(_configuration(settings), sockets=[listener]).run()


def _configuration(settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        "normscale.serve.app:app_from_environment",
        factory=True,
        http=GuardProtocol,  # by name: a class made here could not be sent to the workers
        loop="auto",  # uvloop where there is one: not on Windows
        ws="none",
        lifespan="on",
        proxy_headers=False,  # whoever connects could say it is someone else
        server_header=False,
        date_header=False,
        access_log=False,
        log_level="warning",
        workers=settings.workers,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )


def _leave(*_: object) -> NoReturn:
    sys.exit(0)
