"""A page as a reader meets it: elements, and the text of each."""

from __future__ import annotations

from xml.etree import ElementTree

from partialsgd.lab.page.markup import Html


def tree(part: Html) -> ElementTree.Element:
    """Our markup without flags is XML too."""
    return ElementTree.fromstring(f"<x>{part}</x>")


def words(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ").split())


def rows(part: Html, number: int = 0) -> list[list[str]]:
    """The n-th table, its head first."""
    table = list(tree(part).iter("table"))[number]
    return [[words(cell) for cell in row] for row in table.iter("tr")]


def paragraphs(part: Html) -> list[str]:
    return [words(element) for element in tree(part).iter("p")]


def titles(part: Html, name: str = "h3") -> list[str]:
    return [words(element) for element in tree(part).iter(name)]
