"""The page in a real browser, from the file system, with nothing but its own files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_records as made
import pytest

from perflab import store, workspace
from perflab.present import pages
from perflab.record import Record

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync"]  # fmt: skip
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here (Debian: apt install chromium)")

POINTS = """() => Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) => [
  chart.dataset.figure, chart.querySelectorAll(".scatterlayer .points path.point").length]))"""
TEXTS = """() => [...document.querySelectorAll(".js-plotly-plot .textpoint text")].map((text) => text.textContent)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """One page opened from its folder, with everything that it asked for and complained of."""

    def __init__(self, browser: Any, folder: Path, records: list[Record]) -> None:
        results = made.write(folder, records)
        place = workspace.find(explicit=ROOT, results=results)
        index = pages.build(store.find(results, None), place, folder / "site")
        self.site = index.parent.resolve().as_uri()
        self.page = browser.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(index.resolve().as_uri())
        self.page.wait_for_selector("html[data-drawn]", state="attached")


@pytest.fixture(scope="module")
def kinds(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Visit:
    return Visit(browser, tmp_path_factory.mktemp("kinds"), made.every_kind())


def test_draws_every_mark_and_asks_for_nothing_else(kinds: Visit) -> None:
    assert kinds.complaints == []
    outside = [url for url in kinds.requests if not url.startswith((kinds.site, "data:", "blob:"))]
    assert outside == []
    samples = 7
    assert kinds.page.evaluate(POINTS) == {"figure-traffic": 5, "figure-latency": 4 + 4 * samples}
    assert kinds.page.locator("tbody tr").count() == len(made.every_kind())


def test_names_are_shown_as_text(kinds: Visit) -> None:
    texts = kinds.page.evaluate(TEXTS)
    assert sum(text.startswith("</script><script>alert(") for text in texts) == 2, "once in each chart"
    assert kinds.page.locator("a[href*='example.org']").count() == 0
    assert kinds.page.locator(f"th[scope=row]:text-is('{made.LONG}')").count() == 1


def test_nothing_moves_when_the_charts_appear(kinds: Visit) -> None:
    shifts = """() => new Promise((done) => new PerformanceObserver((list) =>
      done(list.getEntries().reduce((sum, entry) => sum + entry.value, 0)))
      .observe({ type: "layout-shift", buffered: true }) ?? setTimeout(() => done(0), 500))"""
    assert kinds.page.evaluate(shifts) < 0.01


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (360, "dark")])
def test_fits_the_screen_and_takes_its_colours(width: int, scheme: str, kinds: Visit) -> None:
    kinds.page.set_viewport_size({"width": width, "height": 740})
    kinds.page.emulate_media(color_scheme=scheme)
    page = "document.documentElement"
    assert kinds.page.evaluate(f"{page}.scrollWidth") <= width
    ink = kinds.page.evaluate("getComputedStyle(document.body).color")
    assert kinds.page.evaluate("getComputedStyle(document.querySelector('.textpoint text')).fill") == ink
    kinds.page.wait_for_function(f"document.querySelector('.chart svg').clientWidth <= {width}")
    assert kinds.complaints == []


def test_the_reader_chooses_the_group(browser: Any, tmp_path: Path) -> None:
    sizes = [(1024, 4), (65536, 4), (1024, 2)]
    records = [made.record(f"a/{stem}", {"T": tokens, "n": n, "C": 2560}) for tokens, n in sizes
               for stem in ("eager", "compiled")]  # fmt: skip
    visit = Visit(browser, tmp_path, [*records, made.record("b/eager", dtype="fp32")])
    page = visit.page

    def titles() -> list[str]:
        return [
            text.partition(" bf16")[0].partition(" fp32")[0] for text in page.evaluate(TEXTS) if text.startswith("T=")
        ]

    assert titles() == 2 * ["T=65536 n=4 C=2560", "T=1024 n=4 C=2560"], "b has one group, which is always shown"
    page.select_option("select[name=T]", "1024")
    assert titles() == 2 * ["T=1024 n=4 C=2560", "T=1024 n=4 C=2560"]
    assert page.evaluate(POINTS) == {"figure-traffic": 3, "figure-latency": 3 * (1 + 7)}
    assert page.text_content("#unmatched") == ""
    page.select_option("select[name=n]", "2")
    page.select_option("select[name=T]", "65536")
    assert page.text_content("#unmatched") == "Nothing was measured with this choice for: a"
    assert visit.complaints == []
