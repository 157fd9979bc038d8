from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from normscale import metrics

MODULES = [f"normscale.metrics.{module.name}" for module in pkgutil.iter_modules(metrics.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_is_documented_with_an_example_if_it_is_a_function() -> None:
    for name in metrics.__all__:
        member = getattr(metrics, name)
        assert member.__doc__, name
        if callable(member) and not isinstance(member, type):
            assert ">>>" in member.__doc__, name


def test_importing_the_metrics_loads_nothing_heavy() -> None:
    code = (
        "import numpy, sys; before = set(sys.modules); import normscale.metrics; "
        "print(*{'fractions', 'decimal', 'statistics', 'scipy', 'torch', 'numba'} "
        "& (set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.strip() == ""
