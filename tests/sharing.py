"""Which tests run in one process with ``--dist loadgroup``, so that what they share is made once.

xdist's own marker ``xdist_group`` has no effect with pytest 9.2, whose node ids cannot be changed.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest

TOGETHER = {
    "tests/bench/report/test_browser.py": "a written report",
    "tests/bench/report/test_writing.py": "a written report",
    "tests/bench/report/test_paired_differences.py": "a finished run",
    "tests/bench/report/test_tables.py": "a finished run",
    "tests/jobs": "a Ray cluster",
}
"""Modules and folders whose tests share something, and what."""
BY_MODULE = ("tests/bench", "tests/test_site.py")
"""Where the tests of every other module share its own fixtures."""


def group_of(test: str) -> str:
    """What a test shares with others; its own id if it shares nothing."""
    module = PurePosixPath(test.partition("::")[0])
    places = [str(place) for place in (module, *module.parents)]
    shared = next((TOGETHER[place] for place in places if place in TOGETHER), "")
    return shared or (str(module) if any(place in BY_MODULE for place in places) else test)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand tests out by group."""
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return ByGroup(config, log)
