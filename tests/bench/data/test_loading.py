"""``load`` by name: the table of sets, splits, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.data.making import picture
from normscale.bench.data import list_sets, load, loading
from normscale.errors import InvalidInput
from program import python


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCALE_DATA", str(tmp_path / "root"))


# --- the table ------------------------------------------------------------------------------------------------------


def test_the_table_has_the_papers_sets_with_their_counts() -> None:
    counts = {source.name: source.images.get("test") for source in list_sets()}
    paper = {"cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032, "tinyimagenet": 10_000, "lsun": 3_000}
    paper |= {"places365": 36_500, "textures": 5_640}
    assert paper.items() <= counts.items()
    assert counts["gaussian"] is counts["uniform"] is None
    for source in list_sets():
        assert source.title
        assert source.licence
        for file in source.files:
            assert file.size
            assert len(file.digest) in (32, 64)  # nothing is fetched that cannot be checked
            assert set(file.digest) <= set("0123456789abcdef")
            assert file.url.endswith("/" + file.path.rsplit("/")[-1])
            assert set(file.splits) & set(source.images)


def test_names_and_splits_that_are_wrong() -> None:
    with pytest.raises(
        InvalidInput, match=r"unknown data set 'cifar-10'; known: .*npz:PATH.* Did you mean 'cifar10'\?"
    ):
        load("cifar-10")
    with pytest.raises(InvalidInput, match="split must be 'train' or 'test'; got 'val'"):
        load("digits", "val")
    with pytest.raises(InvalidInput, match="textures has no split 'train'; it has 'test'"):
        load("textures", "train")
    assert load("digits").labels.size == 1297
    assert load("photos").labels.size == 500  # its only split


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["", "; d.load('digits'); d.load('gaussian', like=d.load('digits')); d.list_sets()"])
def test_data_needs_numpy_alone(use: str) -> None:
    code = f"import sys, normscale.bench.data as d{use}; print(*{{m.split('.')[0] for m in sys.modules}})"
    loaded = python(code).stdout.split()
    assert "numpy" in loaded
    assert not {"torch", "torchvision", "PIL", "rich", "typer", "matplotlib", "scipy"} & set(loaded)


def test_without_pillow_pictures_ask_for_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['PIL'] = None\nimport normscale.bench.data as d\n"
        "from normscale.errors import MissingExtra\n"
        f"try: d.from_folder({str(tmp_path)!r})\nexcept MissingExtra as error: print(error)"
    )
    (tmp_path / "a.png").write_bytes(picture(1, kind="PNG"))
    said = python(code).stdout
    assert "pictures need Pillow; pip install 'normscale[torch]'" in said


def test_the_root_is_the_argument_the_variable_or_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert loading.data_root(tmp_path) == tmp_path
    assert loading.data_root() == tmp_path / "root"
    monkeypatch.delenv("NORMSCALE_DATA")
    assert loading.data_root() == Path.home() / ".cache" / "normscale"
    assert loading.data_root("~/x") == Path.home() / "x"
