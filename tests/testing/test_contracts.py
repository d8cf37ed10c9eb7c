"""Each law, broken once: its test must then fail."""

from __future__ import annotations

import sys

import pytest
import torch

from partialsgd import Method, PartialSGD, masks, methods, perturbations
from partialsgd._util.snapshots import Buffers, RandomState
from partialsgd._util.undo import UndoStack
from partialsgd.engine import gradient_pass as passes
from partialsgd.engine import gradients
from partialsgd.engine.masked_update import MaskedUpdate
from partialsgd.testing import contracts
from partialsgd.testing.problems import PROBLEMS, Problem
from partialsgd.testing.runs import Run, assert_same_bits

BY_NAME = {problem.name: problem for problem in PROBLEMS}
MLP = BY_NAME["mlp"]


def adamw(parameters):
    return torch.optim.AdamW(parameters, 0.01, weight_decay=0.1)


def broken(law, method: Method, problem=MLP, *autocast: bool) -> None:
    """The law holds as it should, or the test of the test says nothing; afterwards it must fail."""
    with pytest.raises((AssertionError, RuntimeError)):
        law(method, problem, adamw, *autocast)


def test_law_1_fails_when_state_outside_is_not_held(monkeypatch) -> None:
    law = contracts.test_law_1_nothing_outside_the_mask_moves
    law(methods.random_mask(0.4), MLP, adamw, False)

    def only_parameters(self, mask, undo) -> None:
        before = {name: p.detach().clone() for name, p in self._parameters.items()}

        def put_back() -> None:
            for name, entry in mask.partial.items():
                x = self._parameters[name].detach()
                x.copy_(torch.where(entry, x, before[name]))

        undo.append(put_back)

    monkeypatch.setattr(MaskedUpdate, "_hold", only_parameters)
    broken(law, methods.random_mask(0.4), MLP, False)


def test_law_1_fails_when_a_zero_gradient_stands_for_a_mask(monkeypatch) -> None:
    law = contracts.test_law_1_nothing_outside_the_mask_moves
    method = Method(mask=lambda c: masks.only(c.parameters, ["0"]) if c.t else masks.everything(c.parameters))
    law(method, MLP, adamw, False)

    def zeros(parameters, mask, **_) -> None:
        for name, p in parameters.items():
            if p.grad is not None:
                p.grad.mul_(torch.as_tensor(mask[name]))

    monkeypatch.setattr(gradients, "mask_gradients", zeros)
    broken(law, method, MLP, False)


def never_restored(parameters, perturbation, undo, within=None, on_move=None) -> None:
    perturbations.apply(parameters, perturbation.move)


def restored_by_subtraction(parameters, perturbation, undo, within=None, on_move=None) -> None:
    before = {name: parameters[name].detach().clone() for name in perturbation.touches}
    perturbations.apply(parameters, perturbation.move)
    deltas = {name: parameters[name].detach() - before[name] for name in before}
    undo.append(lambda: [parameters[name].detach().sub_(deltas.pop(name)) for name in list(deltas)])


def test_law_2_fails_without_an_exact_restore(monkeypatch) -> None:
    after_pass = contracts.test_law_2_x_is_x_again_after_every_pass
    raising = contracts.test_law_2_x_is_x_again_when_the_closure_raises
    for law in (after_pass, raising):
        law(methods.sam(0.1), MLP, adamw, False)
    for replacement in (never_restored, restored_by_subtraction):
        monkeypatch.setattr(passes, "displace", replacement)
        broken(after_pass, methods.sam(0.1), MLP, False)
    monkeypatch.undo()
    original = UndoStack.run
    monkeypatch.setattr(UndoStack, "run", lambda self, *error: None if sys.exc_info()[1] else original(self, *error))
    broken(raising, methods.sam(0.1), MLP, False)


def test_law_3_fails_when_a_skipped_step_counts(monkeypatch) -> None:
    law = contracts.test_law_3_t_counts_optimizer_steps
    law(Method(), MLP, adamw, False)
    original = PartialSGD.update

    def counting(self):
        step = original(self)
        self.t += step.skipped
        return step

    def remembering(self):
        step = original(self)
        self.memory["skipped"] = int(step.skipped)
        return step

    for replacement in (counting, remembering):
        monkeypatch.setattr(PartialSGD, "update", replacement)
        broken(law, Method(), MLP, False)


@pytest.mark.parametrize(("part", "problem"), [(RandomState, "transformer"), (Buffers, "batchnorm")])
def test_law_4_fails_when_a_measurement_leaves_a_trace(monkeypatch, part, problem) -> None:
    law = contracts.test_law_4_measuring_changes_nothing
    law(methods.dropout(0.7), BY_NAME[problem], adamw, False)
    monkeypatch.setattr(part, "restore", lambda self: None)
    broken(law, methods.dropout(0.7), BY_NAME[problem], False)


def test_law_5_fails_when_t_or_memory_is_lost(monkeypatch) -> None:
    law = contracts.test_law_5_a_resumed_run_is_the_same_run

    def growing(context):
        context.memory["n"] = int(context.memory.get("n", 0)) + 1
        return masks.only(context.parameters, list(context.parameters)[: context.memory["n"]])

    remembering = Method(mask=growing)
    original = PartialSGD.load_state_dict
    for lost, method in (({"t": 0}, methods.dropout(0.7)), ({"memory": {}}, remembering)):
        law(method, MLP, adamw, False)
        # "remembers" would notice that the memory is gone, and raise.
        monkeypatch.setattr(
            PartialSGD,
            "load_state_dict",
            lambda self, s, lost=lost: original(self, {k: v for k, v in {**s, **lost}.items() if k != "remembers"}),
        )
        broken(law, method, MLP, False)
        monkeypatch.undo()


def toggling(context):
    next(iter(context.parameters.values())).requires_grad_(False)
    return masks.everything(context.parameters)


def hanging(context):
    next(iter(context.parameters.values())).note = "mine"
    return masks.everything(context.parameters)


def drawing(context):
    torch.rand(1)
    return masks.everything(context.parameters)


def careless(context):
    drawn = {name: torch.rand(p.shape) < 0.5 for name, p in context.parameters.items()}
    return masks.from_tensors(context.parameters, drawn)


def counting_calls():
    calls = []

    def mask(context):
        calls.append(1)
        return masks.only(context.parameters, [list(context.parameters)[len(calls) % 3]])

    return mask


def test_laws_8_9_and_12_fail_for_methods_that_break_them() -> None:
    broken(contracts.test_law_8_requires_grad_is_not_touched, Method(mask=toggling))
    broken(contracts.test_law_9_nothing_is_left_behind, Method(mask=hanging))
    broken(contracts.test_law_9_nothing_is_left_behind, Method(mask=drawing))
    broken(contracts.test_law_12_draws_depend_on_seed_and_t_alone, Method(mask=careless), MLP, False)
    broken(contracts.test_law_12_draws_depend_on_seed_and_t_alone, Method(mask=counting_calls()), MLP, False)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_models_and_batches_are_functions_of_their_seeds(problem: Problem) -> None:
    state = torch.get_rng_state()
    a, b, other = problem.model(), problem.model(), problem.model(seed=1)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))
    if problem.name != "quadratic":
        assert not all(torch.equal(p, q) for p, q in zip(a.parameters(), other.parameters(), strict=True))
    torch.manual_seed(0)
    first = problem.evaluate(a, 3)
    torch.manual_seed(0)
    assert torch.equal(first, problem.evaluate(b, 3)) and not torch.equal(first, problem.evaluate(b, 4))
    before = torch.get_rng_state()
    problem.evaluate(a, 0)
    assert problem.is_random == (not torch.equal(before, torch.get_rng_state()))


def started() -> Run:
    run = Run(BY_NAME["batchnorm"], torch.optim.Adam, methods.dropout(0.5), False)
    run.step(0)
    return run


def test_a_saved_run_goes_on_in_another_and_one_changed_bit_anywhere_is_seen() -> None:
    run, other = started(), started()
    other.load(run.save())
    assert_same_bits(run.tensors(), other.tensors())
    kinds = {name.partition(".")[0] for name in run.tensors()}
    assert kinds == {"model", "optimizer", "rng"} and "model.1.running_mean" in run.tensors()
    for name in run.tensors():
        changed = run.tensors()
        changed[name] = changed[name] + 1
        with pytest.raises(AssertionError, match=f"not the same to the bit: {name}"):
            assert_same_bits(run.tensors(), changed)
