"""The house: imports point downwards, the import is light, public names are what the table says."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import normscale
from needed_extras import missing, need, packages_of_module
from normscale.detectors.registry import detector_class

PACKAGE = Path(normscale.__file__).parent

ALLOWED: dict[str, set[str]] = {  # room -> rooms it may import from (besides itself)
    "errors": set(),
    "_version": set(),
    "_atomic": set(),
    "_progress": set(),
    "encoding": set(),
    "_processes": set(),
    "_lock": {"errors"},
    "_validate": {"errors"},
    "_kernels": {"errors"},
    "_provenance": {"_kernels", "_version"},
    "outputs": {"_validate", "errors"},
    "state": {"_atomic", "_version", "encoding", "errors"},
    "rows": {"_atomic", "_validate", "encoding", "errors", "outputs"},
    "sample": {"outputs", "rows"},
    "input_checks": {"_validate", "errors", "outputs"},
    "dataframes": {"_validate", "errors", "outputs", "rows"},
    "moments": {"_kernels", "_validate", "errors", "state"},
    "scores": {"_kernels", "_validate"},
    "scaling": {"_validate", "moments"},
    "metrics": {"_validate", "errors"},
    "detectors": {
        "_kernels", "_validate", "dataframes", "errors", "input_checks", "metrics", "moments", "outputs",
        "scaling", "scores", "state",
    },
    "bench.data": {"_atomic", "_lock", "_progress", "_validate", "encoding", "errors", "extraction"},
    "extraction": {
        "_atomic", "_progress", "_validate", "detectors", "errors", "export.onnx", "jobs", "outputs", "rows", "scores",
        "sklearn",
    },
    "export": {"_kernels", "detectors", "outputs"},
    "export.onnx": {
        "_atomic", "_validate", "_version", "detectors", "encoding", "errors", "export", "input_checks", "metrics",
        "moments", "outputs", "state",
    },
    "export.torch": {"detectors", "errors", "export", "moments", "outputs"},
    "guard": {
        "_kernels", "_lock", "_validate", "detectors", "encoding", "errors", "input_checks", "metrics", "moments",
        "outputs", "rows", "state",
    },
    "guard.server": {
        "_kernels", "_lock", "_processes", "_version", "detectors", "encoding", "errors", "export.onnx", "guard",
        "metrics", "outputs", "sample",
    },
    "jobs": {
        "_atomic", "_kernels", "_lock", "_processes", "_validate", "_version", "detectors", "encoding", "errors",
        "input_checks", "metrics", "outputs", "rows", "sample", "state",
    },
    "sklearn": {"_validate", "detectors", "errors", "outputs"},
    "conformance": {"_validate", "detectors", "errors", "metrics", "outputs", "state"},
    "bench.network_folder": {"_atomic", "encoding", "errors"},
    "bench.train": {
        "_progress", "_provenance", "_validate", "_version", "bench.data", "bench.network_folder",
        "encoding", "errors", "extraction", "rows", "state",
    },
    "bench.experiments": {
        "_atomic", "_lock", "_processes", "_progress", "_provenance", "_validate", "_version", "bench.data",
        "bench.network_folder", "bench.train", "dataframes", "detectors", "encoding", "errors", "extraction",
        "input_checks", "jobs", "metrics", "outputs", "rows", "state",
    },
    "bench.report": {
        "_atomic", "_progress", "_validate", "_version", "bench.experiments", "bench.network_folder", "detectors",
        "errors", "metrics", "moments", "outputs", "rows", "scaling", "scores",
    },
    "bench.paper": {
        "_progress", "_validate", "bench.experiments", "bench.report", "detectors", "encoding", "errors", "metrics",
        "outputs", "sample", "scores",
    },
    "cli": {
        "_atomic", "_kernels", "_progress", "_validate", "_version", "bench.data", "bench.experiments",
        "bench.network_folder", "bench.paper", "bench.report", "bench.train", "detectors", "encoding", "errors",
        "export.onnx", "extraction", "guard", "guard.server", "jobs", "metrics", "outputs", "rows", "sample",
    },
    "__main__": {"cli"},
}  # fmt: skip

HEAVY = {
    "pandas",
    "polars",
    "torch",
    "transformers",
    "timm",
    "torchvision",
    "jinja2",
    "matplotlib",
    "numba",
    "pyarrow",
    "uvicorn",
    "msgspec",
    "psycopg",
    "onnx",
    "onnxruntime",
    "ray",
    "scipy",
    "sklearn",
    "typer",
    "rich",
}


def room(module: str) -> str:
    """The room of a module: its first two names in the parts of the package that have rooms of their own."""
    parts = module.split(".")[1:]
    nested = ".".join(parts[:2])
    return nested if nested in ALLOWED else ".".join(parts[:1])


def imports() -> list[tuple[str, str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("normscale", *path.relative_to(PACKAGE).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module] if node.module != "normscale" else [f"normscale.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            found += [(module, name, path) for name in names if name.split(".")[0] == "normscale"]
    return found


def edges() -> dict[tuple[str, str], list[str]]:
    """Every import from one room into another, by the two rooms."""
    found: dict[tuple[str, str], list[str]] = {}
    for module, target, _ in imports():
        here, there = room(module), room(target)
        if here != "__init__" and here != there:  # the package's own table of public names may point anywhere
            found.setdefault((here, there), []).append(f"{module} imports {target}")
    return found


def test_imports_point_downwards_only() -> None:
    wrong = []
    for (here, there), where in edges().items():
        assert here in ALLOWED, f"{here} is a new room: add it to the table and to ARCHITECTURE.md"
        if there not in ALLOWED[here]:
            wrong += where
    assert not wrong


def test_the_table_allows_nothing_that_nobody_uses() -> None:
    used = set(edges())
    unused = [f"{here} -> {there}" for here, below in ALLOWED.items() for there in below if (here, there) not in used]
    assert not unused


NAMES_ALLOWED = ("detectors/", "bench/paper/")
"""Where code may name a detector: their own room, the paper's, and norm-scaling's twin in torch."""


def test_no_detector_is_named_outside_its_room() -> None:
    """A new detector must not need a line anywhere else, so nothing else may know one by name."""
    names = set(normscale.list_detectors())
    classes = {detector_class(name).__name__ for name in names}
    known_by = {ast.Name: classes, ast.Attribute: classes, ast.alias: classes, ast.Constant: names | classes}
    word = {ast.Name: "id", ast.Attribute: "attr", ast.alias: "name", ast.Constant: "value"}
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        if where.startswith(NAMES_ALLOWED):
            continue
        tree = ast.parse(path.read_text())
        texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings may name any
        for node in ast.walk(tree):  # a variable may be called scale; the text "scale" names the detector
            kind = type(node)
            if kind in word and id(node) not in texts and getattr(node, word[kind]) in known_by[kind]:
                found.append(f"{where}:{getattr(node, 'lineno', '?')} {getattr(node, word[kind])}")
    assert not found


def test_public_classes_have_names_of_their_own() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_the_table_has_no_cycle() -> None:
    done: set[str] = set()
    while len(done) < len(ALLOWED):
        ready = {name for name, below in ALLOWED.items() if name not in done and below <= done}
        assert ready, f"a cycle among {sorted(set(ALLOWED) - done)}"
        done |= ready


def run(code: str, **environment: str) -> str:
    import os

    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("use", ("", "; ns.NormScaling; ns.evaluate; ns.Mahalanobis; ns.list_detectors()"))
def test_importing_is_light(use: str) -> None:
    loaded = set(run(f"import sys, normscale as ns{use}; print(*{{m.split('.')[0] for m in sys.modules}})").split())
    assert not loaded & HEAVY


def test_the_numpy_kernels_never_load_numba() -> None:
    code = "import sys, numpy, normscale as ns; ns.NormScaling().fit(numpy.eye(3)).stream(numpy.eye(3)); "
    assert run(code + "print('numba' in sys.modules)", NORMSCALE_KERNELS="numpy").strip() == "False"
    need("numba")
    assert run(code + "print('numba' in sys.modules)", NORMSCALE_KERNELS="numba").strip() == "True"


def test_without_numba_the_numpy_kernels_take_over() -> None:
    block = "import sys; sys.modules['numba'] = None; from normscale import _kernels; "
    assert run(block + "print(_kernels.backend())").strip() == "numpy"
    code = block + ("import normscale as ns\ntry: _kernels.backend()\nexcept ns.MissingExtra as e: print(e)\n")
    assert "pip install 'normscale[fast]'" in run(code, NORMSCALE_KERNELS="numba")


def test_an_unknown_kernel_name_is_explained() -> None:
    code = (
        "import normscale as ns\nfrom normscale import _kernels\n"
        "try: _kernels.backend()\nexcept ns.InvalidInput as e: print(e)"
    )
    assert "must be 'auto', 'numba' or 'numpy'; got 'cuda'" in run(code, NORMSCALE_KERNELS="cuda")


def test_public_names_are_declared_once_and_agree() -> None:
    from normscale import detectors

    registered = {detector_class(name) for name in normscale.list_detectors()}
    ours = {cls.__name__ for cls in registered if cls.__module__.startswith("normscale.")}
    assert ours <= set(detectors._HOME_OF)  # a new detector is listed in __init__.pyi
    for name in normscale.__all__:
        if missing(packages_of_module(normscale._HOME_OF[name])) is None:
            assert getattr(normscale, name) is not None
    assert set(normscale.__all__) <= set(dir(normscale))
    for module in (normscale, detectors):
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018


def test_without_torch_extract_says_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import normscale as ns\ntry: ns.extract(object(), [])\n"
    code += "except ns.MissingExtra as e: print(e)"
    assert "pip install 'normscale[torch]'" in run(code)


def test_public_methods_have_docstrings_unless_they_override() -> None:
    """An override says nothing new; ruff cannot tell one, so its rule for methods is off."""
    silent = []
    for name in MODULES:
        if missing(packages_of_module(name)) is not None:
            continue
        for _, cls in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if cls.__module__ != name or cls.__name__.startswith("_"):
                continue
            for key, value in vars(cls).items():
                method = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
                inherited = any(hasattr(base, key) for base in cls.__bases__)
                if inspect.isfunction(method) and not key.startswith("_") and not method.__doc__ and not inherited:
                    silent.append(f"{name}.{cls.__name__}.{key}")
    assert not silent


MODULES = [
    info.name for info in pkgutil.walk_packages([str(PACKAGE)], "normscale.") if not info.name.endswith("__main__")
]


@pytest.mark.parametrize("module", ["normscale", *MODULES])
def test_examples_in_docstrings_run(module: str) -> None:
    need(*packages_of_module(module))
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_no_pickle_anywhere() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        assert "allow_pickle=True" not in text, path
        if path.name != "conformance.py":
            assert "import pickle" not in text, path
