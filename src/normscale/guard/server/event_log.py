"""What operators read: one line on stderr for every alarm, freeze, decision, refused request and death of a worker.

Lines go through Python's :mod:`logging`, so uvicorn's own (a traceback, say) have the same form. Nothing that a client
sent stands in them but what :func:`~normscale.guard.server.bad_request.shown` made harmless, and never a token.
"""

from __future__ import annotations

import json
import logging
import re
import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from normscale.encoding.json_text import number_for_json

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
    """Seconds since 1970 as a date and a time, to the millisecond.

    Examples
    --------
    >>> iso_time(0.25)
    '1970-01-01T00:00:00.250Z'
    """
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


class JsonLines(logging.Formatter):
    """A record as one JSON object: time, level, event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        return _SECRET.sub("[token]", json.dumps(self.document(record)))

    def document(self, record: logging.LogRecord) -> dict[str, Any]:
        """The fields of a line; uvicorn's own records are of the event ``server``."""
        moment = iso_time(record.created)
        fields = getattr(record, _FIELDS, None)
        event = {"event": "server", "message": record.getMessage()} if fields is None else {"event": record.msg}
        traceback = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return {"time": moment, "level": record.levelname.lower(), **event, **(fields or {}), **traceback}


class TextLines(JsonLines):
    """A record for people: time, event, and its fields as name=value; a traceback stands below."""

    def format(self, record: logging.LogRecord) -> str:
        document = self.document(record)
        moment, level, event = (document.pop(name) for name in ("time", "level", "event"))
        traceback = document.pop("traceback", None)
        if event == "server":
            said = f"{level} {document['message']}"
        else:
            said = " ".join([event, *(f"{name}={json.dumps(value)}" for name, value in document.items())])
        return _SECRET.sub("[token]", f"{moment} {said}" + ("" if traceback is None else f"\n{traceback}"))


def log_config(form: str) -> dict[str, Any]:
    """For :func:`logging.config.dictConfig` and uvicorn: everything to stderr, in one form."""
    formatter = JsonLines if form == "json" else TextLines
    handler = {"class": "logging.StreamHandler", "formatter": "lines", "stream": "ext://sys.stderr"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"lines": {"()": f"{__name__}.{formatter.__name__}"}},
        "handlers": {"lines": handler},
        "loggers": {
            _LOGGER.name: {"handlers": ["lines"], "level": "INFO", "propagate": False},
            "uvicorn": {"handlers": ["lines"], "level": "WARNING", "propagate": False},
        },
    }
