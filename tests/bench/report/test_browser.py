"""The page in a real browser: it sorts, fits a telephone, follows the colour scheme, and asks nothing of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from normscale.bench.experiments.run_folder import RunFolder
from normscale.bench.paper.additions import paper_additions
from normscale.bench.report.writing import report

TABLE = "#table-expanded-4"
"""AUROC on every OoD set; the averages of four metrics come before."""


@pytest.fixture
def address(written: RunFolder) -> str:
    return (written.path / "report.html").resolve().as_uri()


def column(page: Any, title: str) -> list[str]:
    """The texts of a column of the expanded table, as shown."""
    titles = page.locator(f"{TABLE} thead th").all_inner_texts()
    place = [text.strip() for text in titles].index(title) + 1
    texts: list[str] = page.locator(f"{TABLE} tbody tr > :nth-child({place})").all_inner_texts()
    return texts


def numbers(texts: list[str]) -> list[float]:
    return [float(text.replace("−", "-")) for text in texts if text != "–"]


def test_a_click_sorts_by_number_and_another_turns_it_round(open_page: Any) -> None:
    page = open_page()
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    header = page.locator(f"{TABLE} thead th", has_text="Ours − paper")
    assert header.get_attribute("aria-sort") == "none"
    before = column(page, "Ours − paper")
    header.locator("button").click()
    falling = column(page, "Ours − paper")
    assert header.get_attribute("aria-sort") == "descending"
    assert numbers(falling) == sorted(numbers(before), reverse=True)
    assert min(numbers(falling)) < 0 < max(numbers(falling))  # as words, −0.1 and −0.2 would come the wrong way round
    header.locator("button").click()
    rising = column(page, "Ours − paper")
    assert header.get_attribute("aria-sort") == "ascending"
    assert numbers(rising) == sorted(numbers(before))
    n_none = before.count("–")
    assert n_none > 0
    assert rising[-n_none:] == falling[-n_none:] == ["–"] * n_none  # nothing comes last either way
    assert "sorted by Ours − paper, lowest first" in page.locator("#said").inner_text()


def test_rows_stay_whole(open_page: Any) -> None:
    page = open_page()
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    rows = f"{TABLE} tbody tr"
    before = page.locator(rows).all_inner_texts()
    page.locator(f"{TABLE} thead button", has_text="Method").click()
    after = page.locator(rows).all_inner_texts()
    assert before != after
    assert sorted(before) == sorted(after)
    methods = column(page, "Method")
    assert methods == sorted(methods, key=str.lower)


def test_the_keyboard_sorts_too(open_page: Any) -> None:
    page = open_page()
    button = page.locator("#table-comparison-0 thead button").nth(1)
    button.focus()
    page.keyboard.press("Enter")
    header = page.locator("#table-comparison-0 thead th").nth(1)
    assert header.get_attribute("aria-sort") == "descending"
    page.keyboard.press("Space")
    assert header.get_attribute("aria-sort") == "ascending"
    others = page.locator("#table-comparison-0 thead th").evaluate_all("all => all.map(one => one.ariaSort)")
    assert others.count("none") == len(others) - 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone_need_not_scroll_sideways(open_page: Any, scheme: str) -> None:
    page = open_page(390, scheme)
    for fold in (False, True):
        page.locator("details").evaluate_all(f"all => all.forEach(one => one.open = {str(fold).lower()})")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
    texts = page.locator("figure svg text").evaluate_all("all => all.map(one => one.getBoundingClientRect().height)")
    assert min(texts) > 5  # CSS pixels; the smallest are the tick labels of the score histograms


def test_light_and_dark(open_page: Any) -> None:
    def colours(scheme: str) -> tuple[float, float, float]:
        page = open_page(1200, scheme)
        found = page.evaluate(
            """() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color,
            getComputedStyle(document.querySelector('figure svg text')).fill]"""
        )
        ground, ink, figure_ink = (sum(map(int, text[4:-1].split(", "))) / 765 for text in found)
        return ground, ink, figure_ink

    ground, ink, figure_ink = colours("light")
    assert ground > 0.9
    assert ink == figure_ink < 0.2
    ground, ink, figure_ink = colours("dark")
    assert ground < 0.2
    assert ink == figure_ink > 0.8


def test_the_stress_map_takes_the_pages_colours(open_page: Any) -> None:
    for scheme, ground in (("light", 255), ("dark", 27)):
        page = open_page(1300, scheme)
        assert page.locator("img").count() == 0
        card = page.evaluate("getComputedStyle(document.querySelector('figure.map')).backgroundColor")
        assert card.startswith(f"rgb({ground},")
        fills = page.locator("figure.map svg text").evaluate_all(
            "all => Object.fromEntries(all.map(one => [one.textContent.trim(), getComputedStyle(one).fill]))"
        )
        ink = page.evaluate("getComputedStyle(document.body).color")
        assert fills["shuffled"] == fills["share of OoD rows in the stream"] == ink
        cells = [fill for text, fill in fills.items() if text in ("+.150", ".950")]
        assert len(cells) == 2
        assert set(cells) <= {"rgb(0, 0, 0)", "rgb(255, 255, 255)"}  # by the colour of the cell, whatever the page's


def test_figures_are_large_on_a_desktop_and_fit_a_telephone(open_page: Any) -> None:
    for width, least in ((1300, 480), (390, 320)):
        page = open_page(width)
        widths = page.locator("details[open] figure:not(.map)").evaluate_all("all => all.map(one => one.offsetWidth)")
        assert widths
        assert least <= min(widths)
        assert max(widths) < width


def test_a_column_out_of_sight_shows_that_it_is_there(open_page: Any) -> None:
    page = open_page(390)
    page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
    page.wait_for_timeout(200)
    cut = page.locator(".scroll").evaluate_all(
        "all => all.map(one => [one.scrollWidth > one.clientWidth + 2, one.hasAttribute('data-more'), "
        "getComputedStyle(one).overflowX])"
    )
    assert any(is_cut for is_cut, _, _ in cut)
    assert all(is_cut == told and overflow == "auto" for is_cut, told, overflow in cut)
    more = page.locator(".scroll[data-more]").first
    more.evaluate("one => { one.id = 'cut'; one.scrollLeft = 1e6; }")
    page.wait_for_function("!document.getElementById('cut').hasAttribute('data-more')")


def test_on_paper_everything_is_unfolded(open_page: Any) -> None:
    page = open_page(1200, "dark")
    closed = page.locator("details:not([open])").count()
    assert closed > 0
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.locator("details:not([open])").count() == closed


RESULTS = Path(__file__).parents[3] / "docs" / "results"
RECORDED = [RESULTS / f"{name}-small" for name in ("cifar10", "cifar100", "svhn", "tinyimagenet")]


@pytest.fixture(scope="module")
def joint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page over the recorded runs of the paper's sets."""
    page = report(RECORDED, tmp_path_factory.mktemp("joint"), additions=paper_additions())
    return page.resolve().as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_over_several_runs_fits_too(browser: Any, joint: str, scheme: str) -> None:
    for width in (1300, 390):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        page.goto(joint)
        page.locator("details").evaluate_all("all => all.forEach(one => one.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") == width
        cut = page.locator(".scroll").evaluate_all(
            "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.ariaLabel)"
        )
        assert not cut or width == 390, f"columns are cut off: {cut}"
        context.close()
