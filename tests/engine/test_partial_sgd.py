"""`PartialSGD` equals Algorithm 1 in any loop, with branches, schedules and clipping, and names bad input."""

from __future__ import annotations

import copy
import functools
import math
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn

import partialsgd
from partialsgd import (
    Branch,
    CriteriaMeter,
    GradientRequest,
    Method,
    PartialSGD,
    Width,
    masks,
    methods,
    nest,
    perturbations,
)
from partialsgd.testing.problems import PROBLEMS, Problem
from tests import reference
from tests.functions import backward
from tests.methods.laws import METHODS
from tests.training import LR, MLP, bits, by_gradients, same, start


def two_branches(context) -> list[Branch]:
    """The whole network, then the network without its last parameter."""
    core = ~masks.only(context.parameters, [list(context.parameters)[-1]])
    return [
        Branch(level="full"),
        Branch(lambda c: core, lambda c: perturbations.drop_outside(c.mask), level="core", weight=0.5),
    ]


CASES = {**METHODS, "branches": Method(branches=two_branches, name="branches")}
CASES = {name: method for name, method in CASES.items() if not name.startswith("meprop")}  # its g is not ∇f(x̃)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.name)
def test_the_driver_equals_algorithm_1(problem: Problem, name: str) -> None:
    model, sgd = start(CASES[name], problem=problem, seed=3)
    twin, memory = problem.model(), {}
    method = CASES[name].bind(twin)
    x = {n: p.detach().clone() for n, p in reference.Parameters(twin).items()}
    for t in range(4):

        def loss(call, t=t):
            torch.manual_seed(t)
            return problem.evaluate(call, t)

        def closure(t=t):
            torch.manual_seed(t)
            return problem.closure(model, t)()

        x = reference.step(twin, x, method, t, 3, LR, loss, memory)
        assert sgd.step(closure).t == t
        for n, p in sgd.parameters.items():
            torch.testing.assert_close(p, x[n], rtol=1e-5, atol=1e-6, msg=lambda m, n=n, t=t: f"{n} at t = {t}: {m}")


@pytest.mark.parametrize("name", METHODS)
def test_both_ways_to_take_gradients_are_one(name: str) -> None:
    results = []
    for way in (PartialSGD.step, by_gradients):
        model, sgd = start(METHODS[name])
        assert [way(sgd, MLP.closure(model, t)).t for t in range(3)] == [0, 1, 2]
        results.append(bits(model))
    assert same(*results)


@pytest.mark.parametrize("name", METHODS)
def test_micro_batches_of_a_pass_add_up_to_one_batch_to_the_bit(name: str) -> None:
    (a, sgd), (b, once) = start(METHODS[name]), start(METHODS[name])
    for _ in range(2):
        for g in sgd.gradients():
            for micro_batch in (0, 1, 2):
                with g:
                    a.zero_grad()  # a body that zeroes gradients itself loses nothing
                    g.loss = MLP.closure(a, micro_batch)()
        step = sgd.update()
        expected = once.step(lambda: sum(MLP.closure(b, k)() for k in (0, 1, 2)))
        assert step.backwards == 3 * expected.backwards and sorted(map(str, step.passes)) == sorted(
            map(str, 3 * expected.passes)
        )
        torch.testing.assert_close(step.loss, expected.loss)
    assert same(a, b) and sgd.t == 2


@pytest.mark.parametrize("name", METHODS)
def test_a_stream_of_micro_batches_is_read_once_or_not_at_all(name: str) -> None:
    (a, sgd), (b, once) = start(METHODS[name]), start(METHODS[name])
    before, stream = bits(a), iter((0, 1, 2))
    backwards = once.step(lambda: sum(MLP.closure(b, k)() for k in (0, 1, 2))).backwards

    def run() -> None:
        for g in sgd.gradients(once=True):
            for micro_batch in stream:
                with g:
                    MLP.closure(a, micro_batch)()

    if backwards == 1:
        run()
        assert sgd.update().backwards == 3 and same(a, b)
    else:
        with pytest.raises(RuntimeError, match=r"more than one gradient at t = 0: keep the micro-batches"):
            run()
        assert next(stream) == 0 and same(a, before)
        assert sgd.step(lambda: sum(MLP.closure(a, k)() for k in (0, 1, 2))).t == 0 and same(a, b)


def test_plain_is_the_raw_loop_to_the_bit() -> None:
    for problem in PROBLEMS:
        model, raw = problem.model(), problem.model()
        optimizers = [torch.optim.AdamW(m.parameters(), 0.01) for m in (model, raw)]
        sgd = PartialSGD(model, optimizers[0])
        for t in range(4):
            torch.manual_seed(t)
            sgd.step(problem.closure(model, t))
            torch.manual_seed(t)
            optimizers[1].zero_grad()
            problem.closure(raw, t)()
            optimizers[1].step()
        assert same(model, raw), problem.name
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), raw.buffers(), strict=True))


def test_gradients_left_over_from_before_do_not_count() -> None:
    (a, sgd), (b, other) = start(), start()
    MLP.closure(a, 7)()
    sgd.step(MLP.closure(a, 0))
    other.step(MLP.closure(b, 0))
    assert same(a, b) and all(p.grad is None for p in a.parameters())


def test_branches_are_accumulated_as_a_sum_or_a_mean() -> None:
    for combine, divisor in (("sum", 1.0), ("mean", 4.0)):
        branches = lambda c: [Branch(weight=3.0), Branch(weight=1.0)]  # noqa: E731  # shorter than a def
        (a, sgd), (b, plain) = start(Method(branches=branches, combine=combine)), start()
        step = sgd.step(MLP.closure(a, 0))
        plain.step(lambda b=b, divisor=divisor: backward(MLP.evaluate(b, 0) * 4.0 / divisor))
        for p, q in zip(a.parameters(), b.parameters(), strict=True):
            torch.testing.assert_close(p, q)
        assert step.backwards == 2 and len(step.losses) == 2
        assert float(step.loss) == pytest.approx(float(step.losses[0][1]) * 4.0 / divisor)


def test_a_branch_finds_the_outputs_of_the_largest_level_detached() -> None:
    model, sgd = start(Method(branches=lambda c: [Branch(level="full"), Branch(level="core")]))
    seen = []

    def closure(g):
        g.outputs = {"logits": model(torch.ones(2, 6))}
        seen.append((g.level, g.last, g.teacher))
        return backward(g.outputs["logits"].sum())

    assert sgd.step(closure).level == "full"
    assert [(level, last) for level, last, _ in seen] == [("full", False), ("core", True)]
    assert seen[0][2] is None
    assert not seen[1][2]["logits"].requires_grad and seen[1][2]["logits"].shape == (2, 3)
    model, sgd = start(methods.sam())
    seen.clear()
    sgd.step(closure)
    assert [teacher for _, _, teacher in seen] == [None, None], "both passes of a branch are of one function"


def test_scale_multiplies_the_step_and_is_gone_afterwards() -> None:
    for make in (torch.optim.SGD, torch.optim.Adam):
        model, half = MLP.model(), MLP.model()
        optimizer, other = make(model.parameters(), lr=0.1), make(half.parameters(), lr=0.05)
        PartialSGD(model, optimizer, Method(scale=lambda c: 0.5)).step(MLP.closure(model, 0))
        PartialSGD(half, other).step(MLP.closure(half, 0))
        assert same(model, half) and optimizer.param_groups[0]["lr"] == 0.1


def test_correct_and_project_stand_outside_the_algorithm() -> None:
    def correct(context, gradient):
        context.memory["calls"] = int(context.memory.get("calls", 0)) + 1
        return type(gradient)({name: 2 * g for name, g in gradient.items()})

    def project(context):
        names = tuple(context.parameters)
        return perturbations.function(names, lambda x: [x[n].clamp_(min=0) for n in names])

    model, sgd = start(Method(correct=correct, project=project))
    twin, plain = start()
    plain._update.optimizers[0].param_groups[0]["lr"] = 2 * LR
    sgd.step(MLP.closure(model, 0))
    plain.step(MLP.closure(twin, 0))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q.clamp(min=0))
    assert sgd.memory == {"calls": 1}


def test_memory_of_a_failed_step_is_forgotten() -> None:
    def mask(context):
        context.memory["draws"] = int(context.memory.get("draws", 0)) + 1
        return masks.everything(context.parameters)

    def perturb(context):
        return perturbations.along_gradient(context.gradient, -0.01)

    model, sgd = start(Method(mask=mask, perturb=perturb))
    with pytest.raises(ZeroDivisionError):
        sgd.step(lambda: 1 / 0)
    assert sgd.memory == {}
    sgd.step(MLP.closure(model, 0))
    assert sgd.memory == {"draws": 1}, "asked twice in one step, remembered once"


def test_several_optimizers_and_groups_share_the_parameters() -> None:
    model, twin = MLP.model(), MLP.model()

    def optimizers(m):
        groups = [{"params": [m[0].weight], "lr": 0.1}, {"params": [m[0].bias], "lr": 0.2}]
        return [torch.optim.SGD(groups), torch.optim.Adam([*m[2].parameters(), *m[4].parameters()], 0.01)]

    ours, raw = optimizers(model), optimizers(twin)
    sgd = PartialSGD(model, ours)
    for t in range(3):
        sgd.step(MLP.closure(model, t))
        MLP.closure(twin, t)()
        for optimizer in raw:
            optimizer.step()
            optimizer.zero_grad()
        twin.zero_grad()
    assert same(model, twin)


def test_clip_norm_clips_the_masked_gradient_as_the_users_own_clipping_does() -> None:
    method = methods.random_mask(0.3)
    (a, clipped), (b, own) = start(method, clip_norm=0.01), start(method)
    clipped.step(MLP.closure(a, 0))
    for g in own.gradients():
        with g:
            MLP.closure(b, 0)()
    norm = nn.utils.clip_grad_norm_(b.parameters(), 0.01)
    mask = own._pending.mask
    own.update()
    assert same(a, b)
    fresh = MLP.model()
    MLP.closure(fresh, 0)()
    inside = [(p.grad * mask[n]).flatten() for n, p in fresh.named_parameters()]
    assert float(norm) == pytest.approx(float(torch.cat(inside).norm()), rel=1e-5)


def test_state_survives_and_a_foreign_one_is_refused() -> None:
    model, sgd = start(methods.dropout(0.5), seed=4)
    sgd.step(MLP.closure(model, 0))
    state = sgd.state_dict()
    _, other = start(methods.dropout(0.5))
    other.load_state_dict(state)
    assert (other.t, other.seed) == (1, 4)
    wrong = [
        ("saved with method=", start(methods.dropout(0.6))[1]),
        ("saved with outside='hold'", start(methods.dropout(0.5), outside="decay")[1]),
        ("another model", start(methods.dropout(0.5), problem=PROBLEMS[0])[1]),
    ]
    for message, sgd in wrong:
        with pytest.raises(ValueError, match=message):
            sgd.load_state_dict(state)
        assert sgd.t == 0 and sgd.seed == 0
    with pytest.raises(ValueError, match=r"not a state of PartialSGD.*sgd\.state_dict\(\) returned"):
        other.load_state_dict({"t": 3})
    assert other.t == 1


@pytest.mark.parametrize("poison", ["loss", "gradient"])
@pytest.mark.parametrize("method", [Method(), methods.dropout(0.5), methods.sam()], ids=lambda m: m.name)
def test_nonfinite_raise_skip_ignore(poison: str, method: Method) -> None:
    def closure(model):
        loss = MLP.closure(model, 0)()
        if poison == "loss":
            return loss * math.inf
        model[2].weight.grad[0, 0] = math.nan
        return loss

    model, sgd = start(method, clip_norm=None)
    before = bits(model)
    named = "the loss" if poison == "loss" else "'2.weight'"
    with pytest.raises(FloatingPointError, match=rf"{named}.*t = 0"):
        sgd.step(lambda: closure(model))
    assert same(model, before) and sgd.t == 0 and all(p.grad is None for p in model.parameters())

    model, sgd = start(method, nonfinite="skip", clip_norm=1.0)
    for _ in range(19):
        assert sgd.step(lambda: closure(model)).skipped
    with pytest.raises(FloatingPointError, match="20 steps in a row"):
        sgd.step(lambda: closure(model))
    assert same(model, before) and sgd.t == 0

    model, sgd = start(method, nonfinite="ignore")
    assert not sgd.step(lambda: closure(model)).skipped and sgd.t == 1


def test_a_good_step_ends_a_row_of_skips() -> None:
    model, sgd = start(nonfinite="skip")
    for _ in range(3):
        for _ in range(10):
            assert sgd.step(lambda: MLP.closure(model, 0)() * math.nan).skipped
        assert not sgd.step(MLP.closure(model, 0)).skipped


def test_a_large_finite_gradient_is_not_mistaken_for_an_infinite_one() -> None:
    model, sgd = start(clip_norm=1.0)

    def closure():
        loss = MLP.closure(model, 0)()
        for p in model.parameters():
            p.grad.fill_(3e38)
        return loss

    assert not sgd.step(closure).skipped
    model, sgd = start()
    assert not sgd.step(closure).skipped


def no_backward(model):
    return MLP.evaluate(model, 0)


def no_loss(model):
    MLP.closure(model, 0)()


def many_losses(model):
    backward((loss := model(torch.ones(2, 6))).sum())
    return loss


@pytest.mark.parametrize(
    ("closure", "error", "message"),
    [
        (no_backward, RuntimeError, r"loss\.backward\(\)"),
        (no_loss, TypeError, "return loss"),
        (many_losses, TypeError, "one number"),
    ],
)
@pytest.mark.parametrize("method", [Method(), methods.sam()], ids=lambda m: m.name)
def test_a_bad_closure_is_named_and_changes_nothing(closure, error, message, method) -> None:
    model, sgd = start(method)
    before = bits(model)
    with pytest.raises(error, match=message):
        sgd.step(lambda: closure(model))
    assert same(model, before) and sgd.t == 0 and all(p.grad is None for p in model.parameters())
    assert sgd.step(MLP.closure(model, 0)).t == 0


def test_a_loop_that_forgets_something_is_told() -> None:
    model, sgd = start(methods.sam())
    with pytest.raises(RuntimeError, match="no gradient to apply"):
        sgd.update()
    with pytest.raises(RuntimeError, match="inside `with g:`"):
        for _ in sgd.gradients():
            MLP.closure(model, 0)()
    for g in sgd.gradients():
        with g:
            MLP.closure(model, 0)()
        break
    with pytest.raises(RuntimeError, match="no gradient to apply"):
        sgd.update()
    for g in sgd.gradients():
        with g:
            MLP.closure(model, 0)()
    with pytest.raises(RuntimeError, match=r"call update\(\) first"):
        sgd.gradients()
    sgd.zero_grad()
    with pytest.raises(TypeError, match="2 arguments"):
        sgd.step(lambda a, b: None)
    assert sgd.t == 0 and sgd.step(MLP.closure(model, 0)).t == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda m, o: PartialSGD(o, m), "the model comes first and must be an nn.Module, got SGD: write PartialSGD"),
        (lambda m, o: PartialSGD(m, None), "must be a torch.optim.Optimizer or a list of them"),
        (lambda m, o: PartialSGD(m, []), "must be a torch.optim.Optimizer or a list of them"),
        (lambda m, o: PartialSGD(m, [o, 3]), "must be a torch.optim.Optimizer or a list of them"),
        (lambda m, o: PartialSGD(m, torch.optim.SGD), r"build it first: SGD\(model\.parameters\(\), lr=0\.1\)"),
        (lambda m, o: PartialSGD(m, o, methods.dropout), r"must be a Method, got .*; call it: methods\.dropout\(\)"),
        (
            lambda m, o: PartialSGD(m, o, meter=CriteriaMeter),
            r"requests and measure, like ps.CriteriaMeter\(\)",
        ),
        (lambda m, o: PartialSGD(m, o, meter=50), "must have the methods requests and measure"),
        (lambda m, o: Method(mask=masks.everything(m)), "the rule 'mask' must be a function"),
        (lambda m, o: PartialSGD(m, o).step(torch.tensor(1.0)), "takes a closure"),
        (lambda m, o: PartialSGD(m, o, outside="drop"), "hold, decay, reset"),
        (lambda m, o: PartialSGD(m, o, nonfinite="warn"), "raise, skip, ignore"),
        (lambda m, o: PartialSGD(m, o, clip_norm=0.0), "clip_norm must be positive"),
    ],
)
def test_a_wrong_argument_is_refused(make, message) -> None:
    model = MLP.model()
    with pytest.raises((TypeError, ValueError), match=message):
        make(model, torch.optim.SGD(model.parameters(), 0.1))


class WithDefault:
    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __call__(self, g=None):
        assert g is None
        return MLP.closure(self.model, 0)()


@pytest.mark.parametrize(
    ("make", "is_given"),
    [
        (lambda run, model: lambda: run(None), False),
        (lambda run, model: lambda g: run(g), True),
        (lambda run, model: lambda g=None: run(g), False),
        (lambda run, model: lambda *args: run(*args or [None]), False),
        (lambda run, model: functools.partial(lambda a, g: run(g), "a"), True),
        (lambda run, model: WithDefault(model), None),
    ],
)
def test_only_a_required_argument_of_the_closure_gets_the_pass(make, is_given) -> None:
    model, sgd = start()
    given = []

    def run(g):
        given.append(g is not None)
        return MLP.closure(model, 0)().item()  # a loss may be a plain number

    assert sgd.step(make(run, model)).t == 0
    assert given == ([] if is_given is None else [is_given])


def test_every_micro_batch_needs_a_backward_and_its_loss_is_checked() -> None:
    model, sgd = start()
    with pytest.raises(RuntimeError, match="no parameter received a gradient"):
        for g in sgd.gradients():
            with g:
                MLP.closure(model, 0)()
            with g:
                pass
    assert all(p.grad is None for p in model.parameters())
    for g in sgd.gradients():
        for k in (0, 1, 2):
            with g:
                loss = MLP.closure(model, k)()
                g.loss = loss * math.nan if k == 1 else None
    with pytest.raises(FloatingPointError, match="the loss"):
        sgd.update()


def test_gradients_do_not_nest_and_do_not_vanish_unnoticed() -> None:
    model, sgd = start()
    for g in sgd.gradients():
        with g:
            for take in (sgd.gradients, lambda: sgd.step(MLP.closure(model, 0))):
                with pytest.raises(RuntimeError, match="being taken already"):
                    take()
            with pytest.raises(RuntimeError, match="taken already"), g:
                raise AssertionError("the body must not run")
            MLP.closure(model, 0)()
    with pytest.raises(RuntimeError, match="taken already"), g:
        raise AssertionError("the body must not run")
    model.zero_grad()
    with pytest.raises(RuntimeError, match=r"called zero_grad\(\)"):
        sgd.update()
    assert sgd.t == 0
    nothing = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), Method(mask=lambda c: masks.nothing(model)))
    assert nothing.step(MLP.closure(model, 0)).mask.count() == 0


def test_loading_drops_what_is_pending() -> None:
    model, sgd = start()
    state = sgd.state_dict() | {"t": 7}
    for g in sgd.gradients():
        with g:
            MLP.closure(model, 0)()
    sgd.load_state_dict(state)
    with pytest.raises(RuntimeError, match="no gradient to apply"):
        sgd.update()
    assert sgd.t == 7
    with pytest.raises(TypeError, match=r"state_dict\(\) returned"):
        sgd.load_state_dict(None)


def test_a_measurement_that_is_not_finite_does_not_stop_the_step() -> None:
    """NaN at x_t only; the trained gradient is taken elsewhere."""
    model, sgd = start(methods.dropout(0.5), meter=(meter := CriteriaMeter(1)))
    calls = []

    def closure():
        calls.append(1)
        loss = MLP.closure(model, 0)()
        if len(calls) == 1:
            model[0].weight.grad[0, 0] = math.nan
        return loss

    assert not sgd.step(closure).skipped and len(calls) == 2
    assert not meter.summary(sgd), "what overflowed tells nothing"


def test_perturbed_shows_the_network_that_the_next_step_trains() -> None:
    model, sgd = start(methods.dropout(0.5))
    before = bits(model)
    with sgd.perturbed():
        inside = bits(model)
    copied = sgd.extract()
    seen = []

    def closure():
        seen.append(bits(model))
        return MLP.closure(model, 0)()

    assert same(model, before)
    sgd.step(closure)
    assert same(seen[0], inside) and same(bits(copied), inside) and not same(inside, before)


def test_what_is_extracted_has_no_hooks_of_ours_and_keeps_the_users() -> None:
    model = MLP.model()
    handle = model[0].register_forward_hook(lambda *_: None)
    methods.meprop(2).bind(model)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), methods.freezing())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in sgd.extract().modules()]
    assert sum(hooks) == 1 and handle.id in sgd.extract()[0]._forward_hooks
    assert len(model[0]._forward_hooks) == 3


def test_a_step_inside_of_perturbed_is_refused() -> None:
    model, sgd = start(methods.dropout(0.5))
    with sgd.perturbed():
        for take in (lambda: sgd.step(MLP.closure(model, 0)), sgd.gradients):
            with pytest.raises(RuntimeError, match="leave its `with` block before a step"):
                take()
    assert sgd.step(MLP.closure(model, 0)).t == 0


def test_perturbed_keeps_the_users_gradients_and_refuses_a_step_that_was_begun() -> None:
    model, sgd = start(methods.dropout(0.5))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    with sgd.perturbed():
        pass
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    passes = iter(sgd.gradients())
    with next(passes):
        MLP.closure(model, 0)()
    with pytest.raises(RuntimeError, match="a step was begun and not updated"), sgd.perturbed():
        pass
    assert next(passes, None) is None and sgd.update().t == 0


def test_a_rule_that_reads_the_gradient_too_late_or_too_early_raises() -> None:
    early = Method(within=lambda c: nullcontext(c.gradient))
    model, sgd = start(early)
    with pytest.raises(RuntimeError, match=r"'within' of method reads context.gradient, which is not known before"):
        sgd.step(MLP.closure(model, 0))

    class Every:
        def requests(self, context, trained):
            return [GradientRequest(trained)]

        def measure(self, pair):
            return None

    late = Method(
        perturb=lambda c: perturbations.along_gradient(c.gradient, 0.1),
        scale=lambda c: c.gradient.norm(),
        meter=Every(),
    )
    model, sgd = start(late)
    before = bits(model)
    with pytest.raises(RuntimeError, match=r"'scale' of method reads context.gradient, which is gone"):
        sgd.step(MLP.closure(model, 0))
    assert same(bits(model), before) and sgd.t == 0


def test_perturbed_refuses_what_needs_a_batch_and_a_level_that_is_not_there() -> None:
    _, sgd = start(methods.sam())
    with pytest.raises(RuntimeError, match="perturbs by a gradient"), sgd.perturbed():
        pass
    _, sgd = start(methods.dropout())
    with pytest.raises(ValueError, match="no level 'core'"):
        sgd.extract("core")


@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p, 0.1)])
def test_forgotten_state_starts_as_in_a_new_optimizer(make) -> None:
    """Whole tensors: the state of one layer is dropped at t = 3, also while it is outside the mask."""
    method = Method(
        mask=lambda c: masks.only(c.parameters, ["4"]) if c.t == 3 else masks.everything(c.parameters),
        forget=lambda c: masks.only(c.parameters, ["0"]) if c.t == 3 else masks.nothing(c.parameters),
    )
    model = MLP.model()
    optimizer = make(model.parameters())
    sgd = PartialSGD(model, optimizer, method)
    for t in range(3):
        sgd.step(MLP.closure(model, t))
    sgd.step(MLP.closure(model, 3))
    assert model[0].weight not in optimizer.state and model[2].weight in optimizer.state
    other = copy.deepcopy(model)
    fresh = make(other[0].parameters())
    sgd.step(MLP.closure(model, 4))
    MLP.closure(other, 4)()
    fresh.step()
    assert torch.equal(model[0].weight, other[0].weight) and torch.equal(model[0].bias, other[0].bias)


def test_what_cannot_be_forgotten_is_refused_before_anything_moves() -> None:
    method = Method(forget=lambda c: masks.from_tensors(c.parameters, {"0.bias": torch.arange(9) > 4}))
    model = MLP.model()
    sgd = PartialSGD(model, torch.optim.Adam(model.parameters()), method)
    before = bits(model)
    with pytest.raises(NotImplementedError, match=r"Adam cannot reset part of a tensor, as '0.bias' asks for"):
        sgd.step(MLP.closure(model, 0))
    assert same(model, before) and sgd.t == 0


@pytest.mark.parametrize(
    ("method", "meter", "modules", "entries"),
    [
        pytest.param(methods.plain(), None, 10, 40, id="plain"),
        pytest.param(methods.alternating(), None, 18, 60, id="alternating"),
        pytest.param(methods.dropout(0.9), CriteriaMeter(every=1), 24, 180, id="meter"),
    ],
)
def test_a_reader_of_one_step_enters_few_modules(
    method: Method, meter: CriteriaMeter | None, modules: int, entries: int
) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model = nest(model, Width(1 / 2)) if "alternating" in method.name else model
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method, meter=meter)
    x, package = torch.randn(4, 8), str(Path(partialsgd.__file__).parent)
    stack: list[str] = []
    entered: list[str] = []

    def watch(frame, event, argument) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(package):
            if stack[-1:] != [file]:
                entered.append(file)
            stack.append(file)
        elif event == "return" and file.startswith(package) and stack:
            stack.pop()

    def step() -> None:
        sgd.step(lambda: backward(model(x).square().mean()))

    for _ in range(3):
        step()
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        step()
    finally:
        sys.setprofile(before)
    assert 0 < len(set(entered)) <= modules and len(entered) <= entries, entered
