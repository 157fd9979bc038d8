"""pyarrow, which is an extra: imported here and only when a table needs it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from normscale.errors import MissingExtra


def need_arrow(module: str, path: str) -> Any:
    """Import ``pyarrow`` or one of its modules.

    Raises
    ------
    MissingExtra
        When it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(
            f"{path}: .parquet files need pyarrow; run: pip install 'normscale[arrow]'. "
            "Or use .npz or .safetensors, which need nothing more."
        ) from error


def has_arrow() -> bool:
    """Whether pyarrow is installed, found out without importing it."""
    return importlib.util.find_spec("pyarrow") is not None
