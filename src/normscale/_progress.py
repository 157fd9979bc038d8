"""Bars on standard error, and only where that is a terminal.

There is one display. A bar begun while another is open becomes a further line of it.
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
        self._done, self._doing = done, doing or self._doing
        self._update()

    def total(self, total: float) -> None:
        """Say how much there is to do, where that is known only later."""
        self._total = total
        self._update()

    def _update(self) -> None:
        if self._wanted and self._shown is None and time.monotonic() >= self._show_at:
            with _Display.lock:
                if _Display.progress is None:
                    _Display.progress = _new_display()
                    _Display.progress.start()
                self._shown = _Display.progress, _Display.progress.add_task(self._doing, counted=self._unit)
        if self._shown is not None:
            progress, task = self._shown
            progress.update(task, completed=self._done, total=self._total, description=self._doing)

    def close(self) -> None:
        """Take the line away."""
        if self._shown is not None:
            progress, task = self._shown
            with _Display.lock:
                progress.remove_task(task)
                if not progress.tasks:
                    progress.stop()
                    _Display.progress = None
            self._shown = None


@contextmanager
def bar(
    doing: str, total: float | None, *, unit: str = "count", quiet_seconds: float = 0.0, wanted: bool = True
) -> Iterator[Bar]:
    """Show a bar with the time left while the body runs, unless it is not ``wanted``.

    ``unit`` is what is shown beside the bar: "count" (done of total), "bytes" (and their speed) or "share" (per cent).
    Nothing is shown before ``quiet_seconds`` have passed.
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
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Counts(progress.ProgressColumn):
        """How much is done, in the unit of each line."""

        columns: ClassVar[dict[str, tuple[Any, ...]]] = {
            "count": (progress.MofNCompleteColumn(),),
            "bytes": (progress.DownloadColumn(), progress.TransferSpeedColumn()),
            "share": (progress.TaskProgressColumn(),),
        }

        def render(self, task: Any) -> Text:
            return Text(" ").join(Text.from_markup(str(c.render(task))) for c in self.columns[task.fields["counted"]])

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(bar_width=24),
        Counts(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
