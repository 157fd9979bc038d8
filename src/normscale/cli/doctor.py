"""``normscale doctor``: what is installed, which kernels run, and whether they compute the right thing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, util
from typing import Any

import numpy as np
import typer

from normscale import _kernels
from normscale._kernels import KINDS, mixture, mixture_reference, reference
from normscale._validate import FloatArray
from normscale._version import __version__

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
_MARKS = {True: "ok  ", False: "FAIL", None: "--  "}
_WIDTHS = (2, 10, 100)
_N = 300


def doctor() -> None:
    """Check the installation; exit code 1 when a check fails."""
    typer.echo(f"normscale {__version__}, Python {platform.python_version()}, numpy {np.__version__}")
    typer.echo(f"platform {platform.platform()}, {os.cpu_count()} cores")
    typer.echo(f"kernels {_kernels.backend()} (NORMSCALE_KERNELS={os.environ.get('NORMSCALE_KERNELS', 'auto')})")
    for extra, (package, purpose) in EXTRAS.items():
        advice = f"pip install 'normscale[{extra}]'"
        found = util.find_spec(package) is not None
        state = f"{package} {metadata.version(package)}" if found else f"not installed: {advice}"
        if lacking := [other for other in BESIDE.get(extra, ()) if found and util.find_spec(other) is None]:
            state += f", but without {' and '.join(lacking)}: {advice}"
        typer.echo(f"  [{extra}] {purpose}: {state}")
    checks = dict(self_checks())
    for what, passed in checks.items():
        typer.echo(f"{_MARKS[passed]} {what}")
    if False in checks.values():
        typer.echo("something computes wrong numbers here; please report this output", err=True)
        sys.exit(1)


def self_checks() -> dict[str, bool | None]:
    """Sentences that must be true here, and whether they are; None where there was nothing to compare."""
    checks: dict[str, bool | None] = {
        "numpy kernels equal the formulas written out, row by row": all(map(_numpy_is_right, _WIDTHS))
    }
    if _kernels.backend() == "numpy":
        forced = os.environ.get("NORMSCALE_KERNELS") == "numpy"
        why = "NORMSCALE_KERNELS=numpy" if forced else "numba cannot be imported"
        checks[f"compiled kernels were not checked: {why}, so numpy's do the work"] = None
    else:
        checks["compiled kernels equal numpy's"] = all(
            np.allclose(_scores(_kernels.active(), width), _scores(reference, width), rtol=1e-10, atol=1e-10)
            for width in _WIDTHS
        )
        checks["compiled mixture kernels equal numpy's"] = all(map(_mixture_kernels_agree, _WIDTHS[:2]))
    nan = np.full((1, 2), np.nan)
    state = _kernels.stream_scores(nan, 1.0, np.zeros(2), np.ones(2), 0, 1.0, np.empty(1))
    return {**checks, "a running state survives a row with NaN": state is None}


def _rows(n_classes: int, n: int = _N) -> FloatArray:
    rows: FloatArray = np.random.default_rng(n_classes).normal(3.0, 2.0, (n, n_classes))
    return rows


def _scores(kernels: Any, n_classes: int) -> FloatArray:
    """Frozen and streamed scores of every kind; shape (kinds, 2, rows)."""
    rows, scores = _rows(n_classes), np.empty((len(KINDS), 2, _N))
    for number, (frozen, streamed) in zip(KINDS.values(), scores, strict=True):
        kernels.frozen_scores(rows, rows.mean(axis=0), 1.0 / rows.std(axis=0), number, frozen)
        # training counts as one row at 0 with squared deviation 1 in every class
        kernels.stream_scores(rows, 1.0, np.zeros(n_classes), np.ones(n_classes), number, 1.0, streamed)
    return scores


def _numpy_is_right(n_classes: int) -> bool:
    """Compare with means and deviations that are taken anew for every row."""
    rows = _rows(n_classes)
    frozen = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    streamed = np.empty_like(rows)
    for i, row in enumerate(rows):
        seen = np.vstack([np.zeros(n_classes), rows[: i + 1]])
        streamed[i] = (row - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1.0 / len(seen))
    expected = [[[_written_out(kind, row) for row in side] for side in (frozen, streamed)] for kind in KINDS]
    return np.allclose(_scores(reference, n_classes), expected, rtol=1e-9, atol=1e-9)


def _written_out(kind: str, scaled: FloatArray) -> float:
    exponentials = np.exp(scaled - scaled.max())
    if kind == "log_odds":
        rest = np.delete(exponentials, scaled.argmax()).sum()
        return float(np.log(rest))  # of all other classes against the largest, whose exponential is 1
    return -float(scaled.max() + (np.log(exponentials.sum()) if kind == "log_sum_exp" else 0.0))


def _mixture_kernels_agree(n_classes: int) -> bool:
    from normscale.detectors.partial_fit import RowSample
    from normscale.detectors.stream_aware import ClassMoments, finished_profiles
    from normscale.outputs import ModelOutputs

    decays = mixture.MixtureSettings(0.98, 0.995, 0.999, 5.0, 0.8)
    train = _rows(n_classes) + 6.0 * np.eye(n_classes)[np.random.default_rng(n_classes).integers(0, n_classes, _N)]
    logits = np.vstack([train[:100], _rows(n_classes, 100)])  # rows that belong, then rows that do not
    stream = mixture.MixtureRows(logits, logits.max(axis=1) - 6.0)
    known = ModelOutputs(train)
    sample = RowSample.of(known, np.column_stack([train.max(axis=1) - 6.0, train.std(axis=1)]))
    profiles = finished_profiles(ClassMoments.of(known).profiles(), sample, *sample.values.T)
    state, other = (mixture.Mixture.empty(n_classes) for _ in range(2))
    mine, theirs = np.empty((2, 200)), np.empty((2, 200))
    taken_in = mixture.stream_mixture(stream, profiles, decays, state, mine[0])
    mixture_reference.stream(stream, profiles, decays, other, theirs[0])
    mixture.score_mixture(stream, profiles, decays, state, mine[1])
    mixture_reference.score(stream, profiles, decays, other, theirs[1])
    pairs = zip((mine, *state), (theirs, *other), strict=True)
    return bool(taken_in) and all(np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in pairs)
