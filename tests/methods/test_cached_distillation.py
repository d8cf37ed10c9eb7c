"""`alternating(distill="cached")`: a smaller level learns from the outputs of the step before it, on its batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from partialsgd import CriteriaMeter, LowRank, Method, Nested, PartialSGD, Width, methods, nest, soft_cross_entropy
from partialsgd.testing.runs import assert_same_bits
from tests.methods.training import load_through_a_file
from tests.training import family

WEIGHT = 0.5
CACHED = methods.alternating(distill="cached")


def batch(number: int) -> tuple[Tensor, Tensor]:
    return torch.randn(16, 6, generator=torch.Generator().manual_seed(number)), torch.arange(16) % 3


def mixed(outputs: Tensor, labels: Tensor, teacher: Tensor | None) -> Tensor:
    loss = F.cross_entropy(outputs, labels)
    return loss if teacher is None else (1 - WEIGHT) * loss + WEIGHT * soft_cross_entropy(outputs, teacher)


class Loop:
    """A training loop that takes its last batch again where the method says so."""

    def __init__(
        self, method: Method = CACHED, *ratios: float, name: Callable[[int, Tensor], object] | None = None, **options
    ):
        self.nested = family(*ratios)
        self.optimizer = torch.optim.AdamW(self.nested.parameters(), lr=0.01)
        self.sgd = PartialSGD(self.nested, self.optimizer, method, **options)
        self.drawn, self.name = -1, name or (lambda number, inputs: inputs)
        self.log: list[tuple[str, int, bool]] = []

    def closure(self, g):
        inputs, labels = batch(self.drawn)
        g.batch = self.name(self.drawn, inputs)
        g.outputs = outputs = self.nested(inputs)
        loss = mixed(outputs, labels, g.teacher)
        loss.backward()
        self.log.append((g.level, self.drawn, g.teacher is not None))
        return loss

    def step(self):
        if not self.sgd.repeats_batch:
            self.drawn += 1
        return self.sgd.step(self.closure)

    @property
    def saved(self) -> list:
        return [self.nested, self.optimizer, self.sgd]

    def tensors(self) -> dict[str, Tensor]:
        names = {p: name for name, p in self.nested.named_parameters()}
        state = {f"{k} {names[p]}": v for p, each in self.optimizer.state.items() for k, v in each.items()}
        return {k: v.detach().clone() for k, v in (dict(self.nested.state_dict()) | state).items()}


def by_hand(nested: Nested, steps: int) -> dict[str, Tensor]:
    """The slow definition: each level by turns, from the largest down, taught by what the last one computed."""
    levels = nested.levels[::-1]
    optimizer = torch.optim.AdamW(nested.parameters(), lr=0.01)
    teacher = None
    for t in range(steps):
        level = levels[t % len(levels)]
        inputs, labels = batch(t // len(levels))
        with nested.at(level):
            outputs = nested(inputs)
            mixed(outputs, labels, teacher if level != "full" else None).backward()
        optimizer.step()
        optimizer.zero_grad()
        teacher = outputs.detach()
    return {name: value.clone() for name, value in nested.state_dict().items()}


@pytest.mark.parametrize("ratios", [(), (0.25, 0.5)], ids=["two levels", "three levels"])
@pytest.mark.parametrize("name", [None, lambda number, inputs: number, lambda number, inputs: f"batch {number}"])
def test_cached_distillation_is_the_definition_to_the_bit(ratios, name) -> None:
    loop, other = Loop(CACHED, *ratios, name=name), family(*ratios)
    torch.manual_seed(1)  # for dropout
    steps = [loop.step() for _ in range(9)]
    torch.manual_seed(1)
    expected = by_hand(other, 9)
    assert_same_bits(expected, {name: value.clone() for name, value in loop.nested.state_dict().items()})
    assert all(step.backwards == 1 for step in steps)
    count = len(loop.nested.levels)
    assert loop.log == [(step.level, t // count, t % count > 0) for t, step in enumerate(steps)]


@pytest.mark.parametrize("stop", [1, 2, 5])
def test_a_run_that_stops_in_between_goes_on_with_the_same_bits(stop: int) -> None:
    whole, resumed = Loop(CACHED, 0.25, 0.5), Loop(CACHED, 0.25, 0.5)
    for _ in range(stop):
        whole.step()
    load_through_a_file(whole.saved, resumed.saved)
    resumed.drawn = whole.drawn
    random = torch.get_rng_state()
    for loop in (whole, resumed):
        torch.set_rng_state(random)
        for _ in range(4):
            loop.step()
    assert_same_bits(whole.tensors(), resumed.tensors())


def test_outputs_are_released_after_the_smallest_level() -> None:
    loop = Loop(CACHED, 0.25, 0.5)
    held = []
    for _ in range(4):
        loop.step()
        held.append(loop.sgd.memory.get("cached.level"))
        assert all(key.startswith("cached.") for key in loop.sgd.memory)
        assert not any(isinstance(v, Tensor) and v.requires_grad for v in loop.sgd.memory.values())
    assert held == ["full", "1/2", None, "full"]


def test_only_a_smaller_level_than_the_one_before_repeats_its_batch() -> None:
    loop = Loop(methods.alternating(order=("full", "full", "core", "core"), distill="cached"))
    for _ in range(5):
        loop.step()
    assert loop.log == [
        ("full", 0, False),
        ("full", 1, False),
        ("core", 1, True),
        ("core", 2, False),
        ("full", 3, False),
    ]
    drawn = Loop(methods.alternating(weights={"full": 1, "core": 1}, distill="cached"))
    for _ in range(30):
        drawn.step()
    taught = [is_taught for _, _, is_taught in drawn.log]
    levels = ["core", *(level for level, _, _ in drawn.log)]
    assert taught == [(one, two) == ("full", "core") for one, two in pairwise(levels)]


@pytest.mark.parametrize("first", [True, False])
def test_it_composes_in_either_order(first: bool) -> None:
    parts = (methods.alternating(distill="cached"), methods.sam(rho=0.05))
    loop = Loop(methods.compose(*(parts if first else parts[::-1])))
    for _ in range(4):
        loop.step()
    assert [(level, taught) for level, _, taught in loop.log] == [("full", False)] * 2 + [("core", True)] * 2 + [
        ("full", False)
    ] * 2 + [("core", True)] * 2


@pytest.mark.parametrize("order", [None, "criterion"])
def test_measuring_changes_nothing(order) -> None:
    loops = [
        Loop(methods.alternating(distill="cached", order=order), meter=meter) for meter in (None, CriteriaMeter(1))
    ]
    for loop in loops:
        torch.manual_seed(1)
        steps = [loop.step() for _ in range(4)]
    assert steps[1].criteria is not None
    assert_same_bits(*(loop.tensors() for loop in loops))


def test_micro_batches_and_a_loop_of_its_own_backward() -> None:
    """The k-th micro-batch has the outputs of the k-th, by closure and by `gradients()`."""
    loops = [Loop(), Loop()]

    def add(loop: Loop, g, half: slice) -> None:
        inputs, labels = (part[half] for part in batch(loop.drawn))
        g.batch = inputs
        g.outputs = outputs = loop.nested(inputs)
        (mixed(outputs, labels, g.teacher) / 2).backward()
        assert g.teacher is None or g.teacher.shape == (8, 3)

    def closure(g) -> float:
        for half in halves:
            add(loops[0], g, half)
        return 0.0

    halves = (slice(0, 8), slice(8, 16))
    for loop in loops:
        torch.manual_seed(1)
        for _ in range(4):
            loop.drawn += not loop.sgd.repeats_batch
            if loop is loops[0]:
                loop.sgd.step(closure)
                continue
            for g in loop.sgd.gradients():
                for half in halves:
                    with g:
                        add(loop, g, half)
            loop.sgd.update()
    for (name, a), b in zip(loops[0].tensors().items(), loops[1].tensors().values(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


def another_batch(loop: Loop, g) -> None:
    g.batch = batch(99)[0]


def another_number(loop: Loop, g) -> None:
    g.batch = 99


def another_type(loop: Loop, g) -> None:
    g.batch = batch(loop.drawn)[0].double()


def no_batch(loop: Loop, g) -> None:
    loop.nested(batch(loop.drawn)[0]).sum().backward()


def teacher_first(loop: Loop, g) -> None:
    assert g.teacher is not None


def two_batches(loop: Loop, g) -> None:
    g.batch = batch(loop.drawn)[0]
    g.batch = batch(loop.drawn)[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (another_batch, "not the batch of the step before"),
        (another_number, "not the batch of the step before"),
        (another_type, "not the batch of the step before"),
        (two_batches, "not the batch of the step before"),
        (no_batch, "had 1 micro-batches, and g.batch was assigned 0 times"),
        (teacher_first, "assign g.batch before you read g.teacher"),
    ],
)
def test_a_batch_that_is_not_repeated_raises_and_changes_nothing(wrong, message: str) -> None:
    loop = Loop()
    loop.nested.model[1].eval()  # the statistics of BatchNorm are the closure's own doing
    loop.step()
    before = loop.tensors()

    def closure(g) -> float:
        wrong(loop, g)
        return 0.0

    with pytest.raises(RuntimeError, match=message):
        loop.sgd.step(closure)
    assert_same_bits(before, loop.tensors())
    assert loop.sgd.t == 1 and loop.sgd.repeats_batch
    loop.step()
    assert loop.log[-1] == ("core", 0, True)


def test_a_batch_that_was_filled_again_in_place_is_another_one() -> None:
    buffer = batch(0)[0]
    loop = Loop(name=lambda number, inputs: buffer)
    loop.step()
    buffer.copy_(batch(1)[0])
    with pytest.raises(RuntimeError, match="not the batch of the step before"):
        loop.step()


@pytest.mark.parametrize(
    ("assign", "error", "message"),
    [
        (lambda g, x: setattr(g, "outputs", x), RuntimeError, "g.batch was assigned 0 times and g.outputs 1 times"),
        (lambda g, x: setattr(g, "batch", 0), RuntimeError, "g.batch was assigned 1 times and g.outputs 0 times"),
        (lambda g, x: (setattr(g, "batch", 0), setattr(g, "outputs", {"x": x})), TypeError, "such as the logits; got"),
        (lambda g, x: setattr(g, "batch", (x,)), TypeError, "a tensor of the batch, or a number or text"),
    ],
)
def test_a_step_that_states_too_little_raises(assign, error, message: str) -> None:
    loop = Loop()

    def closure(g) -> Tensor:
        outputs = loop.nested(batch(0)[0])
        assign(g, outputs)
        outputs.sum().backward()
        return outputs.sum()

    with pytest.raises(error, match=message):
        loop.sgd.step(closure)
    assert loop.sgd.t == 0 and not loop.sgd.memory


def test_outputs_of_another_process_are_refused() -> None:
    """A number may name other data on another rank."""
    loop = Loop(name=lambda number, inputs: number)
    loop.step()
    loop.sgd.memory["cached.rank"] = 1
    with pytest.raises(RuntimeError, match="those of rank 1, and this is rank 0"):
        loop.step()


def test_distill_is_one_of_three() -> None:
    with pytest.raises(ValueError, match="distill must be True, False or 'cached', got 'teacher'"):
        methods.alternating(distill="teacher")
    assert not Loop(methods.plain()).sgd.repeats_batch


@pytest.mark.parametrize("spec", [LowRank(1 / 4, full="own"), Width(1 / 4)], ids=["LowRank", "Width"])
def test_a_network_that_teaches_levels_which_share_nothing_with_it_is_trained_as_if_it_were_alone(spec) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3))
    alone = copy.deepcopy(model)
    apart = nest(model, spec, example=batch(0)[0]).part_ways(example=batch(0)[0])
    optimizer = torch.optim.AdamW(apart.parameters(), lr=0.02)
    sgd = PartialSGD(apart, optimizer, methods.alternating(distill="cached", lr={"full": 0.25}))
    core = [p.clone() for p in apart.parameters(level="core")]

    def closure(g):
        g.batch, g.outputs = step, apart(inputs)
        loss = mixed(g.outputs, labels, g.teacher)
        loss.backward()
        return loss

    for step in range(4):
        inputs, labels = batch(step)
        assert [sgd.step(closure).level for _ in range(2)] == ["full", "core"]
    raw = torch.optim.AdamW(alone.parameters(), lr=0.02 * 0.25)
    for step in range(4):
        inputs, labels = batch(step)
        raw.zero_grad()
        F.cross_entropy(alone(inputs), labels).backward()
        raw.step()
    assert_same_bits(apart.extract("full", example=inputs).state_dict(), alone.state_dict())
    assert not any(torch.equal(p, q) for p, q in zip(core, apart.parameters(level="core"), strict=True))
