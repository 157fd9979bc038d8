"""Alarms and freezes as they happen: a line in the log, a counter, a message to the webhook; once for all workers."""

from __future__ import annotations

import logging
import os
from typing import Any

from normscale._lock import lock_file
from normscale.guard import Guard
from normscale.serve.event_log import tell
from normscale.serve.instruments import MULTIPROCESS, Instruments
from normscale.serve.webhook import Webhook


class Leadership:
    """One worker of a server speaks for all; another takes over when it has ended."""

    def __init__(self) -> None:
        """Nobody leads yet."""
        folder = os.environ.get(MULTIPROCESS)
        self._file = None if folder is None else os.open(os.path.join(folder, "leader"), os.O_RDWR | os.O_CREAT, 0o600)
        self._held = self._file is None

    def held(self) -> bool:
        """Whether it is this worker."""
        if not self._held and self._file is not None:
            try:
                lock_file(self._file, wait=False)
                self._held = True
            except BlockingIOError:
                pass
        return self._held


class Watcher:
    """Compares a guard's state with the one it saw last.

    Parameters
    ----------
    name : str
        Of the guard.
    guard : Guard
        What stands at the start is known, and not told.
    """

    def __init__(
        self, name: str, guard: Guard, leadership: Leadership, instruments: Instruments, webhook: Webhook
    ) -> None:
        self._name = name
        self._leadership = leadership
        self._instruments = instruments
        self._webhook = webhook
        self._state = guard.state
        self._store_is_up = True

    def look(self, guard: Guard) -> None:
        """Tell what is new; costs next to nothing when nothing is."""
        before, now = self._state, guard.state
        self._state = now
        if (before.alarms == now.alarms and before.frozen == now.frozen) or not self._leadership.held():
            return
        known = {(alarm.name, alarm.since) for alarm in before.alarms}
        for alarm in now.alarms:
            if (alarm.name, alarm.since) not in known:
                self._instruments.alarm(self._name, alarm.name)
                self._tell("alarm", alarm.text, reading=alarm.name, value=alarm.value, limit=alarm.limit)
        if now.frozen is not None and now.frozen != before.frozen:
            self._instruments.freeze(self._name)
            self._tell("freeze", now.frozen.because, by_person=now.frozen.by_person, rows=now.rows)
        elif now.frozen is None and before.frozen is not None:
            self._tell("thaw", "rows are taken in again", rows=now.rows)

    def store_trouble(self, sentence: str | None) -> None:
        """Tell when the store goes down, and when it is back."""
        if (sentence is None) == self._store_is_up or not self._leadership.held():
            return
        self._store_is_up = sentence is None
        level = logging.INFO if sentence is None else logging.ERROR
        tell("store", level=level, guard=self._name, up=self._store_is_up, because=sentence)

    def _tell(self, event: str, text: str, **fields: Any) -> None:
        level = logging.INFO if event == "thaw" else logging.WARNING
        tell(event, level=level, guard=self._name, because=text, **fields)
        label = f"guard {self._name}" if self._name else "the guard"
        self._webhook.send({"event": event, "guard": self._name, "text": f"{event} of {label}: {text}", **fields})
