"""What a family looks like, in text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.nested.nested import Nested


def summary(nested: Nested) -> str:
    """One line a layer: how it was nested, or why not."""
    lines = [f"{type(nested.model).__name__}: levels {' < '.join(nested.levels)}"]
    modules = nested.nested_modules()
    rows = [(name or "the model", m.by, m.describe()) for name, m in modules.items()]
    left = {name: why for name, why in nested.skipped.items() if name not in modules}
    rows += [(name, "-", f"not nested: {why}") for name, why in left.items()]
    width = max((len(name) for name, _, _ in rows), default=0)
    lines += [f"  {name:{width}}  {by:8}  {says}" for name, by, says in rows]
    counts = {level: nested.size(level) for level in nested.levels}
    lines.append("  " + ", ".join(f"{level}: {count:,} parameters" for level, count in counts.items()))
    return "\n".join(lines)


def draw(nested: Nested) -> str:
    """Boxes inside boxes, the smallest level innermost, each with its parameters and its share of the whole."""
    counts = {level: nested.size(level) for level in nested.levels}
    whole = counts[nested.levels[-1]]
    box: list[str] = []
    for level, count in counts.items():
        says = f"{level}: {count:,} parameters ({count / whole:.0%})"
        inner = max([len(says), *(len(line) for line in box)])
        top = f"┌─ {says} " + "─" * (inner - len(says)) + "┐"
        body = [f"│  {line:{inner}} │" for line in box]
        box = [top, *body, "└" + "─" * (inner + 3) + "┘"]
    return "\n".join(box)
