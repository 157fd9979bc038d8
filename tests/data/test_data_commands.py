"""The commands ``normscale data list | get | show`` and the contact sheet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from data.making import random_images
from normscale.cli.data import app
from normscale.data import ImageSet, list_sets, load
from normscale.data.sheet import contact_sheet
from normscale.errors import InvalidInput


@pytest.fixture(autouse=True)
def away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMSCALE_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("COLUMNS", "200")


def run(*words: str) -> Any:
    return CliRunner().invoke(app, words, catch_exceptions=False)


def test_list_shows_every_set_and_what_is_here(tmp_path: Path) -> None:
    lines = run("list").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines[1:-1]}
    assert set(rows) == {source.name for source in list_sets()}
    assert rows["digits"].rstrip().endswith("yes")
    assert rows["cifar10"].rstrip().endswith("no")
    assert "170 MB" in rows["cifar10"]
    assert "50000 train + 10000 test" in rows["cifar10"]
    assert "CC BY 4.0" in rows["digits"]
    for split in ("train", "test"):
        path = tmp_path / "root" / "cifar10" / f"{split}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, images=random_images(2, 32, 32, 3), labels=[0, 1])
    row = next(line for line in run("list").stdout.splitlines() if line.startswith("cifar10 "))
    assert row.rstrip().endswith("yes")


def test_get_says_what_needs_no_fetching_and_checks_names_first() -> None:
    said = run("get", "digits", "uniform").stdout
    assert "digits is part of the package; nothing to fetch." in said
    assert "uniform is drawn when it is loaded" in said
    with pytest.raises(InvalidInput, match=r"unknown data set 'svnh'.* Did you mean 'svhn'"):
        run("get", "digits", "svnh")


def test_get_tells_where_it_put_a_set(tmp_path: Path) -> None:
    folder = tmp_path / "root" / "svhn"
    folder.mkdir(parents=True)
    np.savez(folder / "test.npz", images=random_images(2, 32, 32, 3), labels=[0, 1])
    assert run("get", "svhn", "--split", "test").stdout.split() == [
        "svhn:",
        "26032",
        "test",
        "pictures",
        "in",
        str(folder),
    ]


@pytest.mark.parametrize(
    ("words", "size"), [(("digits",), "10 classes"), (("gaussian",), ""), (("uniform", "--like", "digits"), "")]
)
def test_show_writes_a_picture(tmp_path: Path, words: tuple[str, ...], size: str) -> None:
    path = tmp_path / "sheet.png"
    said = run("show", *words, "-o", str(path), "--columns", "5", "--rows", "10").stdout
    with Image.open(path) as image:
        assert f"sheet of {image.width} x {image.height} pixels in {path}" in said
        assert np.asarray(image).std() > 20


def test_show_of_ones_own_and_of_a_wrong_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=random_images(3, 32, 32, 3), labels=[0, 1, 1])
    assert "mine: 3 pictures" in run("show", f"npz:{tmp_path / 'mine.npz'}", "-o", str(tmp_path / "a.jpg")).stdout
    with pytest.raises(InvalidInput, match=r"--output must end in \.png, \.jpg or \.webp; got 'a\.txt'"):
        run("show", "digits", "-o", "a.txt")


# --- the sheet itself -------------------------------------------------------------------------------------------------


def colours(labels: list[int], size: int = 8, **fields: Any) -> ImageSet:
    """Picture i has the colour (i, 100, 200)."""
    images = np.zeros((len(labels), size, size, 3), np.uint8)
    images[..., 0] = np.arange(len(labels))[:, None, None] * 10
    images[..., 1:] = (100, 200)
    return ImageSet("colours", images, np.array(labels), **fields)


def shown(sheet: Image.Image) -> set[int]:
    """Which pictures are on a sheet, by their colours."""
    pixels = np.asarray(sheet).reshape(-1, 3)
    found = pixels[(pixels[:, 1] == 100) & (pixels[:, 2] == 200)]
    return {int(value) // 10 for value in np.unique(found[:, 0])}


def test_a_row_is_a_class_and_its_first_pictures() -> None:
    sheet = contact_sheet(colours([1, 0, 1, 0, 1, -1], class_names=("zero", "one")), columns=2, picture_size=16)
    assert shown(sheet) == {1, 3, 0, 2}
    first = np.asarray(sheet)[:, -20]  # the last column: second picture of class 0 above the second of class 1
    rows = [int(pixel[0]) // 10 for pixel in first if tuple(pixel[1:]) == (100, 200)]
    assert rows == [3] * 16 + [2] * 16


def test_many_classes_are_taken_at_equal_distances_and_no_labels_make_a_grid() -> None:
    assert shown(contact_sheet(colours(list(range(21))), rows=3, columns=1)) == {0, 10, 20}
    assert shown(contact_sheet(colours([-1] * 21), rows=2, columns=3)) == {0, 4, 8, 12, 16, 20}
    assert shown(contact_sheet(colours([-1] * 2), rows=9, columns=9)) == {0, 1}


def test_large_pictures_are_made_smaller() -> None:
    sheet = contact_sheet(colours([0], size=200), columns=1, picture_size=20)
    assert sheet.width < 200
    assert shown(sheet) == {0}


def test_noise_is_shown_through_the_statistics_of_its_network() -> None:
    digits = load("digits", "test")
    noise = load("gaussian", like=digits)
    pixels = np.asarray(contact_sheet(noise, like=digits, columns=20, rows=20))
    assert 20 < np.median(pixels) < 255
    with pytest.raises(InvalidInput, match="'gaussian' is in normalised space; pass like="):
        contact_sheet(noise)


def test_a_sheet_of_nothing_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="'colours' is empty"):
        contact_sheet(colours([0])[:0])
    with pytest.raises(InvalidInput, match="columns must be a whole number >= 1"):
        contact_sheet(colours([0]), columns=0)
