"""Bars on standard error, and only where that is a terminal.

There is one display. A bar begun while another is open becomes a further line of it, so that a long piece of work can
show how far it is as a whole above what it is doing now.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS = 2.0
"""Work that takes no longer needs no bar."""


class _Display:
    """The open bars of this process."""

    lock: ClassVar[threading.Lock] = threading.Lock()
    progress: ClassVar[Progress | None] = None
    silent: ClassVar[bool] = False

    @classmethod
    def add(cls, doing: str, total: float | None, unit: str) -> tuple[Progress, TaskID]:
        with cls.lock:
            if cls.progress is None:
                cls.progress = _new_display()
                cls.progress.start()
            return cls.progress, cls.progress.add_task(doing, total=total, counted=unit)

    @classmethod
    def remove(cls, progress: Progress, task: TaskID) -> None:
        with cls.lock:
            progress.remove_task(task)
            if not progress.tasks:
                progress.stop()
                cls.progress = None


class Bar:
    """One line of the display; where there is no terminal, every call does nothing."""

    def __init__(self, doing: str, total: float | None, unit: str, quiet_seconds: float) -> None:
        """Nothing is shown before ``quiet_seconds`` have passed."""
        self._doing, self._total, self._unit, self._done = doing, total, unit, 0.0
        self._show_at = time.monotonic() + quiet_seconds
        self._wanted = sys.stderr.isatty() and not _Display.silent
        self._shown: tuple[Progress, TaskID] | None = None
        self._update()

    def advance(self, amount: float = 1.0, doing: str | None = None) -> None:
        """Say how much more has been done (less, if negative) and, if it changed, what is being done."""
        self.at(self._done + amount, doing)

    def at(self, done: float, doing: str | None = None) -> None:
        """Say how much has been done in all."""
        self._done = done
        self._doing = doing or self._doing
        self._update()

    def total(self, total: float) -> None:
        """Say how much there is to do, where that is known only later."""
        self._total = total
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, total=total)

    def _update(self) -> None:
        if not self._wanted:
            return
        if self._shown is None and time.monotonic() >= self._show_at:
            self._shown = _Display.add(self._doing, self._total, self._unit)
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=self._done, description=self._doing)

    def close(self) -> None:
        """Take the line away."""
        if self._shown is not None:
            _Display.remove(*self._shown)
            self._shown = None


@contextmanager
def bar(
    doing: str, total: float | None, *, unit: str = "count", quiet_seconds: float = 0.0, wanted: bool = True
) -> Iterator[Bar]:
    """Show a bar with the time left while the body runs.

    Parameters
    ----------
    doing : str
        What is being done, in a few words.
    total : float, optional
        How much there is to do; None if that is not known.
    unit : "count", "bytes" or "share"
        What is shown beside the bar: done of total, bytes and their speed, or a percentage.
    quiet_seconds : float
        Show nothing before this time has passed.
    wanted : bool
        False shows nothing at all.

    Examples
    --------
    >>> with bar("counting", 3) as counting:
    ...     for _ in range(3):
    ...         counting.advance()
    """
    line = Bar(doing, total, unit, quiet_seconds if wanted else float("inf"))
    try:
        yield line
    finally:
        line.close()


def silence() -> None:
    """Show no bar in this process: it works for another, which shows one."""
    _Display.silent = True


def _new_display() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.text import Text

    class Counts(ProgressColumn):
        """How much is done, in the unit of each line."""

        columns: ClassVar[dict[str, tuple[Any, ...]]] = {
            "count": (MofNCompleteColumn(),),
            "bytes": (DownloadColumn(), TransferSpeedColumn()),
            "share": (TaskProgressColumn(),),
        }

        def render(self, task: Any) -> Text:
            return Text(" ").join(Text.from_markup(str(c.render(task))) for c in self.columns[task.fields["counted"]])

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        Counts(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
