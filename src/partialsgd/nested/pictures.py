"""What a family looks like, in text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.nested.family import Nested


def summary(nested: Nested) -> str:
    """One line a layer: how it was nested, or why not."""
    lines = [f"{type(nested.model).__name__}: levels {' < '.join(nested.levels)}"]
    modules = {name or "the model": module for name, module in nested.nested_modules().items()}
    width = max((len(name) for name in (*modules, *nested.skipped)), default=0)
    lines += [
        f"  {name:{width}}  {nested.claimed.get(name, 'OutputSum'):8}  {m.describe()}" for name, m in modules.items()
    ]
    lines += [
        f"  {name:{width}}  {'-':8}  not nested: {why}" for name, why in nested.skipped.items() if name not in modules
    ]
    counts = {level: sum(p.numel() for p in nested.parameters(level=level)) for level in nested.levels}
    lines.append("  " + ", ".join(f"{level}: {count:,} parameters" for level, count in counts.items()))
    return "\n".join(lines)


def draw(nested: Nested) -> str:
    """Boxes inside boxes, the smallest level innermost, each with its parameters and its share of the whole."""
    counts = {level: sum(p.numel() for p in nested.parameters(level=level)) for level in nested.levels}
    whole = counts[nested.levels[-1]]
    box: list[str] = []
    for level, count in counts.items():
        says = f"{level}: {count:,} parameters ({count / whole:.0%})"
        inner = max([len(says), *(len(line) for line in box)])
        top = f"┌─ {says} " + "─" * (inner - len(says)) + "┐"
        body = [f"│  {line:{inner}} │" for line in box]
        box = [top, *body, "└" + "─" * (inner + 4 - 1) + "┘"]
    return "\n".join(box)
