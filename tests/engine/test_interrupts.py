"""Ctrl-C anywhere in a step: x is x_t or x_{t+1}, with its optimizer state, its level and its t; never in between."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import partialsgd as ps
from tests.training import bits, same

PACKAGE = str(Path(ps.__file__).parent)
METHODS = {
    "dropout": lambda: ps.methods.dropout(0.5),
    "alternating": ps.methods.alternating,
    "sam": ps.methods.sam,
    "top_k": lambda: ps.methods.top_k(0.3),
    "random_mask": lambda: ps.methods.random_mask(0.5),
    "ac_dc": lambda: ps.methods.ac_dc(0.5, warmup=1, sparse=2, dense=1, reset=False),
    "two optimizers": lambda: ps.methods.random_mask(0.5),
}


@pytest.fixture(autouse=True)
def _interrupts_raise():
    """Also where the tests were started with interrupts ignored, as a shell does for commands in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Training:
    """Two steps are done; `run` makes the third."""

    def __init__(self, name: str, way: str) -> None:
        torch.manual_seed(0)
        self.way = way
        self.model: nn.Module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        if name == "alternating":
            self.model = ps.nest(self.model, ps.Width(1 / 2))
        parameters = list(self.model.parameters())
        parts = [parameters[:2], parameters[2:]] if name == "two optimizers" else [parameters]
        self.optimizers = [torch.optim.SGD(part, 0.1, momentum=0.9) for part in parts]
        self.x, self.y = torch.randn(3, 4), torch.randint(2, (3,))
        self.closure()
        for optimizer in self.optimizers:
            optimizer.step()  # every tensor has a momentum from now on
        self.sgd = ps.PartialSGD(self.model, self.optimizers, METHODS[name]())
        self.run = {"step": lambda: self.sgd.step(self.closure), "gradients": self.by_gradients}[way]
        for _ in range(3 if name == "alternating" else 2):  # the next step is that of the core
            self.run()

    def closure(self) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.model(self.x), self.y)
        loss.backward()
        return loss

    def by_gradients(self) -> None:
        for g in self.sgd.gradients():
            with g:
                self.closure()
        self.sgd.update()

    def state(self) -> dict[str, torch.Tensor]:
        momenta = [o.state[p]["momentum_buffer"] for o in self.optimizers for g in o.param_groups for p in g["params"]]
        rates = [torch.tensor(g["lr"]) for o in self.optimizers for g in o.param_groups]
        everything = [*bits(self.model).values(), *momenta, *rates, torch.tensor(self.sgd.t)]
        return {str(k): tensor.detach().clone() for k, tensor in enumerate(everything)}

    def load(self, state: dict[str, torch.Tensor], memory: dict[str, object]) -> None:
        """Go back to a state without a new model: thousands of times."""
        if self.way == "gradients":  # an interrupted step() has dropped its gradient itself
            self.sgd.zero_grad()
        momenta = [o.state[p]["momentum_buffer"] for o in self.optimizers for g in o.param_groups for p in g["params"]]
        with torch.no_grad():
            for tensor, old in zip([*self.model.parameters(), *momenta], state.values(), strict=False):
                tensor.copy_(old)
        self.sgd.t, self.sgd.memory = int(list(state.values())[-1]), dict(memory)


def traced(run: Callable[[], object], on_line: Callable[[str], None]) -> None:
    """Run and report each line of this package before it is executed."""

    def trace(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            on_line(f"{frame.f_code.co_filename[len(PACKAGE) + 1 :]}:{frame.f_lineno}")
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)


def interrupted_everywhere(name: str, way: str, numbers: Callable[[list[str]], list[int]]) -> tuple[int, list[str]]:
    """Interrupt a step at these of its executed lines. Returns their number, and the lines that left something."""
    training = Training(name, way)
    before, memory = training.state(), dict(training.sgd.memory)
    lines: list[str] = []
    traced(training.run, lines.append)
    after, broken, chosen = training.state(), [], numbers(lines)
    for number in chosen:
        training.load(before, memory)
        executed = 0

        def interrupt(line: str, number: int = number) -> None:
            nonlocal executed
            executed += 1
            if executed == number + 1:
                sys.settrace(None)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            traced(training.run, interrupt)
        state, level = training.state(), getattr(training.model, "level", "full")
        handler = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        is_whole = same(state, before) or same(state, after)
        if not (is_whole and level == "full" and torch.is_grad_enabled() and handler):
            torch.set_grad_enabled(True)
            broken.append(lines[number])
    training.load(before, memory)
    training.run()  # buffers that were given back twice would show here
    assert same(training.state(), after)
    return len(chosen), broken


def first_and_last(lines: list[str]) -> list[int]:
    return sorted({*{line: k for k, line in enumerate(lines)}.values(), *map(lines.index, set(lines))})


@pytest.mark.parametrize("way", ["step", "gradients"])
@pytest.mark.parametrize("name", METHODS)
def test_an_interrupt_at_a_line_leaves_x_as_it_was_or_stepped(name: str, way: str) -> None:
    """The first and the last time that each line of the package is executed."""
    count, broken = interrupted_everywhere(name, way, first_and_last)
    assert count > 200 and broken == []


@pytest.mark.slow
@pytest.mark.parametrize("way", ["step", "gradients"])
@pytest.mark.parametrize("name", METHODS)
def test_an_interrupt_at_every_executed_line_leaves_x_as_it_was_or_stepped(name: str, way: str) -> None:
    count, broken = interrupted_everywhere(name, way, lambda lines: list(range(len(lines))))
    assert count > 500 and broken == []


def test_a_signal_inside_the_optimizer_waits_until_all_parameters_are_stepped() -> None:
    class Interrupting(torch.optim.SGD):
        def step(self, closure=None):
            with torch.no_grad():
                for number, p in enumerate(self.param_groups[0]["params"]):
                    p.sub_(p.grad)
                    if number == 0:
                        os.kill(os.getpid(), signal.SIGINT)

    model = nn.Linear(3, 2)
    sgd = ps.PartialSGD(model, Interrupting(model.parameters(), 0.1))
    old = bits(model)
    with pytest.raises(KeyboardInterrupt):
        sgd.step(lambda: torch.autograd.backward(model(torch.ones(1, 3)).sum()) or 0.0)
    assert all(torch.equal(p, old[name] - 1) for name, p in model.named_parameters())
    assert sgd.t == 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler
