"""A network with a network inside it, small enough to be seen to be right; and its alternating method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from partialsgd import Branch, Context, Method, masks, perturbations


class Switchable(nn.Module):
    """core(x) + extension(x), or only core(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Linear(6, 3)
        self.extension = nn.Linear(6, 3)
        self.level = "full"

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.core(x)
        return y + self.extension(x) if self.level == "full" else y

    @contextmanager
    def at(self, level: str) -> Iterator[None]:
        before, self.level = self.level, level
        try:
            yield
        finally:
            self.level = before


def build() -> Switchable:
    torch.manual_seed(0)
    return Switchable()


def alternating(model: Switchable, *, structural: bool = True) -> Method:
    """Full at even t, core at odd t; run structurally, or by dropping the extension's numbers."""

    def branches(context: Context) -> list[Branch]:
        if context.t % 2 == 0:
            return [Branch(level="full")]
        core = masks.only(context.parameters, ["core"])
        switched = perturbations.switch(lambda: model.at("core"))
        dropped = perturbations.drop_outside(core)
        return [Branch(lambda c: core, lambda c: switched if structural else dropped, level="core")]

    return Method(branches=branches, structural=structural, name="alternating")
