"""What is not markup is text: whatever it holds, a reader sees it and a browser does nothing with it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partialsgd.lab.page.markup import Html, el, folded, joined, listed, section, table, text

HOSTILE = ["<script>", "</td>", '"', "' onclick='", "&lt;", "&#60;", "<!--", "]]>", "\x00", "\ud800", "<img src=x>"]


class Seen(HTMLParser):
    """The tags, attributes and text of a page, as a browser reads them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words.append(data)


anything = st.one_of(
    st.text(), st.lists(st.sampled_from(HOSTILE)).map("".join), st.text(alphabet=st.characters(categories=["Cs", "Cc"]))
)


@given(anything)
def test_text_comes_back_as_it_was_and_makes_no_element(value: str) -> None:
    seen = Seen(el("p", value, title=value))
    assert seen.tags == ["p"] and [name for name, _ in seen.attributes] == ["title"]
    readable = value.encode("utf-8", "replace").decode()
    assert "".join(seen.words) == "".join(
        "\ufffd" if ord(c) in {*range(32), 127} - {9, 10, 13} else c for c in readable
    )
    text(value).encode("utf-8")


@given(anything)
def test_every_builder_escapes_what_it_is_given(value: str) -> None:
    parts = [
        table([value, value], [[value, value]], title=value, words=2),
        listed([value], class_=value),
        folded(value, value),
        section("name", value, value),
        joined([value, el("b", value)]),
    ]
    tags = {"div", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "details", "summary", "section", "h2", "b"}
    for part in parts:
        seen = Seen(part)
        assert set(seen.tags) <= tags
        assert not any(name.startswith("on") or name == "src" for name, _ in seen.attributes)


def test_markup_is_kept_and_a_string_made_of_it_is_text_again() -> None:
    bold = el("b", "x")
    assert el("p", bold) == "<p><b>x</b></p>"
    assert el("p", f"{bold}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"  # a mistake shows itself, and harms nobody
    assert isinstance(joined([bold, "<"]), Html)


def test_flags_and_names_with_dashes() -> None:
    assert el("details", "x", open=True, hidden=False, data_value="1", class_="a") == (
        '<details open data-value="1" class="a">x</details>'
    )
    assert el("meta", name="a", charset="utf-8") == '<meta name="a" charset="utf-8">'


@pytest.mark.parametrize("words", [1, 2])
def test_columns_of_numbers_stand_to_the_right(words: int) -> None:
    seen = Seen(table(["a", "b", "c"], [["x", "1", "2"]], title="t", words=words))
    assert [value for name, value in seen.attributes if name == "class"][1:4] == [
        *[""] * words,
        *["number"] * (3 - words),
    ]
