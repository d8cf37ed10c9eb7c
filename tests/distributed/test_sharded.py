"""Models sharded by `fully_shard` on real processes: every method gives what one process gives, to rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from partialsgd import CriteriaMeter, Mask, Method, PartialSGD
from partialsgd import methods as registry
from partialsgd.distributed import shard
from partialsgd.parameters import Parameters
from tests import sharded_processes as sharded
from tests.contracts import METHODS
from tests.functions import backward
from tests.methods.laws import OF_LEVELS
from tests.processes import run_on
from tests.training import by_gradients

BOTH = (0, 1)


def assert_equal(ours: list[Tensor], others: list[Tensor], what: str) -> None:
    assert all(torch.equal(a, b) for a, b in zip(ours, others, strict=True)), what


def assert_close(ours: list[Tensor], alone: list[Tensor], what: str) -> None:
    for a, b in zip(ours, alone, strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=2e-6, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("settings", ["main", pytest.param("others", marks=pytest.mark.slow)])
def test_every_method_trains_as_in_one_process(tmp_path: Path, settings: str) -> None:
    """Also its masks are the same ones: random, by magnitude, of neurons."""
    is_main = settings == "main"
    zero, one = run_on(sharded.methods if is_main else sharded.other_settings, 2, tmp_path)
    for name in sharded.MAIN if is_main else sharded.OTHERS:
        for optimizer in sharded.OPTIMIZERS:
            key, model = f"{name} {optimizer}", sharded.network()
            _, steps = sharded.train(model, optimizer, METHODS[name], BOTH)
            assert_equal(zero[key], one[key], f"ranks differ: {key}")
            assert_close(zero[key], list(model.parameters()), key)
            masks = [entry for step in steps for entry in sharded.whole_mask(step.mask)]
            assert_equal(zero[f"{key} masks"], masks, f"other masks: {key}")
            assert_equal(one[f"{key} masks"], masks, f"other masks: {key}")


def test_every_method_for_levels_trains_as_in_one_process(tmp_path: Path) -> None:
    zero, one = run_on(sharded.families, 2, tmp_path)
    assert len(zero) == len(sharded.FAMILIES) * len(OF_LEVELS) * len(sharded.OPTIMIZERS)
    for key, parameters in zero.items():
        kind, name, optimizer = key.rsplit(" ", 2)
        nested = sharded.family(kind)
        sharded.train(nested, optimizer, sharded.method(name, nested), BOTH)
        assert_equal(parameters, one[key], f"ranks differ: {key}")
        assert_close(parameters, list(nested.parameters()), key)


def test_meters_and_guards_measure_the_whole_network(tmp_path: Path) -> None:
    zero, one = run_on(sharded.meters, 2, tmp_path)
    assert str(zero) == str(one), "ranks differ"  # as text: a group has no ‖δx‖, and nan is not nan
    for name in sharded.MEASURED:
        alone = sharded.measured(name, BOTH, lambda model: model)
        assert len(zero[name]) == len(alone) > sharded.STEPS, "groups are measured too"
        for ours, theirs in zip(zero[name], alone, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6, nan_ok=True), name


def test_clipping_and_policies_are_of_the_whole_network(tmp_path: Path) -> None:
    zero, one = run_on(sharded.options, 2, tmp_path)
    for name, (method, options) in sharded.OPTIONS.items():
        model = sharded.network()
        sharded.train(model, "AdamW", method, BOTH, **options)
        assert_equal(zero[name], one[name], f"ranks differ: {name}")
        assert_close(zero[name], list(model.parameters()), name)


def test_no_pass_runs_with_parameters_from_before_a_change(tmp_path: Path) -> None:
    zero, _ = run_on(sharded.stale, 2, tmp_path)
    model = sharded.network()
    x = sharded.batch(0, 0)[0]
    sgd = PartialSGD(model, sharded.OPTIMIZERS["SGD"](model.parameters()), registry.dynamic_pruning(0.5, every=1))
    torch.testing.assert_close(zero["before"], model(x).detach())
    assert torch.equal(zero["after"], zero["before"]) and not torch.equal(zero["perturbed"], zero["before"])
    alone = sgd.extract()
    torch.testing.assert_close(zero["perturbed"], alone(x).detach())
    assert torch.equal(zero["extracted"], zero["perturbed"]) and torch.equal(zero["weight"], alone[0].weight)
    assert zero["kind"] == "Linear", "the copy is an ordinary network"
    sgd.step(lambda: backward(sharded.loss(model, 0, BOTH)))
    torch.testing.assert_close(zero["updated"], model(x).detach())
    assert_close(zero["parameters"], list(model.parameters()), "updated")


def test_a_pass_that_raises_leaves_x_exact_and_the_next_one_works(tmp_path: Path) -> None:
    zero, one = run_on(sharded.failing, 2, tmp_path)
    for number in range(4):
        assert zero[f"raised {number}"]
        for rank in (zero, one):
            assert_equal(rank[f"after {number}"], rank["start"], f"x moved in failure {number}")
    model = sharded.network()
    sharded.train(model, "AdamW", registry.sam(0.3), BOTH, steps=2)
    assert zero["t"] == 2
    assert_close(zero["end"], list(model.parameters()), "after failures")


def test_all_ranks_skip_a_step_that_is_not_finite_on_one(tmp_path: Path) -> None:
    zero, one = run_on(sharded.skipping, 2, tmp_path)
    assert zero["skipped"] == one["skipped"] == [False, True, False]
    assert_equal(zero["parameters"], one["parameters"], "ranks differ")


def test_a_level_is_extracted_whole_on_every_rank(tmp_path: Path) -> None:
    zero, one = run_on(sharded.extracted, 2, tmp_path)
    for kind in sharded.FAMILIES:
        nested = sharded.family(kind)
        sharded.train(nested, "SGD", sharded.method("alternating", nested), BOTH, steps=2)
        for level in nested.levels:
            plain = nested.extract(level, example=sharded.batch(0, 0)[0])
            assert_equal(zero[f"{kind} {level}"], one[f"{kind} {level}"], "ranks differ")
            assert_close(zero[f"{kind} {level}"], list(plain.parameters()), f"{kind} {level}")
            torch.testing.assert_close(zero[f"{kind} {level} output"], plain(sharded.batch(0, 0)[0]).detach())


def test_micro_batches_are_added_up(tmp_path: Path) -> None:
    zero, _ = run_on(sharded.micro_batches, 2, tmp_path)
    model = sharded.network()
    sgd = PartialSGD(model, sharded.OPTIMIZERS["AdamW"](model.parameters()), registry.sam(0.3))
    for t in range(2):
        by_gradients(
            sgd, *(lambda t=t, part=part: backward(sharded.loss(model, 10 * t + part, BOTH)) for part in (0, 1))
        )
    assert_close(zero["parameters"], list(model.parameters()), "micro-batches")


def test_a_level_gathers_its_own_parameters_and_nothing_else(tmp_path: Path) -> None:
    zero, _ = run_on(sharded.units, 2, tmp_path)
    for kind in sharded.NESTED:
        nested = sharded.stacked(kind)
        names, x = Parameters(nested), sharded.batch(0, 0)[0]
        assert sorted(zero[f"{kind} keys"]) == sorted(nested.state_dict())
        assert sorted(zero[f"{kind} names"]) == sorted(names)
        sizes = {level: sum(p.numel() for p in nested.parameters(level=level)) for level in nested.levels}
        assert len(set(sizes.values())) == len(sizes), "each level is smaller than the next"
        for level, size in sizes.items():
            gathered = zero[f"{kind} {level} forward"], zero[f"{kind} {level} step"]
            assert gathered == (size, size), f"{kind} {level}"
        for method in ("alternating", "sandwich"):
            nested = sharded.stacked(kind)
            sgd, _ = sharded.train(nested, "AdamW", sharded.method(method, nested), BOTH)
            ours = zero[f"{kind} {method}"]
            assert_close([ours[n] for n in sgd.parameters], list(sgd.parameters.values()), f"{kind} {method}")
        core = nested.extract(nested.levels[0], example=x)
        assert_close(zero[f"{kind} extracted"], list(core.state_dict().values()), f"{kind} extracted")


def test_shard_refuses_what_it_cannot_shard(tmp_path: Path) -> None:
    messages = run_on(sharded.refused, 2, tmp_path)[0]["messages"]
    for message, part in zip(messages, ("already", "single number", "nn.Module", "matches no module"), strict=True):
        assert part in message
    with pytest.raises(RuntimeError, match="needs a process group"):
        shard(sharded.network())


def test_what_cannot_be_exact_is_refused_and_the_rest_works(tmp_path: Path) -> None:
    """Element masks of parameters that are sharded by columns, and a loss scaler."""
    zero, _ = run_on(sharded.not_exact, 2, tmp_path)
    assert zero["untouched"] and len(zero["messages"]) == 3
    assert all("Shard(0)" in message for message in zero["messages"][:2]) and "bf16" in zero["messages"][2]
    model = sharded.network()
    sharded.train(model, "SGD", registry.sam(0.3), BOTH)
    assert_close(zero["sam"], list(model.parameters()), "sharded by columns")


def test_a_checkpoint_continues_on_other_numbers_of_ranks(tmp_path: Path) -> None:
    """2 → 2 ranks: the bits of a run that never stopped; 2 → 4 → 1 → 2 ranks: to rounding."""
    found = {}
    for ranks, steps, saved, to in (
        (2, range(6), None, None),
        (2, range(3), None, "first"),
        (2, range(3, 6), "first", None),
        (4, range(3, 6), "first", "four"),
        (1, range(6, 9), "four", "one"),
        (2, range(9, 12), "one", None),
    ):
        folder = tmp_path / f"{ranks} {steps}"
        folder.mkdir()
        found[ranks, steps] = run_on(sharded.continue_all(str(tmp_path), ranks, steps, saved, to), ranks, folder)[0]
    for case, (optimizer, build, method_of) in sharded.SAVED.items():
        straight, resumed = (found[2, steps][case]["parameters"] for steps in (range(6), range(3, 6)))
        assert_equal([straight[name] for name in resumed], list(resumed.values()), f"{case}: resuming changed bits")
        model = build()
        meter = CriteriaMeter(2, consecutive=True)
        sgd = PartialSGD(model, sharded.OPTIMIZERS[optimizer](model.parameters()), method_of(model), meter=meter)
        for t in range(12):
            sgd.step(lambda t=t, model=model: backward(sharded.loss(model, t, BOTH)))
            for (ranks, steps), result in found.items():
                if t + 1 == steps.stop:
                    ours = [result[case]["parameters"][name] for name in sgd.parameters]
                    assert_close(ours, list(sgd.parameters.values()), f"{case} on {ranks} ranks, {steps}")
        had_gradients = {name for name, p in sgd.parameters.items() if sgd.optimizers[0].state.get(p)}
        assert all(set(result[case]["states"]) == had_gradients for result in found.values()), case
        assert case != "core only" or len(had_gradients) < len(sgd.parameters), "some never had a gradient"


def test_torchs_checkpoints_take_a_partial_sgd_and_never_load_a_part_of_it(tmp_path: Path) -> None:
    zero, _ = run_on(sharded.stateful, 2, tmp_path)
    assert zero["t"] == 2 and zero["before"].keys() == zero["after"].keys() != set()
    assert_equal(list(zero["before"].values()), list(zero["after"].values()), "the memory")
    fresh, method, model = zero["messages"]
    assert "ps.distributed.load" in fresh and "keep=0.3" in method and "another model" in model


def test_a_rule_may_give_ordinary_tensors_and_an_export_of_parts_is_refused(tmp_path: Path) -> None:
    zero, one = run_on(sharded.masks_and_files, 2, tmp_path)
    assert "ps.distributed.save" in zero["message"] and not zero["is_there"]
    model = sharded.network()
    chosen = Method(mask=lambda c: Mask(c.parameters, {n: sharded.every_second(p) for n, p in c.parameters.items()}))
    _, steps = sharded.train(model, "AdamW", chosen, BOTH)
    assert zero["count"] == one["count"] == steps[0].mask.count()
    assert_close(zero["parameters"], list(model.parameters()), "every second coordinate")
