"""Which tests are slow: they start servers, browsers, Ray, other programs or trainings, or take seconds each.

``pytest -m "not slow"`` leaves them out and answers a contributor soon; ``make test`` runs everything.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent

SLOW = (
    "bench/data/test_batches.py::test_the_same_in_another_process",
    "bench/experiments",
    "bench/paper/test_audit_outputs.py",
    "bench/report",
    "bench/train",
    "cli",
    "detectors/test_registry.py",
    "export",
    "extraction",
    "guard/server",
    "guard/test_guard.py::test_a_guard_fitted_by_other_kernels_is_the_same_guard",
    "guard/test_guard_attacks.py",
    "guard/test_guard_outputs.py::test_kernels_of_either_kind_read_the_writers_bits",
    "guard/test_watch.py",
    "jobs",
    "rows/test_pipe.py",
    "test_docs.py::test_examples_run",
    "test_docs.py::test_the_joint_report_is_of_the_recorded_runs",
    "test_docs.py::test_the_tables_of_the_pages_are_what_was_measured",
    "test_lock.py",
    "test_notebooks.py",
    "test_other_systems.py",
    "test_processes.py",
    "test_site.py",
    "test_sklearn.py::test_it_is_an_estimator",
    "third_party",
)
"""Folders, files and tests under tests/."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import slow modules where nothing of them will run."""
    return True if config.option.markexpr == "not slow" and _is_slow(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow by its place."""
    for item in items:
        if _is_slow(item.path, getattr(item, "originalname", item.name)):
            item.add_marker(pytest.mark.slow)


def _is_slow(path: Path, test: str = "") -> bool:
    place = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    return any(f"{place}::{test}" == slow or place == slow or place.startswith(f"{slow}/") for slow in SLOW)
