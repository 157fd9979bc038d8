"""Tests that share what was trained or drawn run in one process, so that it is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOGETHER = {
    "report/test_browser.py": "written report",
    "report/test_paired_differences.py": "finished run",
    "report/test_tables.py": "finished run",
    "report/test_writing.py": "written report",
}
"""Modules that share more than their own fixtures, and the name of their group."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests of a module."""
    for item in items:
        if item.path.is_relative_to(HERE):
            place = item.path.relative_to(HERE).as_posix()
            item.add_marker(pytest.mark.xdist_group(TOGETHER.get(place, place)))
