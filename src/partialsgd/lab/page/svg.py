"""Converts matplotlib figures to SVG elements inside the page: real text, the page's colors, unique ids."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from partialsgd.logging.figures import COLORS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CSS_COLORS = {color.lower(): f"var(--line-{k})" for k, color in enumerate(COLORS)}
_CSS_COLORS |= {"#000000": "currentColor", "#e6e6e6": "var(--grid)", "#999999": "var(--faint)"}
_RC_PARAMS: Any = {"svg.fonttype": "none", "svg.hashsalt": "partialsgd"}  # the salt makes the output reproducible


def convert(figure: Figure, prefix: str) -> tuple[str, Markup]:
    """Return the view box and the inner elements of a figure as SVG; its ids begin with `prefix`."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context(_RC_PARAMS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the browser has other fonts
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _adapt(root, prefix)
    inner = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    return root.get("viewBox", ""), Markup(inner)


def plot_labels(names: Sequence[str]) -> list[str]:
    """Return `plot_label` of each name, with a number where two names would be drawn alike."""
    labels = [plot_label(name) for name in names]
    return [f"{label} ({k})" if labels.count(label) > 1 else label for k, label in enumerate(labels, 1)]


def plot_label(name: str, limit: int = 40) -> str:
    """Shorten a name and escape it for matplotlib, which reads text between dollars as a formula."""
    printable = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)
    if len(printable) > limit:
        printable = f"{printable[: limit // 2]}…{printable[-(limit // 2) + 1 :]}"
    return printable.replace("$", r"\$")


def css_color(color: str) -> str:
    """Return the CSS variable for a color of `COLORS`; it has another value in dark mode."""
    return _CSS_COLORS.get(color.lower(), color)


def _adapt(element: ElementTree.Element, prefix: str) -> None:
    """Drop namespaces, metadata and style sheets, and rewrite ids, references and colors."""
    for child in list(element):
        _adapt(child, prefix)
        if child.tag in ("metadata", "style") or (child.tag == "defs" and len(child) == 0):
            element.remove(child)
    element.tag = element.tag.rpartition("}")[2]
    element.attrib = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    for key, value in element.attrib.items():
        if key == "id":
            value = f"{prefix}-{value}"
        elif key == "href":
            value = f"#{prefix}-{value.removeprefix('#')}"
        else:
            value = re.sub(r"url\(#([^)]*)\)", rf"url(#{prefix}-\1)", value)
            value = re.sub(r"#[0-9a-f]{6}\b(?!-)", lambda match: css_color(match[0]), value)
        element.set(key, value)
