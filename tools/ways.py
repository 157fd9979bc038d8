"""How long the ways through the package are: files, functions and calls that one piece of work enters.

    .venv/bin/python tools/ways.py            # all ways; or names: stream aware guard fit fit_default score

Each way is done once to warm up and once counted, in one process and the main thread (a loop of numba counts as the
call that enters it). Imports are done before.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import normscale as ns
from normscale.cli import main as normscale_command

HOME = os.path.dirname(ns.__file__)


def counted(work: Callable[[], object]) -> tuple[int, int, int]:
    """Files, functions and calls of the package that some work enters."""
    work()
    seen: set[tuple[str, str]] = set()
    calls = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            calls += 1
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len({file for file, _ in seen}), len(seen), calls


def command(*words: str) -> Callable[[], None]:
    """A command line, run in this process."""

    def run() -> None:
        before, sys.argv = sys.argv, ["normscale", *words]
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                normscale_command()
        except SystemExit as end:
            if end.code not in (0, None):
                raise RuntimeError(f"{words} ended with {end.code}: {said.getvalue()}") from end
        finally:
            sys.argv = before

    return run


def ways() -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way by name."""
    sample, folder = ns.load_sample(), tempfile.mkdtemp()

    def path(name: str) -> str:
        return os.path.join(folder, name)

    for name in ("train", "validation", "test"):
        ns.write_table(path(f"{name}.parquet"), getattr(sample, name))
    plain = ns.NormScaling().fit(sample.train).set_threshold(sample.validation)
    aware = ns.make_detector("stream_aware+ensemble").fit(sample.train)
    row = sample.test.logits[:1]
    yield "stream", lambda: plain.stream(row)
    yield "aware", lambda: aware.stream(sample.test[:1].only(*aware.reads))
    guard = ns.open_guard(plain, ":memory:")
    yield "guard", lambda: guard.score(row)
    train, threshold = path("train.parquet"), ("--threshold-on", path("validation.parquet"))
    yield "fit", command("fit", train, "-d", "norm_scaling", "-o", path("a.safetensors"), *threshold)
    yield "fit_default", command("fit", train, "-o", path("b.safetensors"), *threshold)
    plain.save(path("c.safetensors"))
    yield "score", command("score", path("c.safetensors"), path("test.parquet"), "-o", path("scores.parquet"))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    os.environ.setdefault("NO_COLOR", "1")
    wanted = sys.argv[1:]
    print(f"{'way':<12} files functions calls")
    for name, work in ways():
        if not wanted or name in wanted:
            files, functions, calls = counted(work)
            print(f"{name:<12} {files:5d} {functions:9d} {calls:5d}", flush=True)
