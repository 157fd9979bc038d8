"""What operators read: one line on stderr for every alarm, freeze, decision, refused request and death of a worker.

Lines go through Python's :mod:`logging`, so uvicorn's own (a traceback, say) have the same form. Nothing that a client
sent stands in them but what :func:`~normscale.guard.server.request.shown` made harmless, and never a token.
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
