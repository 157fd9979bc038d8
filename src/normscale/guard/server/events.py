"""What operators hear of: one line on stderr for every alarm, freeze, decision, refusal and death of a worker.

Lines go through Python's :mod:`logging`, so uvicorn's own (a traceback, say) have the same form. Nothing that a client
sent stands in them but what :func:`~normscale.guard.server.request.shown` made harmless, and never a token.

Alarms, freezes and decisions are counted, too, and sent to another service as CloudEvents in binary mode: attributes in
headers, and as the body JSON with a sentence, which is what chat services show. Each is tried again, from a thread that
nobody waits for.
"""

from __future__ import annotations

import http.client
import itertools
import json
import logging
import re
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from queue import PriorityQueue
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from normscale.encoding.json_text import number_for_json, write_json
from normscale.errors import InvalidInput
from normscale.guard.stores import Entry, Event

if TYPE_CHECKING:
    from normscale.guard.server.instruments import Instruments

_LOGGER = logging.getLogger("normscale.guard.server")
_SECRET = re.compile(r"nsk_[\w-]*")
_FIELDS = "normscale"
_MOST_A_SECOND = 20


class LogFormat(StrEnum):
    """How a line of the log is written."""

    TEXT = "text"
    JSON = "json"


def tell(event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Write one line: what happened (docs/operating.md lists the events), and details that are not None or empty."""
    said = {
        name: number_for_json(value) if isinstance(value, float) else value
        for name, value in fields.items()
        if value is not None and value != ""
    }
    _LOGGER.log(level, event, extra={_FIELDS: said})


def iso_time(seconds: float) -> str:
    """Seconds since 1970 as a date and a time, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Refusals:
    """Logs refused requests, but no more than twenty a second: strangers must not fill a disk."""

    def __init__(self) -> None:
        self._second = self._logged = self._left_out = 0

    def log(self, **fields: Any) -> None:
        """Write a line, or count it for the next."""
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._logged = now, 0
        if self._logged >= _MOST_A_SECOND:
            self._left_out += 1
            return
        self._logged += 1
        tell("refused", level=logging.WARNING, **fields, untold_before=self._left_out or None)
        self._left_out = 0


class Lines(logging.Formatter):
    """A record as one JSON object, or for people: time, level, event, and its fields as name=value."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self._as_json = form == LogFormat.JSON

    def format(self, record: logging.LogRecord) -> str:
        """Write the fields of a line; uvicorn's own records are of the event ``server``."""
        fields = getattr(record, _FIELDS, None)
        event = "server" if fields is None else str(record.msg)
        said = {"message": record.getMessage()} if fields is None else fields
        moment, level = iso_time(record.created), record.levelname.lower()
        traceback = self.formatException(record.exc_info) if record.exc_info else ""
        if self._as_json:
            more = {"traceback": traceback} if traceback else {}
            line = json.dumps({"time": moment, "level": level, "event": event, **said, **more})
        else:
            shown = [level, said["message"]] if fields is None else [event]
            shown += [f"{name}={json.dumps(value)}" for name, value in (fields or {}).items()]
            line = " ".join([moment, *shown]) + ("\n" + traceback if traceback else "")
        return _SECRET.sub("[token]", line)


def log_config(form: str) -> dict[str, Any]:
    """For :func:`logging.config.dictConfig` and uvicorn: everything to stderr, in one form."""
    lines = {"handlers": ["lines"], "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": f"{__name__}.{Lines.__name__}", "form": form}},
        "handlers": {"lines": {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"}},
        "loggers": {_LOGGER.name: {**lines, "level": "INFO"}, "uvicorn": {**lines, "level": "WARNING"}},
    }


_MOST_WAITING = 256
_SECONDS = 5.0
_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before it is tried again
_SILENT = (Event.ROWS, Event.KEPT_OUT, Event.CALM)


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
    """One message, of CloudEvents 1.0; attributes that are the same in all of them are left out."""

    type: str
    source: str
    time: str
    data: dict[str, Any]
    id: str


class Webhook:
    """Sends messages in order, urgent ones first, without a ``url`` none.

    A message that was not delivered is tried again after a pause, which an urgent one ends. When many wait, further
    alarms are dropped. The log says what was dropped.
    """

    def __init__(self, url: str | None, pauses: tuple[float, ...] = _PAUSES) -> None:
        self._url = url
        self._pauses = pauses
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._waiting: PriorityQueue[tuple[int, int, int, CloudEvent | None]] = PriorityQueue()
        self._numbers = itertools.count()
        self._current: list[CloudEvent] = []
        self._hurry = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="webhook", daemon=True)
        if url is not None:
            self._thread.start()

    def send(self, message: CloudEvent) -> None:
        """Queue a message; returns at once."""
        if self._url is None:
            return
        can_wait = message.type == Event.ALARM  # a freeze, a thaw or a decision does not wait behind alarms
        if can_wait and self._waiting.qsize() >= _MOST_WAITING:
            self._dropped(f"{_MOST_WAITING} others are waiting", message)
            return
        self._waiting.put((can_wait, next(self._numbers), 0, message))
        if not can_wait:
            self._hurry.set()

    def stop(self, seconds: float) -> None:
        """Give what waits one more chance, for a while."""
        if self._url is None:
            return
        self._stopping = True
        self._waiting.put((2, next(self._numbers), 0, None))  # behind all others
        self._hurry.set()
        self._thread.join(seconds)
        left, self._waiting = self._current + [one[3] for one in self._waiting.queue if one[3]], PriorityQueue()
        self._dropped("the server stopped", *left)

    def _work(self) -> None:
        while True:
            rank, number, tries, message = self._waiting.get()
            if message is None:
                return
            self._current = [message]
            self._hurry.clear()
            trouble = self._post(message)
            if trouble is not None and tries < len(self._pauses) and not self._stopping:
                self._waiting.put((rank, number, tries + 1, message))
                self._hurry.wait(self._pauses[tries])
            elif trouble is not None:
                self._dropped(trouble, message)
            self._current = []

    def _post(self, message: CloudEvent) -> str | None:
        assert self._url is not None
        headers = {"ce-specversion": "1.0", "ce-type": f"normscale.guard.{message.type}", "ce-id": message.id}
        headers |= {"ce-source": message.source, "ce-time": message.time}
        headers |= {"Content-Type": "application/json", "User-Agent": "normscale"}
        request = urllib.request.Request(self._url, write_json(message.data).encode(), headers)
        try:
            with self._opener.open(request, timeout=_SECONDS):
                return None
        except urllib.error.HTTPError as error:
            return f"status {error.code}"
        except (OSError, ValueError, http.client.HTTPException) as error:
            return type(error).__name__

    def _dropped(self, trouble: str, *lost: CloudEvent) -> None:
        host = urlsplit(self._url or "").hostname  # the path may hold a secret
        for event, count in Counter(one.type for one in lost).items():
            more = {"count": count} if count > 1 else {}
            tell("webhook", level=logging.ERROR, host=host, because=trouble, dropped=event, **more)


class Watcher:
    """Reports what this process writes of a guard; other workers report what they write themselves."""

    def __init__(self, name: str, instruments: Instruments, webhook: Webhook) -> None:
        self._name = name
        self._instruments = instruments
        self._webhook = webhook
        self._store_is_up = True

    def report(self, _: list[Entry], own: list[Entry]) -> None:
        """Report entries that are on disk: log, counters and webhook get the same text and fields."""
        for entry in own:
            self._instruments.happened(self._name, entry)
            event, source = str(entry.event), f"/v2/models/{self._name}"
            for text, fields in _messages(entry):
                level = logging.WARNING if event in (Event.ALARM, Event.FREEZE) else logging.INFO
                tell(event, level=level, guard=self._name, because=text, **fields)
                data = {"guard": self._name, "text": f"{event} of guard {self._name}: {text}", **fields}
                self._webhook.send(CloudEvent(event, source, iso_time(entry.at), data, str(uuid.uuid4())))

    def store_trouble(self, sentence: str | None) -> None:
        """Log when the store goes down, and when it is back."""
        if (sentence is None) == self._store_is_up:
            return
        self._store_is_up = sentence is None
        level = logging.INFO if sentence is None else logging.ERROR
        tell("store", level=level, guard=self._name, up=self._store_is_up, because=sentence)


def _messages(entry: Entry) -> Iterator[tuple[str, dict[str, Any]]]:
    note = entry.details
    if entry.event == Event.ALARM:
        for alarm in note["alarms"]:
            about = {"reading": alarm["name"], "value": alarm["value"], "limit": alarm["limit"]}
            yield alarm["text"], {**about, **_source(entry)}
    elif entry.event not in _SILENT:
        who = {"by": entry.by, "by_person": bool(entry.by), "rows": entry.rows}
        yield note.pop("because", f"by {entry.by or 'the command line'}"), {**who, **note, **_source(entry)}


def _source(entry: Entry) -> dict[str, str]:
    """Whose stream it is about, where every client has one."""
    return {"source": entry.client} if entry.client else {}
