"""The current level of a nested model: one switch for the model, read by every nested layer in it."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

FULL = "full"


@final
@dataclass(slots=True)
class _State:
    level: str = FULL
    teacher: str | None = None
    """The level that runs, without a gradient, before the current one."""
    teacher_outputs: Any = None


_AT_FULL = _State()


@final
class _TracedState(threading.local):
    """The level of each thread for torch.compile, which cannot trace a ContextVar but guards this attribute."""

    def __init__(self) -> None:  # not class attributes: torch.compile would read those, the same in every thread
        # A string, not a number: torch.compile treats strings as constants and makes one graph for each.
        self.level = FULL
        self.teacher: str | None = None
        self.is_foreign = isinstance(threading.current_thread(), threading._DummyThread)
        """True in a thread that Python did not start."""


@final
class Switch:
    """Layers read `level`; `at` is the only way to change it, for its own thread or asyncio task."""

    def __init__(self, levels: tuple[str, ...]) -> None:
        self.levels = levels
        self._context = ContextVar("level", default=_AT_FULL)
        self._traced = _TracedState()

    @property
    def level(self) -> str:
        return self._traced.level if torch.compiler.is_compiling() else self.state.level

    @property
    def teacher(self) -> str | None:
        return self._traced.teacher if torch.compiler.is_compiling() else self.state.teacher

    @property
    def state(self) -> _State:
        state = self._context.get()
        if state is _AT_FULL and self._traced.is_foreign and torch._C._is_key_in_tls("context"):
            # Autograd's own thread of a device: the level is that of the thread that called backward.
            state = torch._C._get_obj_in_tls("context").get(self._context, _AT_FULL)
        return state

    def put(self, state: _State) -> None:
        """Make this the state of the current thread and context."""
        traced = self._traced
        # One statement: an interrupt may come between two.
        traced.level, traced.teacher, _ = state.level, state.teacher, self._context.set(state)

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
                f"call both inside the same `with nested.at({level!r}):`, "
                "and in training both inside the closure or `with g:`"
            )


@final
class _AtLevel:
    def __init__(self, switch: Switch, level: str, teacher: str | None) -> None:
        self._switch, self._level, self._teacher = switch, level, teacher
        self._outside: dict[int, list[_State]] = {}
        """The states to go back to, by thread."""

    def __enter__(self) -> None:
        self._outside.setdefault(threading.get_ident(), []).append(self._switch.state)
        self._switch.put(_State(self._level, self._teacher))

    def __exit__(self, *error: object) -> None:
        outside = self._outside.get(threading.get_ident())
        if outside:  # else an interrupt came between leaving the block and noting it
            self._switch.put(outside[-1])  # not popped before: an interrupt may come first
            outside.pop()
