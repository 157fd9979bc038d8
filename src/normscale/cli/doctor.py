"""``normscale doctor``: what is installed, which kernels run, and whether they compute the right thing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, util

import numpy as np
import typer

from normscale import _kernels
from normscale._kernels import KINDS, reference
from normscale._version import __version__

EXAMPLE = "Example: [bold]normscale doctor[/bold]"

EXTRAS = {
    "fast": ("numba", "compiled kernels, several times faster than numpy"),
    "arrow": ("pyarrow", "Parquet tables and faster CSV"),
    "torch": ("torch", "networks and training"),
    "report": ("matplotlib", "figures"),
    "serve": ("fastapi", "the HTTP guard"),
    "postgres": ("psycopg", "a guard's journal in PostgreSQL"),
    "onnx": ("onnxruntime", "guarded ONNX models"),
    "ray": ("ray", "distributed scoring"),
}


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
        typer.echo(f"  [{extra}] {purpose}: {state}")
    checks = _checks()
    for name, passed in checks:
        typer.echo(f"{'ok  ' if passed else 'FAIL'} {name}")
    if not all(passed for _, passed in checks):
        typer.echo("something computes wrong numbers here; please report this output", err=True)
        sys.exit(1)


def _checks() -> list[tuple[str, bool]]:
    """Name and outcome of each self-check."""
    return [
        (f"{_kernels.backend()} kernels equal the numpy reference", _kernels_agree()),
        ("norm-scaling of the embedded sample equals the formula written out", _sample_agrees()),
        ("a running state survives a row with NaN", _nan_is_refused()),
    ]


def _kernels_agree() -> bool:
    rng = np.random.default_rng(0)
    for n_classes in (2, 10, 100):
        rows = rng.normal(3.0, 2.0, (300, n_classes))
        for kind in KINDS.values():
            mine, theirs = np.empty(300), np.empty(300)
            mean, m2 = np.zeros(n_classes), np.ones(n_classes)
            state = _kernels.stream_scores(rows, 1.0, mean, m2, kind, 1.0, mine)
            reference.stream_scores(rows, 1.0, mean, m2, kind, 1.0, theirs)
            if state is None or not np.allclose(mine, theirs, rtol=1e-10, atol=1e-10):
                return False
            if not np.allclose(state.m2, m2, rtol=1e-12):
                return False
    return True


def _sample_agrees() -> bool:
    from normscale.detectors.norm_scaling import NormScaling
    from normscale.sample import load_sample

    sample = load_sample()
    train, test = (outputs.logits.astype(np.float64) for outputs in (sample.train, sample.test))
    scaled = np.exp((test - train.mean(axis=0)) / train.std(axis=0))
    probability = (scaled / scaled.sum(axis=1, keepdims=True)).max(axis=1)
    scores = NormScaling().fit(sample.train).score(sample.test)
    return np.allclose(scores, np.log((1.0 - probability) / probability), rtol=1e-9, atol=1e-9)


def _nan_is_refused() -> bool:
    state = _kernels.stream_scores(np.full((1, 2), np.nan), 1.0, np.zeros(2), np.ones(2), 0, 1.0, np.empty(1))
    return state is None
