"""Hooks that a method has put on a model, found by a token, since a deep copy of the model has copies of them."""

from __future__ import annotations

import secrets
from typing import TypeVar

from torch import nn

from partialsgd.parameters import Parameters

Hook = TypeVar("Hook")


def new_owner() -> str:
    """Return a token for the hooks of one method on one model."""
    return secrets.token_hex(8)


def hooks_of(parameters: Parameters, kind: type[Hook], owner: str) -> list[tuple[nn.Module, Hook]]:
    """Return each module with its hook of this kind and owner."""

    def find() -> list[tuple[nn.Module, Hook]]:
        hooks = [(module, hook) for module in parameters.model.modules() for hook in module._forward_hooks.values()]
        own = [(m, hook) for m, hook in hooks if isinstance(hook, kind) and getattr(hook, "owner", None) == owner]
        if not own:
            raise ValueError("the hooks of the method are gone from the model; build PartialSGD anew")
        return own

    return parameters.once((kind, owner), find)
