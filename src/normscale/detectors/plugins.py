"""Detectors of one's own from a Python file: what ``normscale --plugin mydet.py`` loads.

The file registers its detectors with :func:`~normscale.detectors.registry.register`. The paths are kept in an
environment variable, so that processes which this one starts know the same detectors.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

from normscale.errors import InvalidInput

VARIABLE = "NORMSCALE_PLUGINS"


def add_plugins(paths: Iterable[str]) -> None:
    """Load Python files that register detectors, here and in the processes that are started later.

    Raises
    ------
    InvalidInput
        Where there is no such file, or running it fails.
    """
    for path in map(os.path.abspath, paths):
        _load(path)
        if path not in (known := plugin_paths()):
            os.environ[VARIABLE] = os.pathsep.join([*known, path])


def load_plugins() -> None:
    """Load the files that this process was told of by its environment."""
    for path in plugin_paths():
        _load(path)


def plugin_paths() -> list[str]:
    """The absolute paths of all plugins."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]


def plugin_modules() -> list[ModuleType]:
    """The modules that the files became."""
    return [sys.modules[name] for name in map(_module_name, plugin_paths()) if name in sys.modules]


def _module_name(path: str) -> str:
    """The name of a file's module, the same in every process."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return f"normscale_plugin_{stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"


def _load(path: str) -> None:
    """Run a file, once."""
    name = _module_name(path)
    if name in sys.modules:
        return
    if not os.path.isfile(path):
        raise InvalidInput(f"no such plugin: {path}; --plugin takes a Python file that registers a detector.")
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} is no Python file; a plugin's name ends in .py.")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a stranger's file raises
        del sys.modules[name]
        raise InvalidInput(f"the plugin {path} could not be loaded: {type(error).__name__}: {error}") from error
