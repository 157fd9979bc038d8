"""The page in a real browser, with a real server and a real stream: it lives, can be operated, and asks nobody else."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import normscale as ns
from guard.server.running import INFER, tensors
from guard.server.warm_start import start_program
from normscale._validate import FloatArray
from normscale.guard.server.tokens import add_token

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine (apt-get install chromium)")

PAGE = {
    file.name: file.read_text("utf-8") for file in resources.files("normscale.guard.server").joinpath("page").iterdir()
}
SAMPLE = ns.load_sample()
NAMES = ("<script>document.title='gone'</script>", "<b>one</b>", "two", "three", "four", "five", "six", "seven")
BLOCK = 40  # rows of a request; the guard keeps every score of such a small one
PATIENCE = 20_000  # milliseconds


class Server:
    """``normscale serve`` in a process of its own, and what was sent to it."""

    def __init__(self, guard: Path, log: Path, *options: str, port: int = 0) -> None:
        self.log = log
        self.token = ""
        self.rows, self.scores = np.empty((0, 0)), np.empty(0)
        words = ["serve", str(guard), "--port", str(port), *options]
        environment = {name: value for name, value in os.environ.items() if name != "NORMSCALE_TOKEN"}
        environment["NORMSCALE_KERNELS"] = "numpy"  # starts at once
        log.write_bytes(b"")
        self.process = start_program(words, environment, log)
        self.address = self._wait()
        self.port = int(self.address.rpartition(":")[2])

    def _wait(self) -> str:
        """Until it answers, at the address that it tells."""
        deadline = time.monotonic() + PATIENCE / 1000
        while self.process.poll() is None and time.monotonic() < deadline:
            told = re.search(r"http://[^/]+", self.log.read_text())
            try:
                if told:
                    urllib.request.urlopen(f"{told[0]}/v2/health/live", timeout=5).close()
                    return told[0]
            except OSError:
                pass
            time.sleep(0.03)
        self.stop()
        return pytest.fail(f"the server did not start: {self.log.read_text()}")

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)

    def send(self, rows: FloatArray) -> None:
        """In small requests."""
        blocks = np.array_split(rows, range(BLOCK, len(rows), BLOCK))
        answers = [self.ask("POST", INFER, tensors(block))["outputs"][0]["data"] for block in blocks]
        self.scores = np.concatenate([self.scores, *answers])
        self.rows = np.concatenate([self.rows.reshape(-1, rows.shape[1]), rows])

    @property
    def threshold(self) -> float:
        return float(self.ask("GET", "/v1/state")["threshold"]["value"])


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    detector = ns.NormScaling().fit(SAMPLE.train)
    detector.class_names = NAMES
    path = tmp_path_factory.mktemp("guard") / "guard.safetensors"
    detector.set_threshold(SAMPLE.validation).save(path)
    return Path(path)


@pytest.fixture(scope="module")
def busy(guard: Path) -> Iterator[Server]:
    """A server that has seen some digits and a little noise; tests may send more, and leave the threshold as it was."""
    server = Server(guard, guard.with_name("busy.log"), "--store", ":memory:")
    server.send(np.concatenate([SAMPLE.test.logits[:280], SAMPLE.ood["gaussian_noise"].logits[:40]]))
    yield server
    server.stop()


@pytest.fixture
def start(guard: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers that end with the test."""
    servers: list[Server] = []

    def started(file: Path = guard, *options: str, store: str = ":memory:", port: int = 0) -> Server:
        log = tmp_path / f"server{len(servers)}.log"
        servers.append(Server(file, log, "--store", store, *options, port=port))
        return servers[-1]

    yield started
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as begun:
        root = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        chromium = begun.chromium.launch(executable_path=CHROMIUM, args=root)
        yield chromium
        chromium.close()


@pytest.fixture
def look(browser: Any) -> Iterator[Any]:
    """Opens the page of a server; afterwards nothing must have gone wrong, nor been asked of anybody else."""
    contexts: list[Any] = []
    problems: list[str] = []
    requests: list[str] = []
    origins: set[str] = set()
    expected: list[str] = []

    def opened(
        server: Server, width: int = 1280, scheme: str = "light", may_say: str = "", locale: str = "en-GB"
    ) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, locale=locale)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        origins.add(server.address)
        expected.append(may_say)
        page.goto(server.address + "/")
        return page

    yield opened
    for context in contexts:
        context.close()
    allowed = [text for text in expected if text]
    assert [text for text in problems if not any(part in text for part in allowed)] == []
    assert {re.sub(r"(//[^/]+).*", r"\1", url) for url in requests if not url.startswith("data:")} <= origins


def says(page: Any, selector: str, text: str | re.Pattern[str]) -> None:
    """Wait until the element shows the text."""
    playwright.expect(page.locator(selector)).to_contain_text(text, timeout=PATIENCE)


def shown(page: Any, selector: str) -> str:
    text: str = page.locator(selector).inner_text()
    return text.replace("\u00a0", " ").replace("−", "-")


def shown_in(element: Any, selector: str) -> str:
    text: str = element.locator(selector).inner_text()
    return text


def number(text: str) -> float:
    return float(text.replace("−", "-").replace(",", "").replace("+", "").removesuffix("%"))


def column(page: Any, table: str, title: str, after: str = "") -> list[str]:
    """The texts of a column: the first of that title, or the first behind the column ``after``."""
    titles = [text.strip() for text in page.locator(f"{table} thead th").all_inner_texts()]
    place = titles.index(title, titles.index(after) if after else 0) + 1
    texts: list[str] = page.locator(f"{table} tbody tr > :nth-child({place})").all_inner_texts()
    return [text.replace("\u00a0", " ").strip() for text in texts]


def value(page: Any) -> float:
    """Where the threshold stands on the page."""
    return float(page.locator("#threshold").get_attribute("aria-valuenow"))


def test_it_comes_to_life_with_the_first_row_and_again_after_a_lost_connection(
    start: Any, tmp_path: Path, look: Any
) -> None:
    store = str(tmp_path / "store.sqlite")
    server = start(store=store)
    page = look(server, may_say="Failed to load resource")
    says(page, "#status-title", "Waiting for the first row")
    assert not page.locator("#filled").is_visible()
    address, *options = shlex.split(shown(page, "#curl").replace("\\\n", ""))[1:]  # the hint must work
    assert options[::2] == ["-H", "-d"]
    assert (
        len(server.ask("POST", address.removeprefix(server.address), json.loads(options[3]))["outputs"][0]["data"]) == 1
    )
    says(page, "#status-title", "Running on live statistics")
    assert shown(page, "#scored") == "1"
    marked = page.evaluate("document.body.dataset.marked = 'never reloaded'")
    server.send(SAMPLE.test.logits[:120])
    says(page, "#scored", "121")
    says(page, "#rows", "121")
    says(page, "#connection", "live")
    assert page.locator("#filled").is_visible()
    assert re.match(r"\d.* / \d.* ms", shown(page, "#latency"))
    assert number(shown(page, "#rows-per-second")) > 0
    server.stop()
    says(page, "#connection", "Connection lost. Trying again.")
    start(store=store, port=server.port).send(SAMPLE.test.logits[120:140])
    says(page, "#connection", "live")
    says(page, "#scored", "141")
    assert page.evaluate("document.body.dataset.marked") == marked


def test_every_figure_is_the_streams_own(busy: Server, look: Any) -> None:
    page = look(busy)
    n, rows, scores = len(busy.scores), busy.rows.astype(float), busy.scores
    flagged = scores > busy.threshold
    assert 0.02 < flagged.mean() < 0.5
    says(page, "#timeline-summary", f"{flagged.sum()} of {n} rows flagged in 10 minutes")
    says(page, "#scores-summary", f"flags {100 * flagged.mean():.1f}\u00a0% of the last {n} rows")
    says(page, "#histogram text.flagged", f"{100 * flagged.mean():.1f}\u00a0%")
    says(page, "#histogram text.kept", f"{100 - 100 * flagged.mean():.1f}\u00a0%")

    latest = np.flatnonzero(flagged)[::-1][:20]
    predicted = rows.argmax(1)
    assert column(page, "#flagged", "Predicted") == [NAMES[predicted[row]] for row in latest]
    listed = [number(text) for text in column(page, "#flagged", "Score")]
    np.testing.assert_allclose(listed, scores[latest], atol=0.006)
    above = [number(text.removeprefix("+")) for text in column(page, "#flagged", "Above by")]
    np.testing.assert_allclose(above, scores[latest] - busy.threshold, atol=0.006)
    says(page, "#normal", "Normal is about 5.0\u00a0% of the rows flagged")

    classes = [NAMES.index(text) for text in column(page, "#classes", "Class")]
    assert sorted(classes) == list(range(8))
    train = SAMPLE.train.logits.astype(float)
    mean, std = train.mean(0), train.std(0)
    running = (1000.0 * mean + rows.sum(0)) / (1000.0 + n)  # training counts as a thousand rows
    shift = (running - mean) / std
    table = {
        ("Shift / σ", ""): shift,
        ("Mean", ""): running,
        ("training", "Mean"): mean,
        ("training", "Std"): std,
        ("training", "Share"): 100 * np.bincount(train.argmax(1), minlength=8) / len(train),
    }
    for (title, after), expected in table.items():
        listed = [number(text.removesuffix(" %")) for text in column(page, "#classes", title, after)]
        np.testing.assert_allclose(listed, expected[classes], rtol=0.006, atol=0.06 if after == "Share" else 0.006)
    assert np.all(np.diff(np.abs(shift[classes])) <= 0)  # the most shifted first


def test_names_are_text(busy: Server, look: Any) -> None:
    page = look(busy)
    says(page, "#classes", NAMES[0])
    says(page, "#classes", NAMES[1])
    says(page, "#flagged", "seven")
    assert page.locator("main script, main b").count() == 0
    assert "gone" not in page.title()


def test_a_dragged_threshold_shows_what_it_would_flag_and_is_saved(busy: Server, look: Any) -> None:
    before = busy.threshold
    page = look(busy)
    says(page, "#scores-summary", f"of the last {len(busy.scores)} rows")
    assert page.locator("#save").get_attribute("aria-disabled") == "true"
    height = page.evaluate("document.documentElement.scrollHeight")
    grip = page.locator("#threshold .grip").bounding_box()
    page.mouse.move(grip["x"] + 9, grip["y"] + 9)
    page.mouse.down()
    page.mouse.move(grip["x"] - 110, grip["y"] + 30, steps=6)
    tried = value(page)
    assert tried < before - 0.1

    def sentence() -> str:
        share, now = (f"{100 * (busy.scores > limit).mean():.1f}\u00a0%" for limit in (tried, before))
        return f"would flag {share} of the last {len(busy.scores)} rows (now {now})"

    says(page, "#scores-summary", sentence())
    assert sentence() in page.locator("#threshold").get_attribute("aria-valuetext")
    busy.send(SAMPLE.test.logits[280:300])
    says(page, "#scores-summary", sentence())  # the view that came did not take the line out of the hand
    assert value(page) == tried
    assert page.evaluate("document.documentElement.scrollHeight") == height  # nothing jumps
    page.mouse.up()
    assert busy.threshold == before  # until it is saved
    page.locator("#save").click()
    says(page, "#threshold-note", "Saved")
    assert busy.threshold == tried
    page.locator("#own").click()
    assert value(page) == before
    page.locator("#revert").click()
    assert value(page) == tried
    page.locator("#own").click()
    page.locator("#save").click()
    says(page, "#threshold-note", f"{before:.3f}")
    assert (
        busy.ask("GET", "/v1/state")["threshold"]["keep"] == 0.95
    )  # the detector file's own again, not a number like it


def test_the_keyboard_alone_is_enough(busy: Server, look: Any) -> None:
    before = busy.threshold
    page = look(busy)
    says(page, "#scores-summary", f"of the last {len(busy.scores)} rows")
    slider = page.locator("#threshold")
    for _ in range(30):  # reached by the Tab key, as a person would
        page.keyboard.press("Tab")
        if slider.evaluate("one => one === document.activeElement"):
            break
    assert slider.evaluate("one => one === document.activeElement")
    page.keyboard.press("End")
    assert value(page) == float(slider.get_attribute("aria-valuemax")) > before
    page.keyboard.press("Home")
    assert value(page) == float(slider.get_attribute("aria-valuemin")) < before
    page.keyboard.press("Escape")
    assert value(page) == before
    page.keyboard.press("ArrowRight")
    step = value(page) - before
    assert step > 0
    page.keyboard.press("PageDown")
    assert value(page) == pytest.approx(before - 9 * step, abs=step)
    tried = value(page)
    page.keyboard.press("Tab")  # the field for its value
    page.keyboard.press("Enter")
    says(page, "#threshold-note", "Saved")
    assert busy.threshold == tried
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("0.25")
    assert value(page) == 0.25
    busy.ask("PUT", "/v1/threshold", {"value": None})
    page.locator("#classes thead button").first.focus()
    page.keyboard.press("Enter")
    says(page, "#said", "sorted by Class, lowest first")
    assert column(page, "#classes", "Class")[2:] == sorted(NAMES[2:])
    page.keyboard.press("Enter")
    assert column(page, "#classes", "Class")[:6] == sorted(NAMES[2:], reverse=True)


def test_a_frozen_guard_is_plain_to_see_and_is_thawed_after_a_second_look(start: Any, look: Any) -> None:
    server = start()
    server.send(SAMPLE.test.logits[:120])
    page = look(server)
    says(page, "#status-title", "Running on live statistics")
    assert not page.locator("[data-action=thaw]").is_visible()
    test = SAMPLE.test.logits
    server.send(np.tile(test[test.argmax(1) == 7], (15, 1))[:600])
    says(page, "#status-title", re.compile(r"Frozen since \d\d:\d\d$"))
    says(page, "#status-text", re.compile(r"\d+ % of the recent rows are flagged by what the stream has taught alone"))
    assert page.locator("#status").get_attribute("data-state") == "frozen"
    assert page.title().startswith("Frozen since")
    playwright.expect(page.locator("#gauges .alarmed").first).to_contain_text("in training")
    state = server.ask("GET", "/v1/state")
    for alarm in state["frozen_by"]:  # what froze it, as it was then
        label = next(one["label"] for one in state["readings"] if one["name"] == alarm["name"])
        gauge = page.locator("#gauges .cause", has_text=re.compile(label, re.IGNORECASE)).first
        playwright.expect(gauge.locator(".froze")).to_have_text(
            re.compile(rf"When it froze: [\d.]+, beyond the limit of {alarm['limit']:g}")
        )
        assert float(shown_in(gauge, ".froze").split()[3].rstrip(",")) == pytest.approx(alarm["value"], rel=0.06)
    assert page.locator("#gauges .cause").count() == len(state["frozen_by"]) > 0
    says(page, "#status-text", "It thaws by itself after 1,000 rows well below the limits: 0 so far, 1,000 to come.")
    says(page, "#advice", "Wait until it thaws, or thaw it once the cause is known.")
    says(page, "#happened li:first-child strong", "Frozen")
    assert page.locator('#happened [data-event="alarm"]').count() > 0
    says(page, "#thaw-does", "New rows are taken in again.")  # before anything is pressed
    assert not page.locator("#dialog").is_visible()
    kept_out = server.ask("GET", "/v1/state")["kept_out"]
    assert kept_out > 0
    says(page, "#kept-out", str(kept_out))
    assert page.locator("#timeline .kept-out").get_attribute("d")
    page.locator("[data-action=thaw]").click()
    page.locator("#dialog-no").click()
    assert server.ask("GET", "/v1/state")["mode"] == "frozen"
    page.locator("[data-action=thaw]").click()
    page.locator("#dialog-yes").click()
    says(page, "#status-title", "Running on live statistics")
    titles = page.locator("#happened strong")
    playwright.expect(titles.first).to_have_text("Thawed")
    says(page, "#happened li:first-child span", "By 127.0.0.1.")


def test_tokens_are_asked_for_and_stay_in_the_tab(start: Any, guard: Path, tmp_path: Path, look: Any) -> None:
    tokens = str(tmp_path / "tokens.jsonl")
    read, admin = (add_token(tokens, role, role) for role in ("read", "admin"))
    server = start(guard, "--tokens", tokens)
    server.token = admin
    server.send(SAMPLE.test.logits[:80])
    page = look(server, may_say="Failed to load resource")
    field = page.locator("#dialog-label input")

    def give(token: str) -> None:
        playwright.expect(page.locator("#dialog-title")).to_have_text("A token, please")
        playwright.expect(field).to_be_focused()
        playwright.expect(field).to_have_value("")
        page.keyboard.insert_text(token)
        page.keyboard.press("Enter")

    says(page, "#dialog-text", "this needs a token")
    page.keyboard.press("Escape")
    says(page, "#connection", "A token is needed.")
    assert shown(page, "#scored") == "–"
    page.locator("#retry").click()
    give("nsk_not_the_right_one_at_all")
    give(read)
    says(page, "#scored", "80")
    page.locator("#threshold").focus()
    page.keyboard.press("PageDown")
    page.locator("#save").click()
    says(page, "#dialog-text", "a token of role read may not do this")
    give(admin)
    says(page, "#threshold-note", "Saved")
    assert server.threshold == value(page)
    assert field.input_value() == ""
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    says(page, "#scored", "80")
    assert not page.locator("#dialog").is_visible()
    assert admin not in page.content()


def test_a_thousand_classes(start: Any, tmp_path: Path, look: Any) -> None:
    random = np.random.default_rng(0)
    logits = random.normal(size=(600, 1000)) + 8 * np.eye(1000)[random.integers(1000, size=600)]
    path = tmp_path / "many.safetensors"
    ns.NormScaling().fit(logits[:500]).set_threshold(logits[500:]).save(path)
    server = start(path)
    server.send(logits[:20])
    page = look(server)
    says(page, "#classes-summary", "20 of 1,000 classes, the most shifted first.")
    assert page.locator("#classes tbody tr").count() == 20
    page.locator("#show-all").click()
    names = page.locator("#classes tbody th").evaluate_all("all => all.map(one => one.textContent)")
    assert sorted(names, key=int) == [str(index) for index in range(1000)]


def test_a_detector_without_running_statistics(start: Any, tmp_path: Path, look: Any) -> None:
    path = tmp_path / "energy.safetensors"
    ns.Energy().fit(SAMPLE.train).set_threshold(SAMPLE.validation, per_class=True).save(path)
    server = start(path)
    server.send(np.concatenate([SAMPLE.test.logits[:100], SAMPLE.ood["photo_patches"].logits[:20]]))
    page = look(server)
    says(page, "#status-title", "Running on training statistics")
    says(page, "#classes-summary", "8 classes.")
    assert not page.locator("#classes th", has_text="Shift").is_visible()
    assert not page.locator("[data-action]:visible").count()
    limits = np.array(server.ask("GET", "/v1/state")["threshold"]["per_class"])
    flagged = server.scores > limits[server.rows.argmax(1)]
    assert flagged.sum() != (server.scores > server.threshold).sum()
    says(page, "#scores-summary", f"flags {100 * flagged.mean():.1f}\u00a0% of the last 120 rows")
    says(page, "#scores-summary", "Each class has its own threshold; saving one replaces them all.")


def test_a_detector_whose_running_statistics_are_no_moments_fits_a_phone(start: Any, tmp_path: Path, look: Any) -> None:
    path = tmp_path / "robust.safetensors"
    ns.RobustNormScaling().fit(SAMPLE.train).set_threshold(SAMPLE.validation).save(path)
    server = start(path)
    server.send(np.concatenate([SAMPLE.test.logits[:240], SAMPLE.ood["unseen_digits"].logits[:20]]))
    page = look(server, 390, locale="en-US")
    says(page, "#scored", "260")
    for label in ("running shift", "running spread"):
        gauge = page.locator("#gauges .gauge", has=page.locator(f'.meter[aria-label="{label}"]'))
        playwright.expect(gauge).to_contain_text("This detector keeps no moments of the logits.", timeout=PATIENCE)
    times = column(page, "#flagged", "Time")
    assert times
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", text) for text in times), "no AM or PM, which a phone cuts"
    fits = "all => all.every(one => one.scrollWidth <= one.clientWidth)"
    assert page.locator("#flagged tbody td:first-child").evaluate_all(fits)
    row, last = (
        page.locator(f"#classes tbody tr:first-child{part}").bounding_box() for part in ("", " > :nth-child(3)")
    )
    assert last["x"] + last["width"] == pytest.approx(row["x"] + row["width"], abs=1)
    form, save = (page.locator(selector).bounding_box() for selector in ("#threshold-form", "#save"))
    assert form["y"] + form["height"] - save["y"] - save["height"] < 20, "nothing empty below the buttons"
    page.locator("#threshold").press("ArrowRight")
    playwright.expect(page.locator("#own")).to_be_visible()


def test_the_running_statistics_are_read_too(busy: Server, look: Any) -> None:
    page = look(busy)
    says(page, "#scored", str(len(busy.scores)))
    values = {one["label"]: one["value"] for one in busy.ask("GET", "/v1/state")["readings"]}
    for label in ("running shift", "running spread", "stream only flags"):
        assert values[label] is not None
        gauge = page.locator(f'#gauges .meter[aria-label="{label}"]')
        playwright.expect(gauge).to_have_attribute("aria-valuetext", re.compile(r"[\d.]+, alarm at"), timeout=PATIENCE)
        assert float(gauge.get_attribute("aria-valuenow")) == pytest.approx(values[label], abs=1e-6)


def test_no_column_is_cut_off_and_no_card_is_half_empty(busy: Server, look: Any) -> None:
    for width in (390, 1300):
        page = look(busy, width)
        says(page, "#scored", str(len(busy.scores)))
        boxes = page.locator(".scroll").evaluate_all(
            "all => all.map(one => [one.id, one.scrollWidth, one.clientWidth])"
        )
        assert [box for box in boxes if box[1] > box[2]] == [], width
        titles = page.locator("#classes thead th").evaluate_all(
            "all => all.map(one => one.getBoundingClientRect()).map(box => [box.left, box.right])"
        )
        assert len(titles) == 8
        assert all(0 <= left < right <= width for left, right in titles)
        empty = page.evaluate(
            """() => ["classes", "flagged"].map(id => {
                const table = document.getElementById(id), card = table.closest(".card");
                return card.getBoundingClientRect().bottom - table.getBoundingClientRect().bottom;
            })"""
        )
        assert max(empty) < 60, f"pixels of nothing below the tables at {width}: {empty}"


def test_telephone_dark_and_nothing_foreign(busy: Server, look: Any) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        page = look(busy, 390, scheme)
        fetched: set[str] = set()
        page.on("request", lambda request, found=fetched: found.add(request.url.removeprefix(busy.address)))
        page.reload()
        says(page, "#scored", str(len(busy.scores)))
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert fetched == {"/", "/v1/live", *(f"/page/{name}" for name in PAGE if name != "index.html")}
        sizes = page.locator("button:visible, input:visible").evaluate_all("all => all.map(one => one.offsetHeight)")
        assert min(sizes[:5]) >= 32  # for fingers
        colours = page.evaluate(
            "(({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(document.body))"
        )
        grounds[scheme], ink = (sum(map(int, text[4:-1].split(", "))) / 765 for text in colours)
        assert abs(grounds[scheme] - ink) > 0.7
    assert grounds["light"] > 0.9 > 0.2 > grounds["dark"]


def test_events_come_out_whole_however_the_stream_is_cut(busy: Server, look: Any) -> None:
    page = look(busy)
    text = (
        ": alive\r\n\r\nevent: view\r\ndata: 0\r\n\r\nevent: view\rdata: {\rdata:  1}\r\r"
        "event:view\nid: 3\ndata:äöü €\n\ndata\n\nevent: lost\n\ndata: half"
    )
    read = """async ([text, size]) => {
        const { events } = await import("/page/events.js");
        const bytes = new TextEncoder().encode(text);
        const body = new ReadableStream({ start(to) {
            for (let k = 0; k < bytes.length; k += size) to.enqueue(bytes.slice(k, k + size));
            to.close();
        } });
        const found = [];
        for await (const one of events(body)) found.push([one.type, one.data]);
        return found;
    }"""
    expected = [["comment", " alive"], ["view", "0"], ["view", "{\n 1}"], ["view", "äöü €"], ["message", ""]]
    for size in (1, 2, 3, 7, 1000):
        assert page.evaluate(read, [text, size]) == expected


def test_rows_far_outside_of_training_do_not_squeeze_the_other_scores(busy: Server, look: Any) -> None:
    ranges = """async () => {
        const { range } = await import("/page/scale.js");
        const far = Array(20).fill(3e38);
        return [range([...Array(80).fill(-2), 1.2, ...far], [0.5]), range(far, [0.5])];
    }"""
    (low, high), (below, above) = look(busy).evaluate(ranges)
    assert -4 < low <= -2 < 1.2 <= high < 4
    assert -1 < below < 0.5 < above < 2


def test_the_files_are_small_and_never_turn_data_into_markup() -> None:
    assert sum(len(text.encode()) for text in PAGE.values()) < 72_000
    for name, text in PAGE.items():
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
        assert set(re.findall(r"https?://[\w./]+", text)) <= {"http://www.w3.org/2000/svg"}, name
    assert not re.search(r"\sstyle=|\son\w+=|<script>", PAGE["index.html"])
