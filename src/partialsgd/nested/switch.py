"""The level that runs: one switch for a whole family, read by every layer in it."""

from __future__ import annotations

from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

FULL = "full"


@final
class At:
    """The level inside a `with` block, and the one before again outside of it."""

    def __init__(self, switch: Switch, level: str, teacher: str | None) -> None:
        self._switch, self._now = switch, (level, teacher, None)
        self._before: list[tuple[str, str | None, Any]] = []

    def __enter__(self) -> None:
        switch = self._switch
        self._before.append((switch.level, switch.teacher, switch.taught))
        switch.level, switch.teacher, switch.taught = self._now

    def __exit__(self, *error: object) -> None:
        self._switch.level, self._switch.teacher, self._switch.taught = self._before.pop()


@final
class Switch:
    """Layers read `level` and nobody else's; `at` is the one way to change it."""

    def __init__(self, levels: tuple[str, ...]) -> None:
        self.levels = levels
        # A string, not a number: torch.compile takes strings as constants, and makes one graph for each.
        self.level = FULL
        self.teacher: str | None = None
        """The level whose outputs are kept, without a gradient, before another level runs."""
        self.taught: Any = None

    def at(self, level: str, teacher: str | None = None) -> At:
        return At(self, self.known(level), None if teacher is None else self.known(teacher))

    def __reduce__(self) -> tuple[type[Switch], tuple[tuple[str, ...]]]:
        """A copy, whenever it is made, begins at the whole network."""
        return Switch, (self.levels,)

    def known(self, level: str) -> str:
        if level not in self.levels:
            raise ValueError(f"there is no level {level!r}; there are {', '.join(map(repr, self.levels))}")
        return level

    def after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        """A hook of the model, so that its own calls are watched as those of the family are."""
        if not torch.compiler.is_compiling():
            self.watch(outputs)

    def watch(self, outputs: Any) -> None:
        """A backward that begins at another level would meet layers of another size when it recomputes them."""
        if torch.is_grad_enabled():
            for leaf in tree_leaves(outputs):
                if isinstance(leaf, Tensor) and leaf.grad_fn is not None:  # a parameter among them keeps no hook
                    leaf.register_hook(partial(self._require, self.level))  # type: ignore[no-untyped-call]  # untyped

    def _require(self, level: str, gradient: Tensor) -> None:
        if self.level != level:
            raise RuntimeError(
                f"backward began at level {self.level!r}, its forward ran at level {level!r}: "
                f"call backward inside the same `with nested.at({level!r}):`"
            )
