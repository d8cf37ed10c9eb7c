"""DistributedDataParallel with two real processes, torch.compile and accelerate."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from partialsgd import CriteriaMeter, PartialSGD, methods
from partialsgd.testing.problems import PROBLEMS
from tests import two_processes as distributed
from tests.contracts import METHODS
from tests.functions import backward
from tests.methods.laws import OF_LEVELS
from tests.processes import run_on
from tests.switchable import alternating, build
from tests.training import bits
from tests.two_processes import MLP, STEPS


def test_every_method_trains_alike_on_two_ranks(tmp_path: Path) -> None:
    zero, one = run_on(distributed.methods, 2, tmp_path)
    for name in METHODS:
        model = MLP.model()
        sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.01), METHODS[name])
        for t in range(STEPS):
            sgd.step(lambda t=t, model=model: _both_halves(model, t))
        for views in (False, True):
            for key in (f"{name} {views}", f"{name} {views} mask"):
                assert all(torch.equal(a, b) for a, b in zip(zero[key], one[key], strict=True)), f"ranks differ: {key}"
            for ours, alone in zip(zero[f"{name} {views}"], model.parameters(), strict=True):
                torch.testing.assert_close(ours, alone, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
        for a, b in zip(zero[f"{name} False"], zero[f"{name} True"], strict=True):
            # Not to the bit: where a gradient lies decides how some processors add.
            said = f"{name}: a bucket view was overwritten"
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=said)


def _both_halves(model: nn.Module, t: int) -> torch.Tensor:
    return backward((MLP.evaluate(model, 2 * t) + MLP.evaluate(model, 2 * t + 1)) / 2)


def test_criteria_are_those_of_the_mean_gradient_and_the_same_on_both_ranks(tmp_path: Path) -> None:
    zero, one = run_on(distributed.criteria, 2, tmp_path)
    assert zero == one
    assert zero["unlike"] == [5.0] * 5 + [0.0, 0], "all decide by the mean of 2 · 1² and 2 · 2²"
    for name, (build_one, method_of) in distributed.MEASURED.items():
        model = build_one()
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.0), method_of(model), meter=CriteriaMeter(1))
        alone = sgd.step(lambda model=model: _both_halves(model, 0)).criteria
        for views in (False, True):
            for own in (False, True):
                expected = [getattr(alone, number) for number in distributed.NUMBERS]
                assert zero[f"{name} {views} {own}"] == pytest.approx(expected, rel=1e-4), (name, views, own)


def test_every_method_for_families_trains_alike_on_two_ranks(tmp_path: Path) -> None:
    zero, one = run_on(distributed.families, 2, tmp_path)
    assert zero.keys() == {f"{kind} {name}" for kind in distributed.FAMILIES for name in OF_LEVELS}
    for key, parameters in zero.items():
        assert all(torch.equal(a, b) for a, b in zip(parameters, one[key], strict=True)), f"ranks differ: {key}"
        kind, _, name = key.rpartition(" ")
        nested = distributed.family(kind)
        sgd = PartialSGD(nested, torch.optim.AdamW(nested.parameters(), 0.01), distributed.method(name, nested))
        for t in range(STEPS):
            sgd.step(lambda t=t, nested=nested: _both_ranks(nested, t))
        for ours, alone in zip(parameters, nested.parameters(), strict=True):
            torch.testing.assert_close(ours, alone, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def _both_ranks(model: nn.Module, t: int) -> torch.Tensor:
    halves = [torch.randn(5, 6, generator=torch.Generator().manual_seed(2 * t + rank)) for rank in (0, 1)]
    return backward(torch.stack([model(x).square().mean() for x in halves]).mean())


def test_ranks_decide_alike_by_what_they_measure(tmp_path: Path) -> None:
    """Law 13: the level, the step size and the split of every step, though each rank sees data of its own."""
    zero, one = run_on(distributed.control, 2, tmp_path)
    for key, found in zero.items():
        if key.endswith(("parameters", "subnets decisions")):
            assert all(torch.equal(a, b) for a, b in zip(found, one[key], strict=True)), f"ranks differ: {key}"
        else:
            assert found == one[key], f"ranks differ: {key}"
    levels, rates = ([d[k] for d in zero[f"{name} decisions"]] for k, name in ((0, "criterion"), (1, "scaled")))
    assert levels != ["full", "1/2", "1/4"] * 8, "nothing was decided"
    assert len(set(rates)) > 3 and {d[0] for d in zero["guarded decisions"]} >= {"full", "1/2", None}
    assert zero["subnets round"] > 24 // 12 - 1


def test_a_structural_method_needs_the_search_for_unused_parameters(tmp_path: Path) -> None:
    zero, one = run_on(distributed.structural, 2, tmp_path)
    assert zero["message"].count("find_unused_parameters=True") == 2, "declared at construction, or found at the pass"
    assert zero["untouched"] == [False, True, False, True]
    assert all(torch.equal(a, b) for a, b in zip(zero["parameters"], one["parameters"], strict=True))
    model = build()
    sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.1), alternating(model))

    def both(t: int) -> torch.Tensor:
        halves = [torch.randn(5, 6, generator=torch.Generator().manual_seed(2 * t + rank)) for rank in (0, 1)]
        return backward(sum(model(x).square().mean() for x in halves) / 2)

    for t in range(STEPS):
        sgd.step(lambda t=t: both(t))
    for ours, alone in zip(zero["parameters"], model.parameters(), strict=True):
        torch.testing.assert_close(ours, alone)


def test_ranks_skip_together(tmp_path: Path) -> None:
    zero, one = run_on(distributed.skipping, 2, tmp_path)
    assert zero["skipped"] == one["skipped"] == [False, True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(zero["parameters"], one["parameters"], strict=True))


@pytest.mark.parametrize("name", ["plain", "dropout", "sam", "top_k"])
def test_compiled_models_train_as_eager_ones(name: str) -> None:
    """`aot_eager` traces and differentiates as inductor does, without a C++ compiler's minute."""
    eager, compiled = MLP.model(), MLP.model()
    torch.compiler.reset()
    wrapped = torch.compile(compiled, backend="aot_eager", fullgraph=True)
    runs = []
    for model, called in ((eager, eager), (compiled, wrapped)):
        sgd = PartialSGD(called, torch.optim.AdamW(called.parameters(), 0.01), METHODS[name])
        assert list(sgd.parameters) == [n for n, _ in model.named_parameters()], "no _orig_mod in the names"
        for t in range(STEPS):
            sgd.step(MLP.closure(called, t))
        runs.append(list(model.parameters()))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # inductor's own import
def test_inductor_compiles_a_perturbed_model_once() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model = MLP.model()
    wrapped = torch.compile(model, fullgraph=True)
    sgd = PartialSGD(wrapped, torch.optim.AdamW(model.parameters(), 0.01), methods.sam())
    twin = MLP.model()
    eager = PartialSGD(twin, torch.optim.AdamW(twin.parameters(), 0.01), methods.sam())
    for t in range(STEPS):
        sgd.step(MLP.closure(wrapped, t))
        eager.step(MLP.closure(twin, t))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(bits(model), bits(twin))


@pytest.mark.parametrize("name", ["plain", "dropout", "sam"])
def test_accelerate_prepared_models_and_optimizers_train_alike(name: str, accelerator) -> None:
    problem = next(p for p in PROBLEMS if p.name == "mlp")
    model = problem.model()
    prepared, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 0.01))
    sgd = PartialSGD(prepared, optimizer, METHODS[name])
    twin = problem.model()
    other = PartialSGD(twin, torch.optim.AdamW(twin.parameters(), 0.01), METHODS[name])

    def closure(t: int) -> torch.Tensor:
        loss = problem.evaluate(prepared, t)
        accelerator.backward(loss)
        return loss

    def plainly(t: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return backward(problem.evaluate(lambda *a: twin(*a).float(), t))

    for t in range(STEPS):
        sgd.step(lambda t=t: closure(t))
        other.step(lambda t=t: plainly(t))
    torch.testing.assert_close(bits(model), bits(twin), rtol=1e-4, atol=1e-4)
