"""The nested model: levels that nest, backward at its own level, copies, states, precisions and compiled graphs."""

from __future__ import annotations

import _thread
import asyncio
import contextvars
import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partialsgd import Depth, LowRank, Nested, Width, nest
from partialsgd.nested.example_inputs import tensors_of
from partialsgd.nested.layers.base import NestedModule
from tests.nested.checks import output
from tests.zoo import ZOO, gpt2, llama, specs_for, tokens


def model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)]
    return nn.Sequential(*layers)


SPECS: dict[str, dict[str, Any]] = {
    "width": {"spec": Width((1 / 4, 1 / 2))},
    "width shared": {"spec": Width((1 / 4, 1 / 2), order="norm"), "norms": "shared"},
    "low rank": {"spec": LowRank((1 / 4, 1 / 2))},
}


def nested_model(kind: str = "width") -> Nested:
    return nest(model(), **SPECS[kind])


def x(rows: int = 5) -> Tensor:
    return torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows))


def outputs(nested: Nested) -> list[Tensor]:
    made = []
    for level in nested.levels:
        with nested.at(level):
            made.append(nested(x()).detach())
    return made


# Levels


def test_parameters_of_a_level_are_counted_by_hand_and_are_the_mask() -> None:
    nested = nested_model()
    for level, (hidden, second) in zip(nested.levels, ((4, 2), (8, 4), (16, 8)), strict=True):
        count = 7 * hidden + 2 * hidden + second * (hidden + 1) + 3 * (second + 1)
        assert sum(p.numel() for p in nested.parameters(level=level)) == count
        mask = nested.mask(level)
        assert mask.count() == count and not mask.partial, "whole parameters"
        used = set(nested.parameters(level=level))
        assert {name for name, p in nested.named_parameters() if p in used} == {n for n in mask if mask[n] is True}
    assert sum(p.numel() for p in nested.parameters()) == sum(p.numel() for p in super(Nested, nested).parameters())


# Backward


class Checkpointed(nn.Module):
    def __init__(self, *, reentrant: bool | None) -> None:
        super().__init__()
        self.up, self.down, self.head = nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)
        self.reentrant = reentrant

    def body(self, y: Tensor) -> Tensor:
        z: Tensor = self.down(torch.tanh(self.up(y)))
        return z

    def forward(self, y: Tensor) -> Tensor:
        if self.reentrant is None:
            z: Tensor = self.head(self.body(y))
        else:
            z = self.head(checkpoint(self.body, y, use_reentrant=self.reentrant))
        return z


CHECKPOINTED: list[Any] = [Width(1 / 2, hidden=("up", "down")), LowRank(1 / 4, where=("up", "down"))]


@pytest.mark.parametrize("spec", CHECKPOINTED)
@pytest.mark.parametrize("reentrant", [None, True, False])
def test_a_backward_at_another_level_raises_and_moves_no_gradient(spec: Any, reentrant: bool | None) -> None:
    nested, given = nest(Checkpointed(reentrant=reentrant), spec), x().requires_grad_()
    with nested.at("core"):
        loss = nested(given).square().sum()
    with pytest.raises(RuntimeError, match=r"began at level 'full', its forward ran at level 'core'"):
        loss.backward()
    whole = nested(given).square().sum()
    with (
        nested.at("core"),
        pytest.raises(RuntimeError, match=r"began at level 'core', its forward ran at level 'full'"),
    ):
        whole.backward()
    assert all(p.grad is None for p in nested.parameters()) and given.grad is None
    with nested.at("core"):
        nested(given).square().sum().backward()
    assert {p for p in nested.parameters() if p.grad is not None} == set(nested.parameters(level="core"))


def test_what_is_outside_a_level_does_not_matter_there() -> None:
    for kind in SPECS:
        for level in nested_model(kind).levels[:-1]:
            nested = nested_model(kind).eval()
            with nested.at(level):
                before = nested(x())
                used = set(nested.parameters(level=level))
                with torch.no_grad():
                    for parameter in nested.parameters():
                        if parameter not in used:
                            parameter.fill_(float("nan"))
                assert torch.equal(nested(x()), before)


def test_gradient_checkpointing_of_hugging_face() -> None:
    nested = nest(llama(), [LowRank(1 / 4, where="self_attn"), Depth("layers", keep=2)]).train()
    gradients: dict[str, list[Any]] = {level: [] for level in nested.levels}
    for _ in range(2):
        for level in nested.levels:
            nested.zero_grad()
            with nested.at(level):
                nested(input_ids=tokens(2), use_cache=False).logits.square().sum().backward()
            gradients[level].append([p.grad for p in nested.parameters(level=level)])
        nested.model.gradient_checkpointing_enable()
    assert all(torch.equal(a, b) for pair in gradients.values() for a, b in zip(*pair, strict=True))


@pytest.mark.parametrize("spec", CHECKPOINTED)
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_inside_a_level_are_the_level(spec: Any, reentrant: bool) -> None:
    nested = nest(Checkpointed(reentrant=None), spec)
    for level in nested.levels:
        gradients = []
        for nested.model.reentrant in (None, reentrant):
            nested.zero_grad()
            with nested.at(level):
                nested(x().requires_grad_()).square().sum().backward()
            gradients.append([p.grad for p in nested.parameters(level=level)])
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


# Teachers


@pytest.mark.parametrize("kind", SPECS)
def test_a_teacher_is_run_on_the_same_inputs_and_leaves_no_trace(kind: str) -> None:
    nested = nest(nn.Sequential(nn.Dropout(0.5), model()), **SPECS[kind])
    torch.manual_seed(3)
    expected = nested(x()).detach()
    before = {name: b.clone() for name, b in nested.named_buffers()}
    assert nested.teacher is None
    with nested.at("1/4", teacher="full"):
        torch.manual_seed(3)
        made = nested(x())
        taught, random = nested.teacher, torch.get_rng_state()
        assert not taught.requires_grad and torch.equal(taught, expected)
        made.sum().backward()
        assert {p for p in nested.parameters() if p.grad is not None} == set(nested.parameters(level="1/4"))
    assert nested.teacher is None
    if kind == "width":
        moved = {name for name, b in nested.named_buffers() if not torch.equal(b, before[name])}
        assert all(name.startswith("model.1.1.1/4.") for name in moved), "statistics of the level that is trained"
    torch.manual_seed(3)
    with nested.at("1/4"):
        nested(x())
    assert torch.equal(torch.get_rng_state(), random), "the noise is that of a run without a teacher"


def test_a_teacher_and_a_loss_of_a_model_with_outputs_in_a_container() -> None:
    nested = nest(gpt2().eval(), LowRank(1 / 4))
    expected = nested(input_ids=tokens(2)).logits
    with nested.at("core", teacher="full"):
        loss = nested(input_ids=tokens(2), labels=tokens(2)).loss
        assert torch.equal(nested.teacher.logits, expected)
        assert not any(leaf.requires_grad for leaf in tensors_of(nested.teacher))
    with pytest.raises(RuntimeError, match="its forward ran at level 'core'"):
        loss.backward()


# Copies and states


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("through", [copy.deepcopy, lambda nested: pickle.loads(pickle.dumps(nested))])
def test_a_copy_has_its_own_switch_for_all_of_its_layers(kind: str, through: Callable[[Nested], Nested]) -> None:
    nested = nested_model(kind)
    nested(x())
    with nested.at("1/4"):
        other = through(nested)
        assert nested.level == "1/4" and other.level == "full", "no `with` block would ever bring the copy back"
    switches = {id(m.switch) for m in other.modules() if isinstance(m, NestedModule)}
    assert len(switches) == 1
    before = outputs(nested.eval())
    with other.at("1/4"):
        assert nested.level == "full" and other.level == "1/4"
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
    assert all(torch.equal(a, b) for a, b in zip(outputs(nested), before, strict=True))
    with other.at("1/4"):
        loss = other(x()).sum()
    with pytest.raises(RuntimeError, match="its forward ran at level '1/4'"):
        loss.backward()
    with nested.at("1/4"), pytest.raises(RuntimeError):
        loss.backward()
    assert type(other.extract("full")) is nn.Sequential


@pytest.mark.parametrize("kind", SPECS)
def test_a_state_goes_from_one_nested_model_to_another(kind: str) -> None:
    nested, other = nested_model(kind), nest(model(), **SPECS[kind], seed=5)
    for level in nested.levels:
        with nested.at(level):
            nested(x(9))
    with torch.no_grad():
        for parameter in nested.parameters():
            parameter.mul_(1.5)
    file = io.BytesIO()
    torch.save(nested.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert all(torch.equal(a, b) for a, b in zip(outputs(nested.eval()), outputs(other.eval()), strict=True))
    keys = list(nested.state_dict())
    with nested.at("1/4"):
        assert list(nested.state_dict()) == keys, "all levels, whichever runs"


AUTOCAST = [
    ("encoder", "ranks"), ("encoder", "widths"), ("encoder", "depth"), ("gpt2", "query_key"), ("gpt2", "ranks"),
    ("mlp", "widths"), ("mlp", "widths_separate"), ("encoder", "layer_sum_new"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), AUTOCAST)
def test_autocast_is_close_to_single_precision_at_each_level(name: str, kind: str) -> None:
    network = ZOO[name]
    torch.manual_seed(0)
    nested = nest(network.build(), **specs_for(network)[kind])
    inputs = {k: v.float() if v.is_floating_point() else v for k, v in network.inputs(40).items()}
    for level in nested.levels:
        results = []
        for enabled in (False, True):
            nested.zero_grad()
            with nested.at(level):
                with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                    y = output(nested, inputs)
                y.float().square().mean().backward()
            used = list(nested.parameters(level=level))
            gradient = torch.cat([p.grad.flatten() for p in used if p.grad is not None])
            assert gradient.dtype is torch.float32
            results.append((y.detach().float(), gradient))
        for exact, rough in zip(*results, strict=True):
            assert not torch.equal(exact, rough), "autocast was on"
            error = float((exact - rough).norm() / exact.norm())
            assert error < 0.05, (level, error)


def test_the_second_level_inside_one_autocast_block_is_not_the_first() -> None:
    """Autocast keeps cast weights for a while; those of another level must not be among them."""
    nested = nest(model(), LowRank((1 / 8, 1 / 2), init="zero")).eval()
    alone = []
    for level in nested.levels:
        with torch.autocast("cpu", torch.bfloat16), nested.at(level):
            alone.append(nested(x()).detach())
    with torch.autocast("cpu", torch.bfloat16):
        together = outputs(nested)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_levels_nest_and_every_way_out_restores() -> None:
    nested = nested_model()
    with nested.at("1/4", teacher="1/2"):
        nested(x())
        taught = nested.teacher
        with nested.at("1/2"):
            assert (nested.level, nested.teacher) == ("1/2", None)
            with pytest.raises(ZeroDivisionError), nested.at("full"):
                raise ZeroDivisionError
            assert nested.level == "1/2"
            for level, teacher in (("large", None), ("1/4", "large"), ("", None), ("Full", None)):
                with (
                    pytest.raises(ValueError, match="there are '1/4', '1/2', 'full'"),
                    nested.at(level, teacher=teacher),
                ):
                    raise AssertionError("the body must not run")
                assert (nested.level, nested.teacher) == ("1/2", None)
        assert nested.level == "1/4" and nested.teacher is taught
    assert (nested.level, nested.teacher) == ("full", None)


def test_without_gradients_nothing_is_watched() -> None:
    nested, given = nest(nn.Sequential(nn.Identity(), model()), Width(1 / 2)), x().requires_grad_()
    y = given * 2
    nested.model.forward = lambda _: y  # outputs that have a graph already
    with torch.no_grad(), nested.at("core"):
        nested(given)
    y.sum().backward()
    assert given.grad is not None


# Threads


def outputs_in_threads(nested: Nested, run: Callable[[Tensor], Tensor], rounds: int) -> None:
    """Each thread runs a level of its own, all at once; outputs and gradients are those of one thread alone."""
    expected = {}
    for level in nested.levels:
        with nested.at(level):
            y = run(x())
            expected[level] = y.detach(), torch.autograd.grad(y.sum(), list(nested.parameters(level=level)))
    together, failures = threading.Barrier(len(nested.levels)), []

    def work(level: str) -> None:
        try:
            assert nested.level == "full", "a new thread begins at the full level"
            for _ in range(rounds):
                with nested.at(level):
                    together.wait(60)
                    y = run(x())
                    gradients = torch.autograd.grad(y.sum(), list(nested.parameters(level=level)))
                assert torch.equal(y, expected[level][0])
                assert all(torch.equal(a, b) for a, b in zip(gradients, expected[level][1], strict=True))
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(level,)) for level in nested.levels]
    with nested.at(nested.levels[0]):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert nested.level == nested.levels[0]
    assert not failures, failures
    assert nested.level == "full"


@pytest.mark.parametrize("kind", SPECS)
def test_each_thread_runs_its_own_level(kind: str) -> None:
    nested = nested_model(kind).eval()
    outputs_in_threads(nested, nested, rounds=50)


def test_each_asyncio_task_runs_its_own_level() -> None:
    nested = nested_model().eval()
    expected = dict(zip(nested.levels, outputs(nested), strict=True))

    async def work(level: str) -> None:
        for _ in range(3):
            with nested.at(level):
                await asyncio.sleep(0)
                assert torch.equal(nested(x()), expected[level])

    async def all_levels() -> None:
        await asyncio.gather(*map(work, nested.levels))

    asyncio.run(all_levels())


def test_autograds_own_threads_are_at_the_level_of_whoever_called_backward() -> None:
    """On an accelerator hooks and recomputed layers run in a thread that Python did not start; torch tells it whose."""
    nested, seen, done = nested_model(), [], threading.Event()

    def device_thread(context: contextvars.Context) -> None:
        seen.append(nested.level)
        torch._C._stash_obj_in_tls("context", context)  # as torch.autograd does
        seen.append(nested.level)
        torch._C._remove_obj_from_tls("context")
        done.set()

    with nested.at("1/4"):
        _thread.start_new_thread(device_thread, (contextvars.copy_context(),))
        assert done.wait(60)
    assert seen == ["full", "1/4"]


def test_data_parallel_whose_threads_have_no_level_is_refused() -> None:
    with pytest.raises(RuntimeError, match="use DistributedDataParallel instead"):
        nested_model()._replicate_for_data_parallel()


def test_one_block_entered_by_two_threads_leaves_each_at_its_own_level() -> None:
    nested = nest(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), Width(1 / 2))
    block, levels = nested.at("full"), []
    inside, left = threading.Event(), threading.Event()

    def work() -> None:
        with nested.at("core"):
            block.__enter__()
            inside.set()
            left.wait(10)
            block.__exit__()
            levels.append(nested.level)

    thread = threading.Thread(target=work)
    block.__enter__()
    thread.start()
    inside.wait(10)
    block.__exit__()
    left.set()
    thread.join()
    assert [*levels, nested.level] == ["core", "full"]


def test_a_level_that_is_asked_for_as_an_attribute_is_explained() -> None:
    with pytest.raises(
        AttributeError, match=r"has 'full'; run the level in `with nested.at\('full'\):`, or take it out"
    ):
        _ = nested_model().full
