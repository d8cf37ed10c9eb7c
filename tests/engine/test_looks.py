"""What meters and guards ask for: which steps are judged, what is remembered, when two gradients are of one sample."""

from __future__ import annotations

from torch import nn

from partialsgd import Branch, Context, Method, masks
from partialsgd.method import GradientPair, GradientRequest, Guard
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector

PARAMETERS = Parameters(nn.Linear(2, 1))


def at(memory: dict, level: str | None = None) -> Context:
    return Context(0, 0, PARAMETERS, memory, level=level, _mask=masks.everything(PARAMETERS))


def test_a_guard_judges_each_level_at_its_own_steps_and_remembers_the_verdict_in_both_memories() -> None:
    verdicts = iter([True, False])
    guard = Guard(2, lambda sight: next(verdicts), Method())
    memory: dict = {}
    assert [guard.is_due(at(memory, level)) for level in ("full", "core", "full", "core", "full")] == [
        True,
        True,
        False,
        False,
        True,
    ]
    start, now = {}, {}
    sight = GradientPair(GradientRequest(Branch()), at(now, "core"), Vector({}), Vector({}))
    assert not guard.has_refused(at(start, "core"))
    assert guard.judge(at(start, "core"), sight)
    assert all(guard.has_refused(at(memory, "core")) and not guard.has_refused(at(memory)) for memory in (start, now))
    assert not guard.judge(at(start, "core"), sight) and not guard.has_refused(at(now, "core"))


def test_two_gradients_are_of_two_samples_only_if_they_were_said_to_be() -> None:
    losses = [lambda: None]
    assert (
        not GradientRequest(Branch()).is_of_two_samples
        and not GradientRequest(Branch(), (losses, losses)).is_of_two_samples
    )
    assert GradientRequest(Branch(), (losses, [lambda: None])).is_of_two_samples
