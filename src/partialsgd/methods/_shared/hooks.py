"""Hooks of a method, found again in the model that is trained: it may be a copy of the one the method was made for."""

from __future__ import annotations

import secrets
from typing import Any, TypeVar

from torch import nn

from partialsgd.parameters import Parameters

Hook = TypeVar("Hook")


def new_owner() -> str:
    """A name for what one call puts on a model; a copy of the model, or of all, goes by the same name."""
    return secrets.token_hex(8)


def hooks_of(parameters: Parameters, kind: type[Hook], owner: str, method: str) -> list[tuple[nn.Module, Hook]]:
    """Each module with the hook of this kind and owner."""

    def find() -> list[tuple[nn.Module, Hook]]:
        found = [
            (module, hook)
            for module in parameters.model.modules()
            for hook in module._forward_hooks.values()
            if isinstance(hook, kind) and _owner(hook) == owner
        ]
        if not found:
            raise ValueError(f"{method} was made for another model: make it for the model that PartialSGD is given")
        return found

    return parameters.once((kind, owner), find)


def _owner(hook: Any) -> str | None:
    return getattr(hook, "owner", None)
