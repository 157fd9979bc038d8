"""Tests that need a package of an extra are skipped with a sentence where it is not installed; numpy alone is enough.

A test module of a folder below is not imported without the packages of its folder; a test that needs one by itself
calls :func:`need`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent

EXTRAS = {
    "numba": "fast",
    "pyarrow": "arrow",
    "torch": "torch",
    "PIL": "torch",
    "torchvision": "data",
    "lmdb": "data",
    "transformers": "networks",
    "timm": "networks",
    "jinja2": "report",
    "matplotlib": "report",
    "uvicorn": "serve",
    "msgspec": "serve",
    "prometheus_client": "serve",
    "httptools": "serve",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "ray": "ray",
}
"""A package, and the extra that holds it; other packages are for development."""

SERVER = ("uvicorn", "httptools", "msgspec", "prometheus_client", "httpx")

NEEDED: dict[str, tuple[str, ...]] = {
    "bench/data": ("torch", "PIL"),
    "bench/data/test_published_sets.py": ("torch", "PIL", "torchvision", "scipy"),
    **{f"bench/report/test_{name}.py": ("jinja2", "matplotlib") for name in ("leaderboard", "own_outputs", "writing")},
    **{f"bench/report/test_{name}.py": ("jinja2", "matplotlib") for name in ("several_runs", "tables", "browser")},
    "bench/report/test_figures.py": ("matplotlib",),
    "bench/report/test_stress_map.py": ("matplotlib",),
    "bench/train": ("torch",),
    "export/onnx_graphs": ("onnx", "onnxruntime"),
    "export/torch_modules": ("torch",),
    "extraction": ("torch",),
    "guard/server": SERVER,
    "jobs": ("pyarrow", "PIL", "numba"),
    "test_site.py": ("sphinx", "myst_parser", "furo"),
}
"""A folder or file under tests/, and the packages that its modules cannot do without; a file goes before its folder."""

PAGES: dict[str, tuple[str, ...]] = {
    "export.md": ("onnx", "onnxruntime", "torch"),
    "foreign-classifier.md": ("onnx", "onnxruntime"),
    "own-network.md": ("torch", "PIL", "matplotlib"),
    "scale.md": ("pyarrow",),
    "training.md": ("torch", "PIL"),
    "tutorial.md": ("torch", "onnx", "onnxruntime"),
}
"""Pages of the documentation whose examples need more than numpy."""

MODULES: dict[str, tuple[str, ...]] = {
    "normscale._kernels.compiled": ("numba",),
    "normscale._kernels.mixture_compiled": ("numba",),
    "normscale._kernels.vector_math": ("numba",),
    "normscale.bench.data.batches": ("torch",),
    "normscale.bench.train": ("torch",),
    "normscale.export.torch": ("torch",),
    "normscale.extraction": ("torch",),
    "normscale.export.onnx.attaching": ("onnx",),
    "normscale.bench.report.figures": ("matplotlib",),
    "normscale.bench.report.rendering": ("jinja2",),
    "normscale.bench.report.gallery": ("matplotlib",),
    "normscale.bench.report.stress_map": ("matplotlib",),
    "normscale.guard.server": ("uvicorn", "httptools", "msgspec", "prometheus_client"),
}
"""Modules of the package, with those below them, that cannot be imported (or shown by example) with numpy alone."""


def packages_of_module(name: str) -> tuple[str, ...]:
    """What a module of normscale needs."""
    parts = name.split(".")
    return next((MODULES[up] for n in range(len(parts), 0, -1) if (up := ".".join(parts[:n])) in MODULES), ())


def missing(packages: Iterable[str]) -> str | None:
    """What is missing and how to get it, or None."""
    for package in packages:
        if find_spec(package) is None:
            extra = EXTRAS.get(package)
            where = f"the development group of pyproject.toml has {package}"
            return f"needs {package}: " + (where if extra is None else f"pip install 'normscale[{extra}]'")
    return None


def need(*packages: str) -> None:
    """Skip the test that calls this where one of these is not installed."""
    if (reason := missing(packages)) is not None:
        pytest.skip(reason)


def compiled_kernels() -> Any:
    """numba's kernels; without numba the test is skipped."""
    need("numba")
    from normscale._kernels import compiled

    return compiled


class ModuleInNeed(pytest.Module):
    """A test module that is not imported, since a package is missing."""

    def collect(self) -> Any:
        """Skip the whole module."""
        pytest.skip(f"{self.path.name} {missing(packages_of(self.path))}", allow_module_level=True)


def packages_of(path: Path) -> tuple[str, ...]:
    """What a test module needs."""
    parts = path.relative_to(TESTS).parts
    places = ("/".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((NEEDED[place] for place in places if place in NEEDED), ())


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> pytest.Module | None:
    """Put a skip in the place of a module that cannot be imported."""
    if missing(packages_of(module_path)) is None:
        return None
    return ModuleInNeed.from_parent(parent, path=module_path)
