"""The page in a browser: charts are drawn, tables can be sorted, text can be read, and nothing is fetched or fails.

`make test` installs Debian's chromium if it can. The tests fail if apt-get is there and chromium is not.
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
  letters: [...figure.querySelectorAll("text")].map((text) => text.getBoundingClientRect().height),
}))"""
_RIGHT_EDGES = "[...document.querySelectorAll('section > *, figure, dl')].map((e) => e.getBoundingClientRect().right)"
_UNFOLD = "document.querySelectorAll('details').forEach((each) => (each.open = true))"
_PAPER = "getComputedStyle(document.body).backgroundColor"


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
    """Pages about one run with markup in its texts, about three runs, and about an unfinished run."""
    folder = tmp_path_factory.mktemp("runs")
    extras = example_runs.samples(["core", "full"], example_runs.HOSTILE)
    hostile = example_runs.run(folder, "a name that is long and has <script>alert(1)<", extras=extras)
    half = example_runs.run(folder, "half", ends=False)
    runs = {"one": [hostile], "three": example_runs.three(folder), "half": [half]}
    return {name: write_page(paths, folder / f"{name}.html") for name, paths in runs.items()}


@pytest.fixture
def open_page(browser: Browser, pages: dict[str, Path]) -> Iterator[Open]:
    """Open pages; none may write to the console, fail, or request anything but itself."""
    messages: list[str] = []
    requested: list[str] = []
    opened: list[tuple[Any, str]] = []

    def open_(name: str, width: int = DESK, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 844}, **options)
        page = context.new_page()
        page.on("console", lambda message: messages.append(message.text))
        page.on("pageerror", lambda error: messages.append(str(error)))
        page.on("request", lambda request: requested.append(request.url))
        page.goto(pages[name].as_uri())
        opened.append((context, pages[name].as_uri()))
        return page

    yield open_
    for context, _ in opened:
        context.close()
    assert messages == []
    assert requested == [uri for _, uri in opened]


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize(("name", "count"), [("one", 8), ("three", 8), ("half", 7)])
def test_all_charts_are_drawn_and_the_page_is_not_wider_than_the_screen(
    open_page: Open, name: str, count: int, width: int
) -> None:
    page = open_page(name, width)
    figures = page.evaluate(_FIGURES)
    assert len(figures) == count
    for figure in figures:
        assert figure["width"] > 150 and figure["height"] > 100 and figure["role"] == "img"
        assert figure["lines"] and max(figure["lines"]) > 0.25 * figure["width"]
        assert width == DESK or min(figure["letters"]) >= 11
    page.evaluate(_UNFOLD)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(f"Math.max(...{_RIGHT_EDGES})") <= width


def column(page: Page, number: int) -> list[str]:
    cells = page.locator("table.sorts").first.locator(f"tbody tr > :nth-child({number})")
    return [cell.replace("\xa0", " ") for cell in cells.all_inner_texts()]


@pytest.mark.parametrize("key", [None, "Enter", "Space"])
def test_table_can_be_sorted_by_click_and_by_keyboard_and_missing_values_come_last(
    open_page: Open, key: str | None
) -> None:
    page = open_page("three")
    button = page.get_by_role("button", name="BLEU")
    head = page.locator("table.sorts th", has=button)
    assert column(page, 3) == ["21.50", "30.12", "20.00", "30.12"] and head.get_attribute("aria-sort") == "none"
    ordered = ["20.00", "21.50", "30.12", "30.12"]
    for direction, expected in (("ascending", ordered), ("descending", ordered[::-1])):
        button.press(key) if key else button.click()
        assert column(page, 3) == expected and head.get_attribute("aria-sort") == direction
    assert page.locator("th[aria-sort='descending'], th[aria-sort='ascending']").count() == 1
    page.get_by_role("button", name="parameters").click()
    assert column(page, 4) == ["1,000", "1,000", "10,000", "10,000"]
    page.get_by_role("button", name="run", exact=True).click()
    assert column(page, 1) == ["core-alone", "full-alone", "joint", "joint"]
    for _ in range(2):  # up and down
        page.get_by_role("button", name="share").click()
        assert column(page, 5)[-1] == "–"


def test_script_in_a_sample_or_a_name_is_shown_as_text(open_page: Open) -> None:
    page = open_page("one")
    assert "taken" not in page.title() and page.locator("script").count() == 1 and page.locator("img").count() == 0
    assert '<script>document.title="taken"</script>' in page.locator("dl.sample").first.inner_text()
    assert "<script>alert(1)<" in page.locator("h1").inner_text()


def test_script_that_is_inserted_into_the_page_does_not_run(browser: Browser, tmp_path: Path) -> None:
    path = write_page([example_runs.run(tmp_path)], tmp_path / "r.html")
    path.write_text(path.read_text().replace("<main>", "<main><script>document.title = 'taken'</script>"))
    page = browser.new_page()
    page.goto(path.as_uri())
    assert page.title() == "joint · partialsgd"
    page.close()
