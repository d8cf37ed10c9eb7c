"""A figure in a page is text, in the page's colours, with ids of its own, and always the same bytes."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from partialsgd.lab.page import svg
from partialsgd.logging import panels
from partialsgd.logging.series import Series
from tests.lab.page.made import HOSTILE


def figure(name: str = "core") -> Figure:
    sheet = panels.sheet(1)
    panels.draw(
        sheet.axes[0], {svg.label(name): [Series({0: 1.0, 5: 2.0}, negative=(3,))], "b": [Series({0: 1.5})]}, ""
    )
    return panels.finished(sheet, None)


def test_it_is_an_image_with_a_title_and_words() -> None:
    root = ElementTree.fromstring(svg.inline(figure(), "f1", "Loss <&>", "core: 1 at the end"))
    assert root.get("role") == "img" and root.get("aria-labelledby") == "f1-title f1-words"
    named = {element.get("id"): element.text for element in root.iter() if element.get("id")}
    assert (named["f1-title"], named["f1-words"]) == ("Loss <&>", "core: 1 at the end")


def test_text_is_text_and_nothing_is_black_on_white() -> None:
    drawn = svg.inline(figure(), "f1", "t", "w")
    texts = [element.text for element in ElementTree.fromstring(drawn).iter("text")]
    assert "step $t$" not in texts and "0" in texts
    assert not re.search(r"#000000|#ffffff|#e6e6e6|<style|<metadata|xmlns|xlink|<\?xml|DOCTYPE", drawn)
    assert "var(--line-0)" in drawn and "var(--line-1)" in drawn and "var(--grid)" in drawn and "currentColor" in drawn


def test_ids_are_its_own_and_every_reference_is_to_one_of_them() -> None:
    one, two = (svg.inline(figure(), name, "t", "w") for name in ("f1", "f2"))
    ids = [set(re.findall(r'\bid="([^"]+)"', drawn)) for drawn in (one, two)]
    assert not ids[0] & ids[1]
    for drawn, own in zip((one, two), ids, strict=True):
        targets = re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', drawn)
        assert targets and {a or b for a, b in targets} <= own
        assert len(re.findall(r'\bid="', drawn)) == len(own)


def test_the_same_figure_is_the_same_bytes() -> None:
    assert svg.inline(figure(), "f1", "t", "w") == svg.inline(figure(), "f1", "t", "w")


@pytest.mark.parametrize("name", [HOSTILE, "$\\frac$", "_hidden", "日本語", "a\x01b", "x" * 300, "tab\tnew\nline"])
def test_any_name_can_be_drawn(name: str) -> None:
    root = ElementTree.fromstring(svg.inline(figure(name), "f1", name, name))
    assert not list(root.iter("script")) and not list(root.iter("img"))
    shown = [element.text or "" for element in root.iter("text")]
    assert len(svg.label(name)) <= 45 and any("1 negative" in one.replace("\xa0", " ") for one in shown)
