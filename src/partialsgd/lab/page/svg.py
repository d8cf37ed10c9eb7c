"""A figure inside a page: text stays text, colours are the page's, ids are the figure's own."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from partialsgd.lab.page.markup import Html, text
from partialsgd.logging.panels import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_VARIABLES = {color.lower(): f"var(--line-{k})" for k, color in enumerate(COLORS)}
_VARIABLES |= {"#000000": "currentColor", "#e6e6e6": "var(--grid)", "#999999": "var(--faint)"}
_SETTINGS: Any = {"svg.fonttype": "none", "svg.hashsalt": "partialsgd"}  # the same figure is the same bytes
_DROPPED = ("metadata", "style")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")


def inline(figure: Figure, name: str, title: str, words: str) -> Html:
    """The figure as an element; `title` says what it is and `words` what it shows, for whoever cannot see it."""
    from matplotlib import rc_context

    written = io.BytesIO()
    with rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has it
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(written.getvalue())
    _adapt(root, name)
    box = root.get("viewBox", "")
    inner = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    return Html(
        f'<svg viewBox="{text(box)}" role="img" aria-labelledby="{name}-title {name}-words" fill="currentColor">'
        f'<title id="{name}-title">{text(title)}</title><desc id="{name}-words">{text(words)}</desc>{inner}</svg>'
    )


def label(value: str, most: int = 40) -> str:
    """A name that matplotlib takes as it is: no formula between dollars, nothing that SVG has no letter for."""
    clean = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in value)
    short = clean if len(clean) <= most else f"{clean[: most // 2]}…{clean[-(most // 2) + 1 :]}"
    return short.replace("$", r"\$")


def labels(names: Sequence[str]) -> list[str]:
    """Each of them, told apart by a number where shortening has made two alike."""
    short = [label(name) for name in names]
    return [f"{one} ({k})" if short.count(one) > 1 else one for k, one in enumerate(short, 1)]


def color(value: str) -> str:
    """The page's own colour in the place of one of a figure's: another in the dark."""
    return _VARIABLES.get(value.lower(), value)


def _adapt(element: ElementTree.Element, name: str) -> None:
    for child in list(element):
        if child.tag.rpartition("}")[2] in _DROPPED or (child.tag.endswith("}defs") and _is_bare(child)):
            element.remove(child)
        else:
            _adapt(child, name)
    element.tag = element.tag.rpartition("}")[2]
    for key, value in list(element.attrib.items()):
        del element.attrib[key]
        element.set(key.rpartition("}")[2], _adapted(key.rpartition("}")[2], value, name))


def _is_bare(defs: ElementTree.Element) -> bool:
    return all(child.tag.rpartition("}")[2] in _DROPPED for child in defs)


def _adapted(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href":
        return f"#{name}-{value.removeprefix('#')}"
    value = _REFERENCE.sub(rf"url(#{name}-\1)", value)
    return re.sub(r"#[0-9a-f]{6}\b(?!-)", lambda found: color(found[0]), value)
