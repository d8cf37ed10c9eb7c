"""A nested model in text: which layers are nested, and how the levels lie inside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested


def summary(nested: Nested) -> str:
    """Return one line for each layer: how it is nested, or why it is not."""
    modules = nested.nested_modules()
    rows = [(name or "the model", m.spec_name, m.describe()) for name, m in modules.items()]
    rows += [(name, "-", f"not nested: {why}") for name, why in nested.skipped.items() if name not in modules]
    width = max((len(name) for name, _, _ in rows), default=0)
    sizes = ", ".join(f"{level}: {nested.size(level):,} parameters" for level in nested.levels)
    return "\n".join(
        [
            f"{type(nested.model).__name__}: levels {' < '.join(nested.levels)}",
            *(f"  {name:{width}}  {spec_name:8}  {description}" for name, spec_name, description in rows),
            f"  {sizes}",
        ]
    )


def draw(nested: Nested) -> str:
    """Return boxes inside boxes, the smallest level innermost, each with its parameters and its share of full."""
    full = nested.size(nested.levels[-1])
    box: list[str] = []
    for level in nested.levels:
        title = f"{level}: {nested.size(level):,} parameters ({nested.size(level) / full:.0%})"
        inner = max([len(title), *(len(line) for line in box)])
        top = f"┌─ {title} " + "─" * (inner - len(title)) + "┐"
        box = [top, *(f"│  {line:{inner}} │" for line in box), "└" + "─" * (inner + 3) + "┘"]
    return "\n".join(box)
