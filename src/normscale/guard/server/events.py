"""Alarms, freezes and decisions as they happen: a line in the log, a counter, and a CloudEvent to another service.

Events are sent in binary mode: attributes in headers, and as the body JSON with a sentence, which is what chat services
show. Each is tried again, from a thread that nobody waits for.
"""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.error
import urllib.request
import uuid
from collections import Counter
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from normscale.encoding.json_text import read_json, write_json
from normscale.errors import InvalidInput
from normscale.guard.entries import Entry, Event
from normscale.guard.server.event_log import iso_time, tell
from normscale.guard.server.instruments import Instruments

_MOST_WAITING = 256
_SECONDS = 5.0
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Seconds before it is tried again."""
_DECISIONS = frozenset(
    event.value for event in (Event.THRESHOLD, Event.RESET, Event.ACCEPT, Event.DISCARD, Event.SWITCH)
)


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


class CloudEvent(NamedTuple):
    """One message, of CloudEvents 1.0."""

    event: str
    """The last part of its type."""
    source: str
    time: str
    data: dict[str, Any]
    id: str

    def headers(self) -> dict[str, str]:
        """Its attributes as they are sent."""
        attributes = {"specversion": "1.0", "id": self.id, "source": self.source, "time": self.time}
        attributes["type"] = f"normscale.guard.{self.event}"
        return {f"ce-{name}": value for name, value in attributes.items()} | {"Content-Type": "application/json"}


class _Waiting(NamedTuple):
    """A message that was not delivered yet."""

    message: CloudEvent
    tries: int = 0

    @property
    def is_urgent(self) -> bool:
        """A freeze, a thaw or a decision does not wait behind alarms."""
        return self.message.event != Event.ALARM


class Webhook:
    """Sends messages in order, urgent ones first, without a ``url`` none.

    A message that was not delivered is tried again after a pause, which an urgent one ends. When many wait, the oldest
    alarm is dropped. The log says what was dropped.
    """

    def __init__(self, url: str | None, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._url = url
        self._pauses = pauses
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._waiting: list[_Waiting] = []
        self._stopping = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        if url is not None:
            self._host = urlsplit(url).hostname  # the path may hold a secret
            self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
            self._thread.start()

    def send(self, message: CloudEvent) -> None:
        """Queue a message; returns at once."""
        if self._thread is None:
            return
        with self._changed:
            self._waiting.append(_Waiting(message))
            dropped = self._next(urgent=False) if len(self._waiting) > _MOST_WAITING else None
            if dropped is not None:
                self._waiting.remove(dropped)
            self._changed.notify()
        if dropped is not None:
            self._dropped(f"{_MOST_WAITING} others are waiting", dropped)

    def stop(self, seconds: float) -> None:
        """Give what waits one more chance, for a while."""
        if self._thread is None:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(seconds)
        with self._changed:
            left, self._waiting = self._waiting, []
        if left:
            self._dropped("the server stopped", *left)

    def _work(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if not self._waiting:
                    return
                chosen = self._next(urgent=True)
            trouble = self._post(chosen.message)
            gives_up = trouble is not None and (chosen.tries == len(self._pauses) or self._stopping)
            with self._changed:
                if chosen not in self._waiting:  # it was dropped meanwhile
                    continue
                place = self._waiting.index(chosen)
                if trouble is None or gives_up:
                    del self._waiting[place]
                else:
                    self._waiting[place] = chosen._replace(tries=chosen.tries + 1)
                failures = 0 if trouble is None or gives_up else failures + 1
                if failures:
                    pause = self._pauses[min(failures, len(self._pauses)) - 1]
                    self._changed.wait_for(self._must_go_on, pause)
            if gives_up:
                self._dropped(str(trouble), chosen)

    def _next(self, *, urgent: bool) -> _Waiting:
        """The first of those that are urgent, or are not; the first of all where there are none of them."""
        return next((one for one in self._waiting if one.is_urgent is urgent), self._waiting[0])

    def _must_go_on(self) -> bool:
        return self._stopping or any(one.is_urgent and not one.tries for one in self._waiting)

    def _post(self, message: CloudEvent) -> str | None:
        """Send it once; what went wrong."""
        assert self._url is not None
        headers = {**message.headers(), "User-Agent": "normscale"}
        request = urllib.request.Request(self._url, write_json(message.data).encode(), headers)
        try:
            with self._opener.open(request, timeout=_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            return f"status {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return type(error).__name__

    def _dropped(self, trouble: str, *lost: _Waiting) -> None:
        events = Counter(one.message.event for one in lost)
        for event, count in events.items():
            more = {"count": count} if count > 1 else {}
            tell("webhook", level=logging.ERROR, host=self._host, because=trouble, dropped=event, **more)


class Watcher:
    """Reports what this process writes of a guard; other workers report what they write themselves."""

    def __init__(self, name: str, instruments: Instruments, webhook: Webhook) -> None:
        self._name = name
        self._instruments = instruments
        self._webhook = webhook
        self._store_is_up = True

    def report(self, entry: Entry, *, of_shadow: bool = False) -> None:
        """Report an entry that is on disk; what a shadow does stands in the log alone."""
        if entry.event in (Event.ROWS, Event.QUARANTINE):
            return
        note = read_json(entry.note) if entry.note else {}
        if entry.event == Event.ALARM:
            for alarm in note["alarms"]:
                if not of_shadow:
                    self._instruments.alarms.labels(self._name, alarm["name"]).inc()
                reading = {"reading": alarm["name"], "value": alarm["value"], "limit": alarm["limit"]}
                self._send(entry, alarm["text"], of_shadow, **reading)
            return
        if entry.event == Event.COMPARED:
            tell("shadow", guard=self._name, **note)
        if entry.by or entry.event in _DECISIONS:
            tell("decision", guard=self._name, what=entry.event, by=entry.by, rows=entry.rows or None)
        if entry.event == Event.FREEZE and not of_shadow:
            self._instruments.freezes.labels(self._name).inc()
        if entry.event in (Event.FREEZE, Event.THAW):
            self._send(entry, note["because"], of_shadow, by_person=bool(entry.by))
        elif entry.event in _DECISIONS and not of_shadow:
            self._post(entry, f"by {entry.by or 'somebody'}", by=entry.by, rows=entry.rows, **note)

    def store_trouble(self, sentence: str | None) -> None:
        """Log when the store goes down, and when it is back."""
        if (sentence is None) == self._store_is_up:
            return
        self._store_is_up = sentence is None
        level = logging.INFO if sentence is None else logging.ERROR
        tell("store", level=level, guard=self._name, up=self._store_is_up, because=sentence)

    def _send(self, entry: Entry, text: str, of_shadow: bool, **fields: Any) -> None:
        event = entry.event
        level = logging.INFO if event == Event.THAW else logging.WARNING
        tell(event, level=level, guard=self._name, because=text, **fields, shadow=of_shadow or None)
        if not of_shadow:
            self._post(entry, text, **fields)

    def _post(self, entry: Entry, text: str, **fields: Any) -> None:
        data = {"guard": self._name, "text": f"{entry.event} of guard {self._name}: {text}", **fields}
        source, time = f"/v2/models/{self._name}", iso_time(entry.at)
        self._webhook.send(CloudEvent(str(entry.event), source, time, data, str(uuid.uuid4())))
