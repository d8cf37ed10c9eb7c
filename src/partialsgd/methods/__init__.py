"""The registry: every training method, by name, with one line that says what it is."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.methods.alternating import alternating as alternating
    from partialsgd.methods.dropout import dropout as dropout
    from partialsgd.methods.extragradient import extragradient as extragradient
    from partialsgd.methods.only import only as only
    from partialsgd.methods.plain import plain as plain
    from partialsgd.methods.random_mask import random_mask as random_mask
    from partialsgd.methods.sam import sam as sam
    from partialsgd.methods.sandwich import sandwich as sandwich
    from partialsgd.methods.slimmable import slimmable as slimmable
    from partialsgd.methods.top_k import top_k as top_k

SUMMARIES: dict[str, str] = {
    "alternating": "Alternating training (Algorithm 2): the whole network at even t, the core at odd t.",
    "dropout": "Dropout with one mask a batch: random weights or neurons are dropped and not updated.",
    "extragradient": "Extragradient: take the gradient one step further downhill.",
    "only": "One level: a nested network is trained at this level alone, and nothing outside it moves.",
    "plain": "Plain training: every coordinate moves, nothing is perturbed.",
    "random_mask": "Random mask: a random share of the coordinates moves, nothing is perturbed.",
    "sam": "Sharpness-aware minimisation: take the gradient at the worst point nearby.",
    "sandwich": "The sandwich rule: the largest level, the smallest and some drawn between, in one step.",
    "slimmable": "Slimmable training: one backward pass for each level, then one update with all of them.",
    "top_k": "Top-k: only the coordinates with the largest gradient move.",
}

__all__ = ["SUMMARIES", *SUMMARIES]  # the table is the list


class _Registry(ModuleType):
    """Importing the file `dropout` would hide the method `dropout`: here the name is always the method."""

    def __setattr__(self, name: str, value: object) -> None:
        is_file = name in SUMMARIES and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if is_file else value)


sys.modules[__name__].__class__ = _Registry


def __getattr__(name: str) -> object:
    if name not in SUMMARIES:
        raise AttributeError(f"there is no method {name!r}; there are {', '.join(SUMMARIES)}")
    return getattr(import_module(f"partialsgd.methods.{name}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
