"""The page in a real browser: nothing is fetched, nothing fails, figures are drawn, tables sort, all of it can be read.

`make test` installs Debian's chromium where it can. Where apt-get is there and chromium is not, this fails.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from partialsgd.lab.page import write_page
from tests.lab.page import example_runs

Open: TypeAlias = Callable[..., Page]

PHONE, DESK = 390, 1280

_FIGURES = """() => [...document.querySelectorAll("figure > svg")].map((figure) => ({
  ...figure.getBoundingClientRect().toJSON(),
  role: figure.getAttribute("role"),
  lines: [...figure.querySelectorAll("g[id*=line2d] > path")].map((line) => line.getBoundingClientRect().width),
}))"""
_CONTRAST = """() => {
  const light = (rgb) => rgb.match(/[0-9.]+/g).slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return color === "rgba(0, 0, 0, 0)" && element.parentElement ? behind(element.parentElement) : color;
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) =>
    !element.closest("script, style, desc, title")
    && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()));
  return Math.min(...texts.map((element) => {
    const style = getComputedStyle(element);
    const front = element.closest("svg") ? style.fill : style.color;
    const [low, high] = [light(front), light(behind(element))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  }));
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        if shutil.which("apt-get") is not None:
            pytest.fail("chromium is not installed, and apt-get is there: `make browser` installs it")
        pytest.skip("there is neither chromium nor apt-get to install it with")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of one run, of three, and of one that is not at its end; in each, markup where text belongs."""
    folder = tmp_path_factory.mktemp("runs")
    joint, core, full = example_runs.three(folder)
    extras = example_runs.samples(["core", "full"], example_runs.HOSTILE)
    hostile = example_runs.run(folder, "a name that is long and has <script>alert(1)<", extras=extras)
    half = example_runs.run(folder, "half", ends=False)
    chosen = {"one": [hostile], "three": [joint, core, full], "half": [half]}
    return {name: write_page(runs, folder / f"{name}.html") for name, runs in chosen.items()}


@pytest.fixture
def shown(browser: Browser, pages: dict[str, Path]) -> Iterator[Open]:
    """Opens a page; in the end nothing may have been said on the console, failed or been asked of anyone."""
    complaints: list[str] = []
    asked: list[str] = []
    opened: list[tuple[Any, str]] = []

    def open_(name: str, width: int = DESK, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 844}, **options)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(pages[name].as_uri())
        opened.append((context, pages[name].as_uri()))
        return page

    yield open_
    for context, _ in opened:
        context.close()
    assert complaints == []
    assert asked == [uri for _, uri in opened]


@pytest.mark.parametrize(("name", "count"), [("one", 8), ("three", 8), ("half", 7)])
def test_all_figures_are_drawn(shown: Open, name: str, count: int) -> None:
    drawn = shown(name).evaluate(_FIGURES)
    assert len(drawn) == count
    for figure in drawn:
        assert figure["width"] > 150 and figure["height"] > 100 and figure["role"] == "img"
        assert figure["lines"] and max(figure["lines"]) > 0.25 * figure["width"]


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", ["one", "three", "half"])
def test_the_page_does_not_scroll_sideways(shown: Open, name: str, width: int) -> None:
    page = shown(name, width)
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    ends = "[...document.querySelectorAll('section > *, figure, dl')].map((e) => e.getBoundingClientRect().right)"
    assert page.evaluate(f"Math.max(...{ends})") <= width


def test_letters_of_figures_can_be_read_on_a_phone(shown: Open) -> None:
    page = shown("three", PHONE)
    sizes = page.evaluate("[...document.querySelectorAll('figure text')].map((e) => e.getBoundingClientRect().height)")
    assert len(sizes) > 50 and min(sizes) >= 11


def column(page: Page, number: int) -> list[str]:
    cells = page.locator("table.sorts").first.locator(f"tbody tr > :nth-child({number})")
    return [cell.replace("\xa0", " ") for cell in cells.all_inner_texts()]


@pytest.mark.parametrize("how", ["click", "Enter", "Space"])
def test_the_table_sorts_both_ways_by_click_and_by_keyboard(shown: Open, how: str) -> None:
    page = shown("three")
    assert column(page, 3) == ["21.50", "30.12", "20.00", "30.12"]
    button = page.get_by_role("button", name="BLEU")
    head = page.locator("table.sorts th", has=button)

    def press() -> None:
        if how == "click":
            button.click()
        else:
            button.focus()
            page.keyboard.press(how)

    assert head.get_attribute("aria-sort") == "none"
    press()
    assert column(page, 3) == ["20.00", "21.50", "30.12", "30.12"] and head.get_attribute("aria-sort") == "ascending"
    press()
    assert column(page, 3) == ["30.12", "30.12", "21.50", "20.00"] and head.get_attribute("aria-sort") == "descending"
    assert page.locator("th[aria-sort='descending'], th[aria-sort='ascending']").count() == 1


def test_numbers_sort_as_numbers_words_as_words_and_what_is_missing_comes_last(shown: Open) -> None:
    page = shown("three")
    page.get_by_role("button", name="parameters").click()
    assert column(page, 4) == ["1,000", "1,000", "10,000", "10,000"]
    page.get_by_role("button", name="run", exact=True).click()
    assert column(page, 1) == ["core-alone", "full-alone", "joint", "joint"]
    for _ in range(2):  # up and down
        page.get_by_role("button", name="share").click()
        assert column(page, 5)[-1] == "–"


def test_light_and_dark_can_both_be_read(shown: Open) -> None:
    papers = set()
    for scheme in ("light", "dark"):
        for name in ("one", "half"):
            page = shown(name, color_scheme=scheme)
            page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
            assert page.evaluate(_CONTRAST) >= 4.5
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(papers) == 2


def test_on_paper_nothing_is_folded_and_no_table_is_cut(shown: Open) -> None:
    page = shown("three", 700, color_scheme="dark")
    inner = page.locator("details table").first
    assert not inner.is_visible()
    page.emulate_media(media="print")
    assert all(
        box is not None and box["height"] > 20
        for box in (each.bounding_box() for each in page.locator("details > div").all())
    )
    assert inner.is_visible() and page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(
        "[...document.querySelectorAll('.box')].every((e) => getComputedStyle(e).overflowX === 'visible')"
    )
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")  # for browsers that know no ::details-content
    assert page.locator("details:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 0


def test_a_script_in_a_sample_or_a_name_stays_text(shown: Open) -> None:
    page = shown("one")
    assert "taken" not in page.title() and page.locator("script").count() == 1 and page.locator("img").count() == 0
    assert '<script>document.title="taken"</script>' in page.locator("dl.sample").first.inner_text()
    assert "<script>alert(1)<" in page.locator("h1").inner_text()


def test_a_script_that_came_in_all_the_same_would_not_run(browser: Browser, tmp_path: Path) -> None:
    path = write_page([example_runs.run(tmp_path)], tmp_path / "r.html")
    path.write_text(path.read_text().replace("<main>", "<main><script>document.title = 'taken'</script>"))
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.title() == "joint · partialsgd"
    page.close()
