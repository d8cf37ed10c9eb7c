"""`data_parallel` with two and four real processes: it sends what moves, and ends with what one process would have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partialsgd import CriteriaMeter, PartialSGD
from partialsgd import methods as registry
from tests.distributed import data_parallel_ranks as ranks
from tests.distributed.data_parallel_ranks import FAMILIES, LEVELS, MASKED, MLP, STEPS
from tests.functions import backward
from tests.methods.laws import METHODS, OF_LEVELS
from tests.processes import run_on
from tests.two_processes import CONTROLLED, MEASURED, NUMBERS

WORLDS = (2, 4)
SEND_THEIR_MASK = (
    *("ac_dc", "ac_dc_rows", "block_coordinate", "block_coordinate_free", "dropout", "dropout_neurons", "freezing"),
    *("dynamic_sparsity", "independent_subnets", "independent_subnets_average", "layerwise", "random_mask"),
)
"""Methods whose mask is known before the gradient: a step sends as many numbers as move."""
SEND_EVERYTHING = (
    "plain",
    "sam",
    "extragradient",
    "top_k",
    "compressed_gradient",
    "dynamic_pruning",
    "meprop_unmasked",
)
"""Methods of which everything moves, or whose mask depends on the whole gradient."""


def assert_equal(a: Sequence[Tensor], b: Sequence[Tensor], message: str) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), message


def assert_close(a: Sequence[Tensor], b: Sequence[Tensor], message: str) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4, msg=lambda m: f"{message}: {m}")


def assert_all_equal(zero: dict[str, Any], others: Sequence[dict[str, Any]], key: str) -> None:
    for each in others:
        assert_equal(zero[key], each[key], f"ranks differ: {key}")


def mean_loss(model: nn.Module, t: int, world: int) -> Tensor:
    """The loss of one process that has the batches of all ranks."""
    return torch.stack([MLP.evaluate(model, world * t + rank) for rank in range(world)]).mean()


def test_every_method_ends_with_the_bits_of_plain_ddp_and_sends_its_mask(tmp_path: Path) -> None:
    zero, one = run_on(ranks.methods, 2, tmp_path)
    whole = sum(p.numel() for p in MLP.model().parameters())
    for name in METHODS:
        assert_equal(zero[f"{name} views"], one[f"{name} views"], f"ranks differ: {name}")
        assert_equal(zero[f"{name} views"], zero[f"{name} ddp"], f"not the bits of plain DDP: {name}")
        sent, inside = zero[f"{name} sent"], sum(zero[f"{name} inside"])
        if name in SEND_THEIR_MASK:
            assert sent == inside < whole * STEPS, f"{name} sent {sent} numbers, and {inside} moved"
        if name in SEND_EVERYTHING:
            assert sent == whole * sum(zero[f"{name} passes"]), name
    for name in ranks.COPIED:
        assert_equal(zero[f"{name} copies"], zero[f"{name} ddp"], f"not the bits of plain DDP: {name}")


def test_every_method_for_levels_ends_with_the_bits_of_plain_ddp_and_sends_its_level(tmp_path: Path) -> None:
    zero, one = run_on(ranks.families, 2, tmp_path)
    for kind in FAMILIES:
        nested = ranks.family(kind)
        size = {level: nested.mask(level).count() for level in nested.levels}
        for name in OF_LEVELS:
            key = f"{kind} {name}"
            assert_equal(zero[f"{key} ours"], one[f"{key} ours"], f"ranks differ: {key}")
            assert_equal(zero[f"{key} ours"], zero[f"{key} ddp"], f"not the bits of plain DDP: {key}")
            assert zero[f"{key} sent"] == sum(size[level] for level in zero[f"{key} levels"]), key


@pytest.mark.parametrize("world", WORLDS)
def test_levels_and_masks_end_with_what_one_process_has(world: int, tmp_path: Path) -> None:
    zero, *others = run_on(ranks.as_one_process, world, tmp_path)
    for key in zero:
        assert_all_equal(zero, others, key)
    for kind in FAMILIES:
        for name, make in LEVELS.items():
            nested = ranks.family(kind)
            sgd = PartialSGD(nested, torch.optim.AdamW(nested.parameters(), 0.01), make())
            for t in range(STEPS):
                batches = [ranks.inputs(t, rank) for rank in range(world)]
                sgd.step(lambda b=batches, n=nested: backward(torch.stack([n(x).square().mean() for x in b]).mean()))
            assert_close(zero[f"{kind}, {name}"], list(nested.parameters()), f"{kind}, {name}")
    for name, make in MASKED.items():
        model = MLP.model()
        sgd = PartialSGD(model, torch.optim.AdamW(model.parameters(), 0.01), make())
        for t in range(STEPS):
            sgd.step(lambda t=t, m=model: backward(mean_loss(m, t, world)))
        assert_close(zero[name], list(model.parameters()), name)


@pytest.mark.parametrize("world", WORLDS)
def test_micro_batches_are_added_up_and_sent_once(world: int, tmp_path: Path) -> None:
    zero, *others = run_on(ranks.accumulation, world, tmp_path)
    for kind in ("low rank", "width"):
        nested = ranks.family(kind)
        sgd = PartialSGD(nested, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
        for t in range(STEPS):
            batches = [ranks.inputs(t, k) for k in range(2 * world)]
            sgd.step(lambda b=batches, n=nested: backward(torch.stack([n(x).square().mean() for x in b]).mean() * 2))
        for how in ("closure", "loop"):
            for views in (False, True):
                key = f"{how} {kind} {views}"
                assert_all_equal(zero, others, key)
                assert_close(zero[key], list(nested.parameters()), key)
                assert zero[f"{key} sent"] == zero[f"{key} inside"], f"not sent once: {key}"


def test_a_layer_that_only_the_first_micro_batch_uses_is_averaged_too(tmp_path: Path) -> None:
    zero, one = run_on(ranks.accumulated_unused, 2, tmp_path)
    assert_equal(zero["parameters"], one["parameters"], "ranks differ")
    torch.manual_seed(0)
    model = ranks.Two()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1))
    passes = [(0, True), (1, False)]
    sgd.step(
        lambda: backward(
            sum(model(ranks.inputs(t, r), both=both).square().sum() for t, both in passes for r in range(2)) / 2
        )
    )
    assert_close(zero["parameters"], list(model.parameters()), "not what one process has")


def test_sets_of_parameters_may_change_from_step_to_step(tmp_path: Path) -> None:
    zero, one = run_on(ranks.changing_sets, 2, tmp_path)
    for key in ("unused ours", "unfrozen"):
        assert_equal(zero[key], one[key], f"ranks differ: {key}")
    assert_equal(zero["unused ours"], zero["unused ddp"], "not the bits of plain DDP")
    torch.manual_seed(0)
    model = ranks.layers()
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1))
    for t in range(STEPS):
        model[0].requires_grad_(t > 0)
        halves = [ranks.inputs(t, rank) for rank in range(2)]
        sgd.step(lambda h=halves: backward(torch.stack([model(x).square().mean() for x in h]).mean()))
    assert_close(zero["unfrozen"], list(model.parameters()), "not what one process has")
    assert len(set(zero["left out"])) > 1, "all masks leave out the same tensors, which shows nothing"
    assert zero["reducers"] == 2, "one for all masks of elements, beside the one of the whole network"


def test_processes_that_begin_differently_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for rank, messages in enumerate(run_on(ranks.unlike, 2, tmp_path)):
        for how in ("ours", "ddp"):
            assert f"t = 0 with seed = {rank}" in messages[f"{how} seed"], messages
            assert f"t = {(1, 7)[rank]} with seed = 0" in messages[f"{how} state"], messages


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_skip_an_overflow_together(world: int, tmp_path: Path) -> None:
    zero, *others = run_on(ranks.scaled, world, tmp_path)
    for name in ("plain", "block_coordinate", "dropout"):
        for each in (zero, *others):
            assert each[f"{name} skipped"] == [False, True, False, False, False, False]
            assert each[f"{name} scale"] == 512.0
        assert_all_equal(zero, others, name)
        model = MLP.model()  # a skipped step does not count, so the next batch has the mask of the skipped one
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), getattr(registry, name)())
        for t in (0, 2, 3, 4, 5):
            sgd.step(lambda t=t, m=model: backward(mean_loss(m, t, world)))
        assert_close(zero[name], list(model.parameters()), name)


@pytest.mark.parametrize("world", WORLDS)
def test_meters_and_guards_measure_what_one_process_does(world: int, tmp_path: Path) -> None:
    zero, *others = run_on(ranks.measured, world, tmp_path)
    for name, (build, method_of) in MEASURED.items():
        model = build()
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.0), method_of(model), meter=CriteriaMeter(1))
        alone = sgd.step(lambda m=model: backward(mean_loss(m, 0, world))).criteria
        for own in (False, True):
            key = f"{name} {own}"
            assert all(zero[key] == each[key] for each in others), f"ranks differ: {key}"
            assert zero[key] == pytest.approx([getattr(alone, number) for number in NUMBERS], rel=1e-4), key
    for name in CONTROLLED:
        of_ddp, ours = zero[f"{name} decisions"]
        assert all(ours == each[f"{name} decisions"][1] for each in others), f"ranks differ: {name}"
        if world == 2:
            assert ours == of_ddp
            assert_equal(zero[f"{name} ours"], zero[f"{name} ddp"], name)
        else:  # numbers are added up in another order
            assert [level for level, _ in ours] == [level for level, _ in of_ddp]
            assert_close(zero[f"{name} ours"], zero[f"{name} ddp"], name)


def test_errors_are_raised_and_leave_no_trace(tmp_path: Path) -> None:
    zero, one = run_on(ranks.errors, 2, tmp_path)
    messages = zero["messages"]
    assert messages == one["messages"]
    assert messages["before"] == messages["within"] == "division by zero"
    assert "call what data_parallel(model) returned" in messages["past"]
    assert "run it outside no_sync()" in messages["unsynced"]
    assert "'second.weight', 'second.bias' took no part in this pass" in messages["unused"]
    assert "is data parallel already" in messages["twice"] and "static_graph" in messages["static"]
    assert "end with a pass that uses it" in messages["smaller last"]
    assert_equal(zero["parameters"], zero["twin"], "the failures left a trace")
    assert_equal(zero["parameters"], one["parameters"], "ranks differ")
    assert_equal(zero["after"], one["after"], "ranks differ after a pass that left a layer out")


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("work", ["compiled_inside", pytest.param("compiled_anywhere", marks=pytest.mark.slow)])
def test_compiled_models_send_and_learn_the_same(work: str, world: int, tmp_path: Path) -> None:
    zero, *others = run_on(getattr(ranks, work), world, tmp_path)
    nested = ranks.family("depth")
    sgd = PartialSGD(nested, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
    for t in range(STEPS):
        batches = [ranks.inputs(t, rank) for rank in range(world)]
        sgd.step(lambda b=batches, n=nested: backward(torch.stack([n(x).square().mean() for x in b]).mean()))
    for how in [key for key in zero if " " not in key]:
        assert_all_equal(zero, others, how)
        assert_close(zero[how], list(nested.parameters()), f"not what one process has: {how}")
        assert_close(zero[how], zero["eager"], how)
        assert zero[f"{how} sent"] == zero[f"{how} inside"], how


def test_the_wrapper_saves_resumes_evaluates_and_extracts(tmp_path: Path) -> None:
    zero, one = run_on(ranks.used_as_a_model, 2, tmp_path)
    assert zero["keys"] == [f"module.{key}" for key in zero["nested keys"]]
    assert "DistributedDataParallel" not in zero["modules"]
    assert_equal(zero["parameters"], zero["resumed"], "a resumed run parts ways")
    assert_equal(zero["parameters"], one["parameters"], "ranks differ")
    torch.testing.assert_close(*zero["core"])
    assert zero["alone"] and not one["alone"]
