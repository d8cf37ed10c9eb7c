"""A graph that ends at the first stage that moves: the same gradients, less of them, and when it must not be cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partialsgd import Method, PartialSGD, masks
from partialsgd.methods._shared.stages import Chain
from tests.methods.test_stages import NETWORKS, Embedded, flops, gpt2, loss_of, mlp, noting


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cut_leaves_the_gradient_of_what_moves_and_takes_the_rest_away(name: str) -> None:
    """From every stage on: the same bits as the whole gradient, None before, and fewer FLOPs the later it begins."""
    model, twin = NETWORKS[name](), NETWORKS[name]()
    chain = Chain(model, None, cut=True, who="test")
    whole = flops(lambda: loss_of(twin).backward())
    expected = {n: p.grad for n, p in twin.named_parameters()}
    counts = []
    for first in range(len(chain)):
        moving = {n for names in chain.stages[first:] for n in names}
        seen: dict[str, Tensor | None] = {}

        def closure(seen=seen) -> Tensor:
            loss = loss_of(model)
            loss.backward()
            seen.update({n: p.grad for n, p in model.named_parameters()})
            return loss

        method = Method(mask=lambda c, first=first: chain.mask(c, range(first, len(chain))), within=chain.cut)
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.0), method)
        if first == 0:
            sgd.step(closure)  # the first pass is looked at and not cut
        counts.append(flops(lambda sgd=sgd, closure=closure: sgd.step(closure)))
        for n, g in seen.items():
            if n in moving:
                assert torch.equal(g, expected[n])
        hooked = {n for n in seen if seen[n] is None}
        bare = {"shift"} if name == "embedded" else set()
        tied = {"transformer.wte.weight"} if name == "gpt2" else set()
        assert hooked >= set(seen) - moving - bare - tied, "backward went where nothing moves"
    assert counts[0] == whole and counts == sorted(counts, reverse=True) and counts[-1] < 0.6 * whole
    assert torch.is_grad_enabled()


def test_an_order_that_is_not_the_forward_pass_is_found_out_before_anything_moves() -> None:
    model = Embedded(swapped=True)
    chain = Chain(model, None, cut=True, who="test")
    method = Method(mask=lambda c: chain.mask(c, [3, 4]), within=chain.cut)
    before = [p.detach().clone() for p in model.parameters()]
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)

    def closure() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        return loss

    with pytest.raises(ValueError, match=r"not in the order of the forward pass: 'blocks.2.0.*' of stage 3 feeds"):
        sgd.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert torch.is_grad_enabled()
    in_order = ["embed", "blocks.2", "blocks.1", "blocks.0", "norm"]
    chain = Chain(model, in_order, cut=True, who="test")
    fixed = Method(mask=lambda c: chain.mask(c, [3, 4]), within=chain.cut)
    for _ in range(2):
        PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), fixed).step(closure)


def test_compiled_models_are_cut_too() -> None:
    torch.compiler.reset()
    eager, compiled = mlp(), mlp()
    runs = []
    for model in (eager, compiled):
        chain = Chain(model, None, cut=True, who="test")
        called = model if model is eager else torch.compile(model, backend="aot_eager", fullgraph=True)
        method = Method(mask=lambda c, chain=chain: chain.mask(c, range(c.t % 4, 4)), within=chain.cut)
        sgd = PartialSGD(called, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), method)

        def closure(called=called) -> Tensor:
            loss = called(torch.arange(24.0).view(4, 6).cos()).square().sum()
            loss.backward()
            return loss

        for _ in range(6):
            sgd.step(closure)
        runs.append(list(model.parameters()))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_first_pass_is_whole_and_gives_the_same_bits() -> None:
    """It is looked at: so a run that is resumed in mid-freeze goes through it again and must not differ."""
    results = []
    for looked_at in (False, True):
        model = mlp()
        chain = Chain(model, None, cut=True, who="test")
        method = Method(mask=lambda c, chain=chain: chain.mask(c, [2, 3]), within=chain.cut)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if looked_at:
            model(torch.ones(1, 6))
            throwaway = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.0), method)
            throwaway.step(lambda model=model: loss_of(model).backward() or 0.0)
        graphs: list[bool] = []
        sgd = PartialSGD(model, optimizer, method)
        for _ in range(2):
            sgd.step(noting(model, graphs))
        assert graphs == [not looked_at, False]
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_reentrant_checkpointing_is_refused_and_the_other_kind_is_cut() -> None:
    for reentrant in (True, False):
        model = gpt2()
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        model.train()
        chain = Chain(model, None, cut=True, who="test")
        before = [p.detach().clone() for p in model.parameters()]
        method = Method(mask=lambda c, chain=chain: chain.mask(c, [3, 4, 5]), within=chain.cut)
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)

        def closure(model=model) -> Tensor:
            loss = loss_of(model)
            loss.backward()
            return loss

        if reentrant:
            with pytest.raises(ValueError, match="use_reentrant=False"):
                sgd.step(closure)
            assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
            continue
        for _ in range(2):
            sgd.step(closure)
        twin = gpt2()
        twin.train()
        other = PartialSGD(twin, torch.optim.SGD(twin.parameters(), 0.1), Method(mask=method.mask))
        for _ in range(2):
            other.step(lambda twin=twin: loss_of(twin).backward() or 0.0)
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the teacher, which has no graph
def test_reentrant_checkpointing_is_found_out_where_nothing_follows_it_and_a_teacher_is_not_taken_for_it() -> None:
    from torch.utils.checkpoint import checkpoint

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = nn.Linear(6, 6)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
            self.reentrant = True

        def forward(self, x: Tensor) -> Tensor:
            x = self.start(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            return x

    for reentrant in (True, False):
        model = Blocks()
        model.reentrant = reentrant
        chain = Chain(model, None, cut=True, who="test")
        method = Method(mask=lambda c, chain=chain: chain.mask(c, [2, 3]), within=chain.cut)
        sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)

        def closure(model=model) -> Tensor:
            with torch.no_grad():
                target = model(torch.ones(2, 6)) + 1
            loss = (model(torch.ones(2, 6)) - target).square().sum()
            loss.backward()
            return loss

        if reentrant:
            with pytest.raises(ValueError, match="use_reentrant=False"):
                sgd.step(closure)
        else:
            for _ in range(2):
                sgd.step(closure)


def test_gradients_that_do_not_belong_to_the_network_are_not_cut() -> None:
    """A network in front that somebody else trains, or the input itself."""
    model, front = mlp(3), nn.Linear(6, 6)
    chain = Chain(model, None, cut=True, who="test")
    sgd = PartialSGD(
        model, torch.optim.SGD(model.parameters(), 0.1), Method(mask=lambda c: chain.mask(c, [2]), within=chain.cut)
    )
    for _ in range(3):
        front.zero_grad()
        x = torch.ones(2, 6, requires_grad=True)
        sgd.step(lambda x=x: model(front(x)).square().sum().backward() or 0.0)
        assert front.weight.grad is not None and x.grad is not None


def test_unused_stages_are_named(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.ModuleDict({"body": mlp(2), "pooler": nn.Linear(6, 6)})
    chain = Chain(model, ["body.0", "body.2", "pooler"], cut=True, who="test")
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), Method(within=chain.cut))
    sgd.step(lambda: loss_of(model["body"]).backward() or 0.0)
    assert "the loss does not depend on the stages of pooler.weight" in caplog.text


def test_a_loss_without_a_graph_says_that_it_was_cut() -> None:
    model = mlp(3)
    chain = Chain(model, None, cut=True, who="test")
    sgd = PartialSGD(
        model, torch.optim.SGD(model.parameters(), 0.1), Method(mask=lambda c: chain.mask(c, [2]), within=chain.cut)
    )
    sgd.step(lambda: loss_of(model).backward() or 0.0)
    with pytest.raises(RuntimeError, match=r"nothing after stage 2, where the graph was cut; .* write cut=False"):
        sgd.step(lambda: model[:2](torch.ones(2, 6)).sum().backward() or 0.0)
    model[4].requires_grad_(False)
    sgd.step(lambda: loss_of(model).backward() or 0.0)  # nothing moves, and nothing breaks


def test_stages_that_the_loss_does_not_use_or_that_do_not_train() -> None:
    """An unused last stage (a pooler) leaves a graph; one without trainable parameters is no stage."""
    model = nn.ModuleDict({"body": mlp(3), "pooler": nn.Linear(6, 6)})
    chain = Chain(model, ["body.0", "body.2", "body.4", "pooler"], cut=True, who="test")
    method = Method(mask=lambda c: chain.mask(c, [3]), within=chain.cut)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        sgd.step(lambda: loss_of(model["body"]).backward() or 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    frozen = mlp(4)
    for k in (0, 4):
        frozen[k].requires_grad_(False)
    chain = Chain(frozen, None, cut=True, who="test")
    assert [names[0] for names in chain.stages] == ["0.weight", "4.weight"]
    assert chain.stages[0] == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_a_module_that_runs_again_after_a_later_stage_is_found_out_at_the_first_step() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(nn.Linear(6, 6), shared, nn.Linear(6, 6), nn.Tanh(), shared, nn.Linear(6, 6))
    chain = Chain(model, None, cut=True, who="test")
    method = Method(within=chain.cut)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    with pytest.raises(ValueError, match="not in the order of the forward pass"):
        sgd.step(lambda: loss_of(model).backward() or 0.0)


def test_grad_mode_comes_back_when_a_frozen_stage_raises() -> None:
    class Fails(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(6, 6), Fails(6, 6), nn.Linear(6, 6))
    chain = Chain(model, None, cut=True, who="test")
    sgd = PartialSGD(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        Method(mask=lambda c: chain.mask(c, [2]), within=chain.cut),
    )
    with pytest.raises(ZeroDivisionError):
        sgd.step(lambda: loss_of(model))
    assert torch.is_grad_enabled()


def test_the_mask_alone_decides_where_the_cut_is() -> None:
    """What always moves keeps everything after it in the graph."""
    model = mlp()
    chain = Chain(model, None, cut=True, who="test")
    method = Method(mask=lambda c: chain.mask(c, [3]) | masks.only(c.parameters, ["2.bias"]), within=chain.cut)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    before = model[2].bias.detach().clone()

    def closure() -> Tensor:
        loss = loss_of(model)
        loss.backward()
        assert model[0].weight.grad is None and model[2].bias.grad is not None
        return loss

    sgd.step(lambda: loss_of(model).backward() or 0.0)  # looked at
    sgd.step(closure)
    assert not torch.equal(model[2].bias, before)
