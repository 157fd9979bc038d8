"""``normscale doctor``: what is installed, which kernels run, and whether they compute the right thing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata, util

import numpy as np
import typer

from normscale import _kernels
from normscale._kernels import reference
from normscale._validate import FloatArray
from normscale._version import __version__
from normscale.cli import say
from normscale.detectors.registry import DEFAULT, make_detector
from normscale.errors import InvalidInput
from normscale.sample import load_sample

EXAMPLES = ("normscale doctor",)
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
_PLAIN = "norm_scaling:prior_weight=1"
"""The detector whose formula is written out below."""
_MARKS = {True: "ok  ", False: "FAIL", None: "--  "}


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
    checks = self_checks()
    for what, passed in checks.items():
        typer.echo(f"{_MARKS[passed]} {what}")
    if False in checks.values():
        say("something computes wrong numbers here; please report this output")
        sys.exit(1)


def self_checks() -> dict[str, bool | None]:
    """Sentences that must be true here, and whether they are; None where there was nothing to compare."""
    by_numpy = {name: _scores(name, reference) for name in (_PLAIN, DEFAULT)}
    checks: dict[str, bool | None] = {
        "numpy kernels equal the formulas written out, row by row": _same(by_numpy[_PLAIN], _written_out())
    }
    if _kernels.backend() == "numpy":
        forced = os.environ.get("NORMSCALE_KERNELS") == "numpy"
        why = "NORMSCALE_KERNELS=numpy" if forced else "numba cannot be imported"
        checks[f"compiled kernels were not checked: {why}, so numpy's do the work"] = None
    else:
        active = _kernels.active()
        checks["compiled kernels equal numpy's"] = all(
            _same(_scores(name, active), by_numpy[name]) for name in by_numpy
        )
    return {**checks, "a running state survives a row with NaN": _survives_nan()}


def _same(scores: FloatArray, others: FloatArray) -> bool:
    return bool(np.allclose(scores, others, rtol=1e-9, atol=1e-9))


def _scores(name: str, kernels: _kernels.Backend) -> FloatArray:
    """Frozen and streamed scores of the sample's test rows by some kernels; shape (2, rows)."""
    sample, before = load_sample(), _kernels.active()
    _kernels._kernels = kernels
    try:
        detector = make_detector(name).fit(sample.train)
        return np.array([detector.score(sample.test), detector.stream(sample.test)])
    finally:
        _kernels._kernels = before


def _written_out() -> FloatArray:
    """Norm-scaling as the paper has it, with means and deviations that are taken anew for every row."""
    sample = load_sample()
    train, test = (one.logits.astype(np.float64) for one in (sample.train, sample.test))
    mean, square = train.mean(axis=0), (train**2).mean(axis=0)
    scores = np.empty((2, len(test)))
    for i, row in enumerate(test):
        seen = test[: i + 1]
        running = (mean + seen.sum(axis=0)) / (i + 2), (square + (seen**2).sum(axis=0)) / (i + 2)
        for setting, (shift, raw) in enumerate(((mean, square), running)):
            scaled = (row - shift) / np.sqrt(raw - shift**2)
            others = np.delete(scaled, scaled.argmax())
            scores[setting, i] = np.log(np.exp(others - scaled.max()).sum())  # log-odds of all other classes
    return scores


def _survives_nan() -> bool:
    sample = load_sample()
    detector = make_detector(_PLAIN).fit(sample.train)
    before = detector.score(sample.test)
    try:
        detector.stream(np.full((1, sample.train.n_classes), np.nan))
    except InvalidInput:
        return np.array_equal(before, detector.score(sample.test))
    return False
