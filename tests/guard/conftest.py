"""No test of a guard can hang: a step that takes five minutes is interrupted and fails, wherever it waits."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

LONGEST = 300  # seconds for a test, and for making or ending what it needs


@contextmanager
def interrupted_when_late(step: str) -> Iterator[None]:
    def late(_: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{step} took more than {LONGEST} seconds")

    if not hasattr(signal, "SIGALRM"):  # Windows
        yield
        return
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    with interrupted_when_late(f"the setup of {item.name}"):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with interrupted_when_late(item.name):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    with interrupted_when_late(f"the end of {item.name}"):
        return (yield)
