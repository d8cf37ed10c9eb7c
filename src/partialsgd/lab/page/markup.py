"""HTML by construction: what is not markup is text, and text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import final

_EMPTY = frozenset({"br", "meta"})  # elements without an end


@final
class Html(str):
    """Markup. A plain string beside it is text, whatever it holds."""

    __slots__ = ()


def text(value: object) -> Html:
    """A value as it is read: escaped, and such that it can be encoded."""
    readable = str(value).encode("utf-8", "replace").decode("utf-8")
    return Html(html.escape("".join(_CONTROL.get(letter, letter) for letter in readable)))


def joined(parts: Iterable[str]) -> Html:
    return Html("".join(part if isinstance(part, Html) else text(part) for part in parts))


def el(name: str, /, *inside: str, **attributes: str | bool) -> Html:
    """An element. `class_` is its class and data_value its data-value; of a flag, True is there and False is not."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{text(value)}"')
        for key, value in attributes.items()
        if value is not False
    )
    return Html(f"<{name}{said}>" if name in _EMPTY else f"<{name}{said}>{joined(inside)}</{name}>")


def listed(items: Iterable[str], **attributes: str | bool) -> Html:
    return el("ul", *(el("li", item) for item in items), **attributes)


def section(name: str, title: str, *inside: str) -> Html:
    return el("section", el("h2", title), *inside, id=name, aria_label=title)


def folded(title: str, *inside: str) -> Html:
    """What a reader may want to see, and print shows."""
    return el("details", el("summary", title), *inside)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, title: str, words: int = 1) -> Html:
    """The first column names the row; the first `words` columns are text, and the others numbers."""
    cells = [el("th", name, scope="col", class_="" if k < words else "number") for k, name in enumerate(head)]
    body = (
        el("tr", el("th", row[0], scope="row"), *(_cell(value, k < words) for k, value in enumerate(row[1:], 1)))
        for row in rows
    )
    return boxed(el("table", el("thead", el("tr", *cells)), el("tbody", *body)), title)


def boxed(inner: Html, title: str) -> Html:
    """A table may be wider than a phone: it scrolls in a box of its own, by keyboard too."""
    return el("div", inner, class_="box", tabindex="0", role="region", aria_label=title)


def _cell(value: str, is_text: bool) -> Html:
    return el("td", value, class_="" if is_text else "number")


_CONTROL = {chr(code): "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127) if chr(code) not in "\t\n\r"}
