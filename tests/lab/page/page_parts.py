"""Sections of a page as a reader meets them: their elements, and the text of each."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from partialsgd.lab.page import cost, criteria, sections
from partialsgd.lab.page.charts import Charts
from partialsgd.lab.page.render import render
from partialsgd.lab.page.run_files import read_runs


def section(name: str, paths: Sequence[Path], default_settings: Any = None) -> ElementTree.Element:
    """Render one section of the page; its markup is XML too."""
    runs = read_runs(paths)
    charts, comparisons = Charts(runs), cost.compare(runs)
    contexts: dict[str, Any] = {
        "runs": lambda: {},
        "levels": lambda: {"levels": sections.levels(runs, charts), "comparisons": comparisons},
        "cost": lambda: {"comparisons": comparisons},
        "training": lambda: {"training": charts.training()},
        "criteria": lambda: {"criteria": criteria.section(runs, charts)},
        "outputs": lambda: {"outputs": sections.outputs(runs)},
        "configuration": lambda: {"configuration": sections.configuration(runs, default_settings)},
    }
    return ElementTree.fromstring(render(name, runs, **contexts[name]()).strip())


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ").split())


def texts(part: ElementTree.Element, tag: str) -> list[str]:
    return [words(element) for element in part.iter(tag)]


def rows(part: ElementTree.Element, number: int = 0) -> list[list[str]]:
    """Return the n-th table, its head first."""
    table = list(part.iter("table"))[number]
    return [[words(cell) for cell in row] for row in table.iter("tr")]


class ParsedPage(HTMLParser):
    """The tags, attributes and texts of a page, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
