"""Stages in order, and a graph that ends at the first that moves."""

from __future__ import annotations

import copy
import io
import logging

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialsgd import Method, PartialSGD, masks
from partialsgd.methods.stages import Chain


def mlp(layers: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(6, 6), nn.Tanh())])


class Embedded(nn.Module):
    """Embeddings, blocks in a list, a norm and a head; a bare parameter too."""

    def __init__(self, swapped: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 6)
        self.shift = nn.Parameter(torch.zeros(6))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 11)
        self.swapped = swapped

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.shift
        for block in reversed(self.blocks) if self.swapped else self.blocks:
            x = x + block(x)
        y: Tensor = self.head(self.norm(x))
        return y


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=4, n_head=2, n_inner=32)
    config.attn_pdrop = config.embd_pdrop = config.resid_pdrop = 0.0
    return GPT2LMHeadModel(config)


def loss_of(model: nn.Module) -> Tensor:
    if isinstance(model, nn.Sequential):
        return model(torch.arange(24.0).view(4, 6).cos()).square().sum()
    tokens = torch.arange(8).view(2, 4) % 11
    out = model(tokens)
    return (out if isinstance(out, Tensor) else out.logits).square().mean()


def flops(run) -> int:
    with FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


NETWORKS = {"mlp": mlp, "embedded": Embedded, "gpt2": gpt2}


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


def test_what_no_stage_names_makes_stages_of_its_own() -> None:
    chain = Chain(Embedded(), None, cut=True, who="test")
    assert [names[0] for names in chain.stages] == [
        "shift",
        "blocks.0.0.weight",
        "blocks.1.0.weight",
        "blocks.2.0.weight",
        "norm.weight",
    ]
    assert chain.stages[0] == ("shift", "embed.weight") and chain.stages[-1][-1] == "head.bias"
    chain = Chain(Embedded(), ["embed", ["blocks.0", "blocks.1"], "blocks.2", "norm", "head"], cut=True, who="test")
    assert len(chain) == 6 and chain.is_cut


def test_it_says_at_construction_whether_the_graph_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="partialsgd")
    assert Chain(mlp(), None, cut=True, who="freezing").is_cut
    assert "freezing: 4 stages; backward stops at the first that moves" in caplog.text
    for stages in (["*.0.weight", "*.0.bias"], ["blocks.2", "blocks.1"]):
        caplog.clear()
        chain = Chain(Embedded(), stages, cut=True, who="freezing")
        assert not chain.is_cut and "freezing: Embedded is not known to be a chain" in caplog.text
    caplog.clear()
    assert not Chain(mlp(), None, cut=False, who="freezing").is_cut and not caplog.text


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
    Chain(model, None, cut=False, who="test")


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
        graphs = []

        def closure(model=model, graphs=graphs) -> Tensor:
            loss = loss_of(model)
            loss.backward()
            graphs.append(model[0].weight.grad is not None)
            return loss

        sgd = PartialSGD(model, optimizer, method)
        for _ in range(2):
            sgd.step(closure)
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


def test_a_tied_weight_belongs_to_the_first_stage_that_has_it() -> None:
    model = mlp(3)
    model[4].weight = model[0].weight
    stages = Chain(model, None, cut=True, who="test").stages
    assert stages == (("0.weight", "0.bias"), ("2.weight", "2.bias"), ("4.bias",))


def test_a_module_that_runs_again_after_a_later_stage_is_found_out_at_the_first_step() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(nn.Linear(6, 6), shared, nn.Linear(6, 6), nn.Tanh(), shared, nn.Linear(6, 6))
    chain = Chain(model, None, cut=True, who="test")
    method = Method(within=chain.cut)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    with pytest.raises(ValueError, match="not in the order of the forward pass"):
        sgd.step(lambda: loss_of(model).backward() or 0.0)


def test_a_model_with_a_chain_is_saved_copied_and_refused_to_others() -> None:
    model = mlp()
    chain = Chain(model, None, cut=True, who="freezing")
    method = Method(mask=lambda c: chain.mask(c, [3]), within=chain.cut)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), method)
    torch.save(model, io.BytesIO())
    both, other = copy.deepcopy((model, sgd))
    for net, run in ((model, sgd), (both, other)):
        seen = []

        def closure(net=net, seen=seen) -> Tensor:
            loss = loss_of(net)
            loss.backward()
            seen.append(net[0].weight.grad is not None)
            return loss

        for _ in range(3):
            run.step(closure)
        assert seen == [True, False, False]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), both.parameters(), strict=True))
    stranger = mlp()
    wrong = PartialSGD(stranger, torch.optim.SGD(stranger.parameters(), 0.1), method)
    with pytest.raises(ValueError, match="freezing was made for another model"):
        wrong.step(lambda: loss_of(stranger).backward() or 0.0)


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


def test_stages_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="is in two stages"):
        Chain(mlp(), ["0", "*.weight"], cut=True, who="test")
    with pytest.raises(ValueError, match="matches no parameter"):
        Chain(mlp(), ["0", "nothing"], cut=True, who="test")
    with pytest.raises(ValueError, match="names 0 lists of modules"):
        Chain(Embedded(), "block", cut=True, who="test")
    with pytest.raises(ValueError, match="one stage only"):
        Chain(nn.Sequential(nn.Linear(2, 2)), None, cut=True, who="test")


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
