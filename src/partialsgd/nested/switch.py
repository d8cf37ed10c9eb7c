"""The current level of a nested model: one switch for the model, read by every nested layer in it."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

FULL = "full"


@final
class Switch:
    """Layers read `level`; `at` is the only way to change it."""

    def __init__(self, levels: tuple[str, ...]) -> None:
        self.levels = levels
        # A string, not a number: torch.compile treats strings as constants and makes one graph for each.
        self.level = FULL
        self.teacher: str | None = None
        """The level that runs, without a gradient, before the current one."""
        self.teacher_outputs: Any = None

    def at(self, level: str, teacher: str | None = None) -> _AtLevel:
        """Return a context manager that runs a level inside its block."""
        return _AtLevel(self, self.require(level), None if teacher is None else self.require(teacher))

    def __reduce__(self) -> tuple[type[Switch], tuple[tuple[str, ...]]]:
        """Copy the switch at the full level: no block would ever set the level of the copy back."""
        return Switch, (self.levels,)

    def require(self, level: str) -> str:
        """Return the level, or raise if there is none of this name."""
        if level not in self.levels:
            raise ValueError(f"there is no level {level!r}; there are {', '.join(map(repr, self.levels))}")
        return level

    def after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """Watch the outputs; registered as a forward hook of the model, so that direct calls of it are watched too."""
        if not torch.compiler.is_compiling():
            self.watch(outputs)

    def watch(self, outputs: Any) -> None:
        """Make a backward at another level raise: gradient checkpointing would recompute layers of another size."""
        if torch.is_grad_enabled():
            for leaf in tree_leaves(outputs):
                if isinstance(leaf, Tensor) and leaf.grad_fn is not None:  # a parameter would keep the hook for ever
                    leaf.register_hook(partial(self._require_same, self.level))  # type: ignore[no-untyped-call]  # untyped

    def _require_same(self, level: str, gradient: Tensor) -> None:
        if self.level != level:
            raise RuntimeError(
                f"backward began at level {self.level!r}, its forward ran at level {level!r}: "
                f"call backward inside the same `with nested.at({level!r}):`"
            )


@final
class _AtLevel:
    def __init__(self, switch: Switch, level: str, teacher: str | None) -> None:
        self._switch, self._inside = switch, (level, teacher, None)
        self._outside: list[tuple[str, str | None, Any]] = []

    def __enter__(self) -> None:
        switch = self._switch
        self._outside.append((switch.level, switch.teacher, switch.teacher_outputs))
        switch.level, switch.teacher, switch.teacher_outputs = self._inside

    def __exit__(self, *error: object) -> None:
        if self._outside:  # else an interrupt came between leaving the block and noting it
            self._switch.level, self._switch.teacher, self._switch.teacher_outputs = self._outside.pop()
