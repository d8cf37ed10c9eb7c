"""Ctrl-C at each executed line of a step.

x must then be x_t or x_{t+1} to the bit, the level the one before, the optimizer state of held coordinates in place,
and the next step must work.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import partialsgd as ps
from studies.assault.targets import Arena, Tally

METHODS: dict[str, Callable[[], ps.Method]] = {
    "dropout": lambda: ps.methods.dropout(keep=0.7),
    "alternating": lambda: ps.methods.alternating(),
    "sam": lambda: ps.methods.sam(rho=0.05),
    "top_k": lambda: ps.methods.top_k(0.3),
    "element masks": lambda: ps.methods.random_mask(0.5),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}
GOOD = "x is x_t or x_{t+1}, all else in place"
_BEFORE = 3
"""Steps before the one that is interrupted."""
_OURS, _HERE, _TORCH = (str(Path(module.__file__ or "").parent) for module in (ps, sys.modules[__name__], torch))


class Setup(NamedTuple):
    nested: ps.Nested
    optimizer: torch.optim.Optimizer
    sgd: ps.PartialSGD
    closure: Callable[[], Tensor]


def build(method: str, optimizer: str) -> Setup:
    """A small nested network some steps into its training."""
    torch.set_grad_enabled(True)  # an interruption inside of torch.no_grad itself may have left it off
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    nested = ps.nest(model, ps.Width(1 / 2))
    chosen = OPTIMIZERS[optimizer](nested.parameters())
    sgd = ps.PartialSGD(nested, chosen, METHODS[method](), seed=0)
    x, y = torch.randn(5, 6), torch.randn(5, 3)

    def closure() -> Tensor:
        loss = (nested(x) - y).square().mean()
        loss.backward()
        return loss

    for _ in range(_BEFORE):
        sgd.step(closure)
    return Setup(nested, chosen, sgd, closure)


def values(setup: Setup) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in setup.nested.named_parameters()}


def states(setup: Setup) -> dict[str, dict[str, Tensor]]:
    """The optimizer's state of each coordinate, by parameter and name."""
    by_name = {name: setup.optimizer.state.get(parameter, {}) for name, parameter in setup.nested.named_parameters()}
    shapes = {name: parameter.shape for name, parameter in setup.nested.named_parameters()}
    return {
        name: {key: value.clone() for key, value in state.items() if getattr(value, "shape", None) == shapes[name]}
        for name, state in by_name.items()
    }


class Interrupter:
    """Counts the lines that are executed in some folders, and interrupts at one of them.

    At a line of partialsgd it raises KeyboardInterrupt, which is harder than a signal: no handler can make it wait.
    At a line of torch it sends the signal of Ctrl-C, which waits while an optimizer steps.
    """

    def __init__(self, folders: tuple[str, ...], at: int | None) -> None:
        self.folders, self.at, self.count, self.place = folders, at, 0, ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        return self.line if frame.f_code.co_filename.startswith(self.folders) else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            if self.count == self.at:
                self.place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self.count += 1
                if self.folders != (_TORCH,):
                    raise KeyboardInterrupt
                os.kill(os.getpid(), signal.SIGINT)
            self.count += 1
        return self.line


def interrupted_step(setup: Setup, folders: tuple[str, ...], at: int | None) -> Interrupter:
    """Take one step that is interrupted at a line."""
    interrupter = Interrupter(folders, at)
    sys.settrace(interrupter)
    try:
        setup.sgd.step(setup.closure)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return interrupter


class Expected(NamedTuple):
    """Return the two states that a step may leave: all as before it, or x after it."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    states: dict[str, dict[str, Tensor]]
    level: str
    mask: Any


@cache
def expected(method: str, optimizer: str) -> Expected:
    setup = build(method, optimizer)
    before, state, level = values(setup), states(setup), setup.nested.level
    mask = setup.sgd.step(setup.closure).mask
    return Expected(before, values(setup), state, level, mask)


def verdict(method: str, optimizer: str, folders: tuple[str, ...], at: int) -> tuple[str, str]:
    """Return the state that an interruption leaves, and the line where it came."""
    setup, step = build(method, optimizer), expected(method, optimizer)
    interrupter = interrupted_step(setup, folders, at)
    now, found = values(setup), ""
    if not any(all(now[name].equal(x[name]) for name in x) for x in (step.before, step.after)):
        found = "x is neither x_t nor x_{t+1}"
    elif setup.nested.level != step.level or not (torch.is_grad_enabled() or folders == (_TORCH,)):
        found = "the level or the gradient mode is another one"
    elif not _held(states(setup), step.states, step.mask):
        found = "optimizer state of held coordinates was changed"
    else:
        found = _go_on(setup)
    return found or GOOD, interrupter.place


def _go_on(setup: Setup) -> str:
    """Why the next step fails; nothing if it works, if need be after the `zero_grad` that it asks for."""
    torch.set_grad_enabled(True)
    try:
        try:
            setup.sgd.step(setup.closure)
        except RuntimeError as error:
            if "zero_grad()" not in str(error):
                raise
            setup.sgd.zero_grad()
            setup.sgd.step(setup.closure)
    except Exception as error:
        return f"the next step fails: {error}"
    return ""


def _held(now: dict[str, dict[str, Tensor]], before: dict[str, dict[str, Tensor]], mask: Any) -> bool:
    for name, state in before.items():
        for key, value in state.items():
            held = ~(torch.zeros(value.shape, dtype=torch.bool) | mask[name])
            if key not in now[name] or not now[name][key][held].equal(value[held]):
                return False
    return True


def attack(method: str, optimizer: str, where: str, lines: list[int] | None, to: str) -> int:
    """Interrupt a step at lines, or count its lines, and write the outcomes to a file; runs in a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folders = (_TORCH,) if where == "torch" else (_OURS, _HERE)
    if lines is None:
        result: Any = interrupted_step(build(method, optimizer), folders, None).count
    else:
        result = [verdict(method, optimizer, folders, line) for line in lines]
    Path(to).write_text(json.dumps(result))
    return 0


def ctrl_c(arena: Arena, tally: Tally, where: str = "partialsgd") -> Iterator[None]:
    """Ctrl-C at every line of partialsgd and of the closure that one step executes."""
    to = arena.scratch / "lines.json"
    cases = [(method, optimizer) for method in METHODS for optimizer in OPTIMIZERS]
    pieces = []
    for case in cases:
        arena.server.call(f"{__name__}:attack", *case, where, None, str(to))
        count = json.loads(to.read_text())
        numbers = arena.random.sample(range(count), min(count, 4000))
        pieces += [(case, numbers[k : k + 50]) for k in range(0, len(numbers), 50)]
    for case, numbers in arena.random.sample(pieces, len(pieces)):
        ended = arena.server.call(f"{__name__}:attack", *case, where, numbers, str(to))
        if ended.code != 0:
            tally.bad(f"the process ended with code {ended.code}", f"{case}, {ended.output[-300:]}")
        else:
            for outcome, place in json.loads(to.read_text()):
                what = f"{' with '.join(case)}, Ctrl-C at {place}"
                tally.good(outcome) if outcome == GOOD else tally.bad(outcome, what)
        yield


def ctrl_c_in_torch(arena: Arena, tally: Tally) -> Iterator[None]:
    """Ctrl-C at lines of torch's own Python code inside a step."""
    return ctrl_c(arena, tally, "torch")
