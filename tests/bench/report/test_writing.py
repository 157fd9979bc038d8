"""The page and the files beside it: all there, escaped, nothing from outside; and what is said when it cannot be."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.report.small_run import COMMAND, EVIL, SETS, TWO, make_run
from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.additions import paper_additions
from normscale.bench.report.published import Additions, PublishedValue, Reference
from normscale.bench.report.writing import report
from normscale.cli import app
from normscale.errors import FileFormatError, InvalidInput

OWN_TABLES = {"comparison", "per_set", "ood_sets", "accuracy", "methods", "runs"}
TABLES = OWN_TABLES | {"better_than", "expanded", "claims", "stress"}


class Page(HTMLParser):
    """The page's tags and text; every tag must be closed by its own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


def test_tables_and_figures_are_beside_the_page(written: RunFolder) -> None:
    there = {path.name for path in (written.path / "tables").iterdir()}
    assert there == {f"{name}.{suffix}" for name in TABLES for suffix in ("md", "tex", "csv")}
    kinds = ("roc", "scores", "confidence", "density")
    names = {f"{kind}_{slug}" for kind in kinds for slug in ("svhn", "own-set")}
    names |= {"ranking", "ece", "reliability", "reliability_scaled", "training", "stress_map"}
    found = {path.name for path in (written.path / "figures").iterdir()}
    assert found == {f"{name}.{suffix}" for name in names for suffix in ("png", "svg", "pdf")}


def test_the_page_shows_everything(written: RunFolder) -> None:
    page = Page((written.path / "report.html").read_text())
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {f"table-{name}-0" for name in TABLES} <= ids
    for words in (
        "Static", "Streamed", "± over seeds", "± over OoD sets", "Ours − paper", COMMAND, "use this", "numpy",
        "resnet18, width 8", "Beside the paper", "no difference", "mean of the sets' deviations",
    ):  # fmt: skip
        assert words in page.text, words
    assert sum(tag == "figure" for tag, _ in page.tags) == 4 * len(TWO) + 6
    assert len([one for one in ids if one is not None]) == sum("id" in attributes for _, attributes in page.tags)


def test_the_page_needs_nothing_from_outside(written: RunFolder) -> None:
    text = (written.path / "report.html").read_text()
    assert len(text) < 1_500_000
    page = Page(text)
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            target = attributes.get(name) or ""
            assert target.startswith(("#", "data:")) or not target, (tag, target)
    assert "http" not in re.sub(r"data:[^\"]*", "", text).replace("http-equiv", "")
    assert "@import" not in text
    anchors = [a["href"] for tag, a in page.tags if tag == "a"]
    ids = {a.get("id") for _, a in page.tags}
    assert anchors
    assert {str(one).removeprefix("#") for one in anchors} <= ids


def test_what_comes_from_files_is_escaped(tmp_path: Path) -> None:
    sets = {EVIL.replace("/", "∕"): "uniform_noise"}
    run = make_run(
        tmp_path / "run", seeds=(0,), sets=sets, methods=("msp", "norm_scaling"), data=f"npz:a/{EVIL[:6]}.npz"
    )
    settings = json.loads((run.path / "settings.json").read_text())
    settings["made_by"] |= {"command": f"normscale {EVIL}", "kernels": "<script>alert(1)</script>"}
    (run.path / "settings.json").write_text(json.dumps(settings))
    (run.path / "stress.json").write_text("{<img src=x>")
    text = report(run.path, resamples=20).read_text()
    page = Page(text)
    assert not [tag for tag, _ in page.tags if tag == "b"]
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert not [a for tag, a in page.tags if tag == "img"]
    assert next(iter(sets)) in page.text
    assert f"normscale {EVIL}" in page.text
    assert "The stress grid is not shown" in page.text
    latex = (run.path / "tables" / "per_set.tex").read_text()
    assert r"\textless{}b\textgreater{}x" in latex
    assert r"\& 'q' \$y" in latex


def test_without_figures_matplotlib_is_not_needed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "norm_scaling"))
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from normscale import report\n"
        f"folder = {str(run.path)!r}\n"
        "print(report(folder, figures=False, resamples=5))\n"
        "from normscale.errors import MissingExtra\n"
        "try: report(folder)\n"
        "except MissingExtra as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == str(run.path / "report.html")
    assert "pip install 'normscale[report]', or pass --no-figures." in second
    assert not (run.path / "figures").exists()
    assert "<figure" not in (run.path / "report.html").read_text()


def test_an_unfinished_run_says_what_is_missing(tmp_path: Path) -> None:
    gaps = [(1, name, method) for name in SETS for method in ("norm_scaling", "msp") if name != "svhn"]
    run = make_run(tmp_path / "run", seeds=(0, 1), methods=("msp", "norm_scaling"), leave_out=gaps)
    page = Page(report(run.path, figures=False, resamples=5).read_text())
    assert "Not finished: 10 of 16 cells are there." in page.text
    assert "4 OoD sets (svhn, textures, uniform, own set) and 1 seed." in page.text


@pytest.mark.parametrize("command", ["", COMMAND])
def test_the_command_for_this_page_can_be_pasted(tmp_path: Path, command: str) -> None:
    run = make_run(tmp_path / "my runs", seeds=(0,), methods=("msp",), sets=TWO)
    settings = run.path / "settings.json"
    settings.write_text(settings.read_text().replace(COMMAND, command))
    page = Page(report(run.path, figures=False, resamples=5).read_text())
    assert f"normscale report '{run.path}'" in page.text


def test_figures_without_the_outputs_are_left_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "norm_scaling"), sets={"noise": "uniform_noise"})
    for path in run.network(0).outputs("test").parent.iterdir():
        path.unlink()
    report(run.path, additions=paper_additions(), resamples=5)
    names = {path.stem for path in (run.path / "figures").iterdir()}
    assert names == {"ranking", "roc_noise", "scores_noise", "training"}


def test_a_report_serves_any_classifier_without_a_publication(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", seeds=(0,), methods=("msp", "energy"), sets={"svhn": "unseen_digits"}, name="my networks"
    )
    page = Page(report(run.path, resamples=5, additions=paper_additions()).read_text())
    assert "paper" not in page.text.lower()
    assert "Norm-Scaling" not in page.text
    assert "Energy" in page.text
    assert {path.stem for path in (run.path / "tables").iterdir()} == OWN_TABLES
    titles = [text.strip() for text in page.texts]
    assert "Ours" not in titles  # there is no "theirs"


def test_a_page_says_each_thing_once(written: RunFolder, tmp_path: Path) -> None:
    alone = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "multi_threshold", "norm_scaling"), sets=TWO)
    report(alone.path, additions=paper_additions(), figures=False, resamples=5)
    for run in (written, alone):
        page = Page((run.path / "report.html").read_text())
        told = [text for text in page.texts if len(text) > 65]  # sentences; cells are shorter
        assert len(told) > 8
        assert {text for text in told if told.count(text) > 1} == set()
        assert "No parameter was chosen here by how a method does on OoD inputs" in page.text
    assert "Networks won" in Page((written.path / "report.html").read_text()).text
    assert "Networks won" not in page.text
    assert "1 of 1" not in page.text


def test_another_publication_can_stand_beside_a_run(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "energy"), sets={"svhn": "unseen_digits"})
    values = {("svhn", "energy", "auroc"): PublishedValue(0.75, 0.01)}
    reference = Reference("leaderboard", values, {"svhn": 26032}, 10_000, PublishedValue(0.95, 0.001))
    additions = Additions(lambda _: reference)
    page = Page(report(run.path, additions=additions, figures=False, resamples=5).read_text())
    for words in ("Leaderboard", "Ours − leaderboard", "0.7500", "26,032", "72.25 %", "95.00 %"):
        assert words in page.text, words


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="is not the folder of a benchmark"):
        report(tmp_path / "nothing")
    run = make_run(tmp_path / "empty", seeds=(), sets={})
    with pytest.raises(InvalidInput, match="neither finished cells nor results"):
        report(run.path)
    settings = json.loads((run.path / "settings.json").read_text())
    (run.path / "settings.json").write_text(json.dumps({**settings, "format": 99}))
    with pytest.raises(FileFormatError, match="Upgrade normscale"):
        report(run.path)


def test_the_command(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", seeds=(0,), methods=("msp", "norm_scaling"), sets={"noise": "uniform_noise"})
    page = tmp_path / "out" / "page.html"
    done = CliRunner().invoke(app, ["report", str(run.path), "-o", str(page), "--no-figures"])
    assert done.exit_code == 0, done.output
    assert f"written: {page}, {page.parent}/tables" in done.output
    assert page.exists()
    assert not (run.path / "report.html").exists()
    done = CliRunner().invoke(app, ["leaderboard", str(run.path), "-o", str(tmp_path / "board")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "board" / "leaderboard.html").exists()
