"""Alarms and freezes as they happen: a line in the log, a counter, a message to the webhook."""

from __future__ import annotations

import logging
from typing import Any

from normscale.encoding.json_text import read_json
from normscale.guard.entries import Entry, Event
from normscale.serve.event_log import tell
from normscale.serve.instruments import Instruments
from normscale.serve.webhook import Webhook

_DECISIONS = frozenset(
    event.value for event in (Event.THRESHOLD, Event.RESET, Event.ACCEPT, Event.DISCARD, Event.SWITCH)
)


class Watcher:
    """Listens to what one process writes of a guard; other workers tell of what they write themselves."""

    def __init__(self, name: str, instruments: Instruments, webhook: Webhook) -> None:
        self._name = name
        self._instruments = instruments
        self._webhook = webhook
        self._store_is_up = True

    def hear(self, entry: Entry, *, of_shadow: bool = False) -> None:
        """Tell of an entry that is on disk; what a shadow does is told in the log alone."""
        if entry.event in (Event.ROWS, Event.QUARANTINE):
            return
        note = read_json(entry.note) if entry.note else {}
        if entry.event == Event.ALARM:
            for alarm in note["alarms"]:
                if not of_shadow:
                    self._instruments.alarms.labels(self._name, alarm["name"]).inc()
                reading = {"reading": alarm["name"], "value": alarm["value"], "limit": alarm["limit"]}
                self._tell("alarm", alarm["text"], of_shadow, **reading)
            return
        if entry.event == Event.COMPARED:
            tell("shadow", guard=self._name, **note)
        if entry.by or entry.event in _DECISIONS:
            tell("decision", guard=self._name, what=entry.event, by=entry.by, rows=entry.rows or None)
        if entry.event == Event.FREEZE and not of_shadow:
            self._instruments.freezes.labels(self._name).inc()
        if entry.event in (Event.FREEZE, Event.THAW):
            self._tell(entry.event, note["because"], of_shadow, by_person=bool(entry.by))

    def store_trouble(self, sentence: str | None) -> None:
        """Tell when the store goes down, and when it is back."""
        if (sentence is None) == self._store_is_up:
            return
        self._store_is_up = sentence is None
        level = logging.INFO if sentence is None else logging.ERROR
        tell("store", level=level, guard=self._name, up=self._store_is_up, because=sentence)

    def _tell(self, event: str, text: str, of_shadow: bool, **fields: Any) -> None:
        level = logging.INFO if event == Event.THAW else logging.WARNING
        tell(event, level=level, guard=self._name, because=text, **fields, shadow=of_shadow or None)
        if of_shadow:
            return
        label = f"guard {self._name}" if self._name else "the guard"
        self._webhook.send({"event": event, "guard": self._name, "text": f"{event} of {label}: {text}", **fields})
