"""Tell another service of alarms: one POST of JSON each, tried again, from a thread that nobody waits for."""

from __future__ import annotations

import http.client
import json
import logging
import queue
import threading
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from normscale.errors import InvalidInput
from normscale.serve.event_log import tell

_MOST_WAITING = 256
_SECONDS = 5.0
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before it is tried again."""


def checked_webhook(url: str) -> str:
    """The address, or :class:`InvalidInput`."""
    parts = urlsplit(url)
    has_gaps = any(mark.isspace() or not mark.isprintable() for mark in url)
    if parts.scheme not in ("http", "https") or not parts.hostname or has_gaps:
        raise InvalidInput(f"a webhook is an address such as https://hooks.example.com/alarms; got {url[:80]!r}.")
    return url


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere the message would arrive as a GET without a body; so it counts as not delivered."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Sends messages in order, without a ``url`` none. When many wait, the newest is dropped, and the log says so."""

    def __init__(self, url: str | None, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._url = url
        self._pauses = pauses
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        if url is not None:
            self._host = urlsplit(url).hostname  # the path may hold a secret
            self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
            self._thread.start()

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message; returns at once."""
        if self._thread is None:
            return
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._dropped(message, f"{_MOST_WAITING} others are waiting")

    def stop(self, seconds: float) -> None:
        """Give what waits one more chance, for a while."""
        if self._thread is None:
            return
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(seconds)

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            trouble = self._post(message)
            for pause in self._pauses:
                if trouble is None or self._stopping.wait(pause):
                    break
                trouble = self._post(message)
            if trouble is not None:
                self._dropped(message, trouble)

    def _post(self, message: dict[str, Any]) -> str | None:
        """Send it once; what went wrong."""
        assert self._url is not None
        headers = {"Content-Type": "application/json", "User-Agent": "normscale"}
        request = urllib.request.Request(self._url, json.dumps(message).encode(), headers)
        try:
            with self._opener.open(request, timeout=_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            return f"status {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return type(error).__name__

    def _dropped(self, message: dict[str, Any], trouble: str) -> None:
        tell("webhook", level=logging.ERROR, host=self._host, because=trouble, dropped=message["event"])
