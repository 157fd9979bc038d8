"""``normscale doctor``: what is installed, which kernels run, and whether they compute the right thing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, util

import numpy as np
import typer

from normscale import _kernels
from normscale._version import __version__
from normscale.cli._self_checks import self_checks

EXAMPLE = "Example: [bold]normscale doctor[/bold]"

EXTRAS = {
    "fast": ("numba", "compiled kernels, several times faster than numpy"),
    "arrow": ("pyarrow", "Parquet tables and faster CSV"),
    "torch": ("torch", "networks and training"),
    "report": ("matplotlib", "figures"),
    "serve": ("uvicorn", "the HTTP guard"),
    "postgres": ("psycopg", "a guard's store in PostgreSQL"),
    "onnx": ("onnxruntime", "ONNX models with their detector"),
    "ray": ("ray", "many files on a Ray cluster"),
}

BESIDE = {"ray": ("pyarrow", "aiohttp")}
"""What else an extra needs: Ray without these starts, and fails at work."""


def doctor() -> None:
    """Check the installation; exit code 1 when a check fails."""
    typer.echo(f"normscale {__version__}, Python {platform.python_version()}, numpy {np.__version__}")
    typer.echo(f"platform {platform.platform()}, {os.cpu_count()} cores")
    typer.echo(f"kernels {_kernels.backend()} (NORMSCALE_KERNELS={os.environ.get('NORMSCALE_KERNELS', 'auto')})")
    for extra, (package, purpose) in EXTRAS.items():
        found = util.find_spec(package) is not None
        state = (
            f"{package} {metadata.version(package)}" if found else f"not installed: pip install 'normscale[{extra}]'"
        )
        lacking = [other for other in BESIDE.get(extra, ()) if found and util.find_spec(other) is None]
        if lacking:
            state += f", but without {' and '.join(lacking)}: pip install 'normscale[{extra}]'"
        typer.echo(f"  [{extra}] {purpose}: {state}")
    checks = self_checks()
    for check in checks:
        mark = {True: "ok  ", False: "FAIL", None: "--  "}[check.passed]
        typer.echo(f"{mark} {check.what}")
    if any(check.passed is False for check in checks):
        typer.echo("something computes wrong numbers here; please report this output", err=True)
        sys.exit(1)
