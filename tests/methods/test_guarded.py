"""The fallback's step where the bound is exceeded, the method's where it is not."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from partialsgd import Method, PartialSGD, methods, perturbations
from partialsgd.meters.criteria import Criteria
from partialsgd.testing.problems import PROBLEMS
from tests.methods.training import are_equal, assert_resumes, backward, sgd_of
from tests.training import family

LAWS = {"": methods.guarded(methods.dropout(0.6), by="c_sim", bound=1.0, fallback=methods.sam(0.1), every=2)}

MLP, NORMS = (next(p for p in PROBLEMS if p.name == name) for name in ("mlp", "batchnorm"))


def momentum(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def start(method: Method, problem=MLP) -> tuple[nn.Module, PartialSGD]:
    model = problem.model()
    return model, PartialSGD(model, momentum(model.parameters()), method, seed=1)


def uphill(context) -> perturbations.Perturbation:
    """Twice x, mirrored: from t = 4 to 7 the gradient there points elsewhere."""
    names = tuple(context.parameters) if 4 <= context.t < 8 else ()
    return perturbations.function(names, lambda parameters: [p.mul_(-2.0) for p in parameters.values()])


@pytest.mark.parametrize(("problem", "bound"), [(MLP, 1.3), (NORMS, 0.9)], ids=["mlp", "batchnorm"])
def test_a_step_is_either_the_methods_or_the_fallbacks_to_the_bit(problem, bound: float) -> None:
    """Which one is decided by hand: the criterion computed at both points of a copy."""
    method, fallback = methods.dropout(0.6), methods.sam(0.05)
    model, sgd = start(methods.guarded(method, by="c_sim", bound=bound, fallback=fallback, every=1), problem)
    taken = []
    for t in range(12):
        gradients = []
        for point in (Method(name="x"), method):
            twin = copy.deepcopy(model)
            other = sgd_of(twin, point, 1.0, seed=1)
            other.t = t
            before = [p.detach().clone() for p in twin.parameters()]
            torch.manual_seed(t)
            mask = other.step(problem.closure(twin, t)).mask
            gradients.append([(a - b).detach() for a, b in zip(before, twin.parameters(), strict=True)])
        inside = [torch.as_tensor(mask[n]) for n in mask]
        masked = math.sqrt(sum(float((g * m).square().sum()) for g, m in zip(gradients[0], inside, strict=True)))
        c_sim = masked / math.sqrt(sum(float(g.square().sum()) for g in gradients[1]))
        expected = method if c_sim <= bound else fallback
        taken.append(expected.name)
        alone = copy.deepcopy(model)
        optimizer = momentum(alone.parameters())
        optimizer.load_state_dict(copy.deepcopy(sgd._update.optimizers[0].state_dict()))
        single = PartialSGD(alone, optimizer, expected, seed=1)
        single.t = t
        torch.manual_seed(t)
        single.step(problem.closure(alone, t))
        after = torch.get_rng_state()
        torch.manual_seed(t)
        step = sgd.step(problem.closure(model, t))
        assert step.backwards == 2 + (2 if expected is fallback else 0)
        assert torch.equal(after, torch.get_rng_state())
        for (name, a), b in zip(model.state_dict().items(), alone.state_dict().values(), strict=True):
            assert torch.equal(a, b), f"{name} at {t}"
    assert len(set(taken)) == 2, "both must have occurred"


def test_between_measurements_the_last_verdict_holds() -> None:
    _, sgd = start(methods.guarded(Method(perturb=uphill, name="uphill"), by="c_align", bound=1.5, every=4))
    model = sgd.parameters.model
    plain_model, plain = start(methods.plain())
    kinds = []
    for t in range(12):
        step = sgd.step(MLP.closure(model, t))
        plain.step(MLP.closure(plain_model, t))
        kinds.append(step.backwards)
        assert int(sgd.memory["guard.refused."]) == int(4 <= t < 8)
    assert kinds == [1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1]  # δx = 0 needs no second gradient to be measured
    assert are_equal(model, plain_model)


def test_each_level_is_judged_at_its_own_steps() -> None:
    """With an even interval and alternating levels, t alone would only ever judge the full one."""
    nested, judged = family(), []

    def by(found: Criteria) -> float:
        judged.append(sgd.t)
        return 1.0 if sgd.t % 2 == 0 else math.nan  # the core is always refused

    sgd = PartialSGD(nested, momentum(nested.parameters()), methods.guarded(methods.alternating(), by=by, every=2))
    levels = []
    for _ in range(8):
        levels.append(sgd.step(backward(lambda: nested(torch.ones(4, 6)).square().sum())).level)
    assert judged == [0, 1, 4, 5]
    assert levels == ["full", None] * 4  # the fallback, plain training, has no levels


def test_negative_alignment_and_what_is_not_a_number_are_refused() -> None:
    for value in (-1.0, math.nan, math.inf, 2.1):
        _, sgd = start(methods.guarded(methods.dropout(0.5), by=lambda found, v=value: v, bound=2.0, every=1))
        assert sgd.step(MLP.closure(sgd.parameters.model, 0)).mask.is_everything


def test_the_fallback_remembers_by_itself_and_what_was_refused_is_forgotten() -> None:
    """Two pruning methods use the same names in memory; SAM's count moves once a step."""
    less, more = methods.dynamic_pruning(0.2), methods.dynamic_pruning(0.9)
    model, sgd = start(methods.guarded(more, by=lambda found: math.nan, fallback=less, every=1))
    zeros = []

    def closure() -> torch.Tensor:
        zeros.append(sum(int((p == 0).sum()) for p in model.parameters() if p.ndim == 2))
        return MLP.closure(model, 0)()

    sgd.step(closure)
    total = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    assert zeros == [0, round(0.9 * total), round(0.2 * total)]
    assert all(key.startswith(("guard.", "fallback.")) for key in sgd.memory)
    model, sgd = start(methods.guarded(more, by=lambda found: math.nan, fallback=methods.sam(0.1, interval=2), every=1))
    assert [sgd.step(MLP.closure(model, t)).backwards for t in range(4)] == [4, 3, 4, 3]


def test_a_resumed_run_remembers_the_verdict() -> None:
    method = methods.guarded(Method(perturb=uphill, name="uphill"), by="c_align", bound=1.5, every=4)
    assert_resumes(method, 6, 10, make=momentum)


def test_overflow_under_a_scaler_skips_whichever_pass_it_is_in() -> None:
    for failing in (1, 2, 3):
        model = MLP.model()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        method = methods.guarded(methods.dropout(0.5), by=lambda found: math.nan, every=1)
        sgd = PartialSGD(model, momentum(model.parameters()), method, scaler=scaler)
        before = [p.detach().clone() for p in model.parameters()]
        passes = []

        def closure(passes=passes, model=model, scaler=scaler, failing=failing) -> torch.Tensor:
            loss = MLP.evaluate(model, 0)
            scaler.scale(loss).backward()
            passes.append(1)
            if len(passes) == failing:
                model[4].bias.grad[0] = math.inf
            return loss

        skipped = sgd.step(closure).skipped
        same = all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
        # The first pass is only looked at: a criterion that is not a number refuses, and the fallback's is finite.
        assert (skipped, same) == ((False, False) if failing == 1 else (True, True)), failing
        assert scaler.get_scale() == (1024.0 if failing == 1 else 512.0)


def test_what_cannot_be_guarded_is_refused() -> None:
    one = methods.guarded(methods.dropout())
    for method, settings, message in (
        (one, {}, "one guard is enough"),
        (methods.sam(), {"fallback": one}, "one guard is enough"),
        (methods.sam(), {"by": "c_other"}, "by must be one of c_norm"),
        (methods.sam(), {"bound": 0}, "bound must be positive"),
        (methods.ac_dc(), {}, "acts at certain steps"),
        (methods.sam(), {"fallback": methods.ac_dc()}, "acts at certain steps"),
    ):
        with pytest.raises(ValueError, match=message):
            methods.guarded(method, **settings)
    nested = family()
    sgd = PartialSGD(nested, momentum(nested.parameters()), methods.guarded(methods.slimmable()))
    with pytest.raises(ValueError, match="a guard judges one gradient, and this step takes 2"):
        sgd.step(lambda: nested(torch.ones(2, 6)).sum())
