"""Bars: one display for all of them, nothing where there is no terminal, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from normscale._progress import bar

if sys.platform == "win32":
    pytest.skip("pseudo-terminals", allow_module_level=True)

NESTED = """
import time
from normscale._progress import bar
with bar("whole work", 2, unit="share") as whole:
    for part in ("first", "second"):
        with bar(part, 1000, unit="bytes") as line:
            for _ in range(4):
                line.advance(250)
                time.sleep(0.06)
            time.sleep(0.5)  # the display is drawn ten times a second, later on a busy machine
        whole.advance(doing="nearly done" if part == "second" else None)
        time.sleep(0.15)
"""


def on_terminal(code: str) -> str:
    """What a program shows on a terminal of 120 columns."""
    import pty

    reading, writing = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "-c", code], stderr=writing, stdout=writing, env=environment)
    os.close(writing)
    shown = b""
    while True:
        try:
            block = os.read(reading, 65536)
        except OSError:  # Linux says so when the other side has closed
            break
        if not block:
            break
        shown += block
    os.close(reading)
    assert process.wait(60) == 0, shown.decode()
    return shown.decode()


def test_a_bar_within_a_bar_is_a_line_of_the_same_display() -> None:
    shown = on_terminal(NESTED)
    assert "whole work" in shown
    assert "first" in shown
    assert "second" in shown
    assert "nearly done" in shown
    assert "1.0/1.0 kB" in shown
    assert "50%" in shown
    assert "100%" in shown
    assert "left" in shown


def test_quick_work_shows_nothing() -> None:
    shown = on_terminal("from normscale._progress import bar\nwith bar('quick', 1, quiet_seconds=60) as b: b.advance()")
    assert "quick" not in shown
    assert "unwanted" not in on_terminal("from normscale._progress import bar\nwith bar('unwanted', 1, wanted=0): 1")


def test_without_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with bar("silent", 2) as line:
        line.advance(2)
    assert capfd.readouterr() == ("", "")


def test_an_error_takes_the_display_away() -> None:
    code = (
        "from normscale._progress import _Display, bar\n"
        "try:\n    with bar('a', 1), bar('b', 1): raise ValueError\nexcept ValueError: print('now', _Display.progress)"
    )
    assert "now None" in on_terminal(code)
