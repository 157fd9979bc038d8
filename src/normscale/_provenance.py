"""What made a result: version, commit, and the software and machine it ran on."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from normscale import _kernels
from normscale._version import __version__


@cache
def commit() -> str | None:
    """The commit of the checkout this package runs from, with ``+changes`` if files differ; None if there is none."""
    folder = Path(__file__).parent
    try:
        inside = ["git", "-C", str(folder)]
        tracked = subprocess.run([*inside, "ls-files", "--error-unmatch", __file__], capture_output=True, timeout=10)
        if tracked.returncode:
            return None
        head = subprocess.run([*inside, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True)
        changed = subprocess.run(
            [*inside, "status", "--porcelain", "--untracked-files=no", "--", str(folder)],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def environment() -> dict[str, Any]:
    """The software and the machine, without anything that names its owner."""
    versions = {}
    for name in ("numpy", "numba", "torch", "matplotlib"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "normscale": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        **versions,
        "kernels": _kernels.backend(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
