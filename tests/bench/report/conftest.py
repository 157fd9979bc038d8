from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.experiments.stress_rows import stress_row
from bench.report.small_run import EVIL, TWO, make_run
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.experiments.stress_result import StressResult
from normscale.bench.paper.additions import paper_additions
from normscale.bench.paper.presets import FROZEN, RUNNING
from normscale.bench.report.writing import report


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run of three networks; read only."""
    return make_run(Path(tmp_path_factory.mktemp("runs")) / "finished", missing={"lsun": "no mirror answered"})


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two networks with a stress grid and its whole report; read only."""
    run = make_run(tmp_path_factory.mktemp("runs") / "run", seeds=(0, 1), sets=TWO, missing={"lsun": f"no {EVIL}"})
    rows = [stress_row(name, auroc) for name, auroc in {RUNNING: 0.95, FROZEN: 0.8, "energy": 0.85}.items()]
    StressResult(rows).save(run.path / "stress.json")
    assert report(run.path, additions=paper_additions(), resamples=40, pdf=True) == run.path / "report.html"
    return run


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real Chromium; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine (apt-get install chromium)")
    with playwright.sync_playwright() as started:
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        launched = started.chromium.launch(executable_path=chromium, args=root)
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Any]:
    """Opens the page at ``address``; afterwards nothing must have gone wrong, nor been asked of the network."""
    contexts, problems, requests = [], [], []

    def opened(width: int = 1200, scheme: str = "light") -> Any:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems
    assert {url for url in requests if not url.startswith("data:")} == {address}
