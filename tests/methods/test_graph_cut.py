"""A graph that ends at the first stage that moves: the same gradients, less of them, and when it must not be cut."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partialsgd import Method, masks
from partialsgd.methods._shared.stages import Stages
from tests.methods.test_stages import NETWORKS, Embedded, flops, loss_of, mlp, noting, stepping, taking
from tests.methods.training import are_equal, assert_close, backward, sgd_of


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cut_leaves_the_gradient_of_what_moves_and_takes_the_rest_away(name: str) -> None:
    """From every stage on: the same bits as the whole gradient, None before, and fewer FLOPs the later it begins."""
    model, twin = NETWORKS[name](), NETWORKS[name]()
    stages, sgd = stepping(model, lambda t: range(max(0, t - 1), len(stages)), rate=0.0)
    whole = flops(lambda: loss_of(twin).backward())
    expected = {n: p.grad for n, p in twin.named_parameters()}
    counts = []
    for first in range(len(stages)):
        moving = {n for names in stages.names[first:] for n in names}
        seen: dict[str, Tensor | None] = {}

        def closure(seen=seen) -> Tensor:
            loss = backward(lambda: loss_of(model))()
            seen.update({n: p.grad for n, p in model.named_parameters()})
            return loss

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
    _, sgd = stepping(model, [3, 4])
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(ValueError, match=r"not in the order of the forward pass: 'blocks.2.0.*' of stage 3 feeds"):
        sgd.step(taking(model))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert torch.is_grad_enabled()
    _, sgd = stepping(model, [3, 4], ["embed", "blocks.2", "blocks.1", "blocks.0", "norm"])
    for _ in range(2):
        sgd.step(taking(model))


def test_compiled_models_are_cut_too() -> None:
    torch.compiler.reset()
    eager, model = mlp(), mlp()
    runs = []
    for net, called in ((eager, eager), (model, torch.compile(model, backend="aot_eager", fullgraph=True))):
        _, sgd = stepping(net, lambda t: range(t % 4, 4), momentum=0.9, called=called)
        x = torch.arange(24.0).view(4, 6).cos()
        for _ in range(6):
            sgd.step(lambda called=called, x=x: called(x).square().sum().backward() or 0.0)
        runs.append(list(net.parameters()))
    for a, b in zip(*runs, strict=True):
        torch.testing.assert_close(a, b)


def test_the_first_pass_is_whole_and_gives_the_same_bits() -> None:
    """It is inspected: so a run that is resumed in mid-freeze goes through it again and must not differ."""
    results = []
    for inspected in (False, True):
        model = mlp()
        _, sgd = stepping(model, [2, 3])
        if inspected:
            sgd_of(model, sgd.method, 0.0).step(taking(model))
        graphs: list[bool] = []
        for _ in range(2):
            sgd.step(noting(model, graphs))
        assert graphs == [not inspected, False]
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # of the teacher, which has no graph
@pytest.mark.parametrize("ends_with_a_block", [True, False])
@pytest.mark.parametrize("reentrant", [True, False])
def test_reentrant_checkpointing_is_refused_and_the_other_kind_is_cut(reentrant: bool, ends_with_a_block: bool) -> None:
    """A teacher, which has no graph either, is not taken for it."""

    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.start = nn.Linear(6, 6)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3))
            self.end = nn.Identity() if ends_with_a_block else nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = self.start(x)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant)
            return self.end(x)

    model, twin = Blocks(), Blocks()
    _, sgd = stepping(model, [2, 3])

    def closure(net: nn.Module) -> Tensor:
        with torch.no_grad():
            target = net(torch.ones(2, 6)) + 1
        return backward(lambda: (net(torch.ones(2, 6)) - target).square().sum())()

    if reentrant:
        with pytest.raises(ValueError, match="use_reentrant=False"):
            sgd.step(lambda: closure(model))
        assert are_equal(model, twin)
        return
    whole = sgd_of(twin, Method(mask=sgd.method.mask))
    for _ in range(2):
        sgd.step(lambda: closure(model))
        whole.step(lambda: closure(twin))
    assert_close(model, twin)


def test_gradients_that_do_not_belong_to_the_network_are_not_cut() -> None:
    """A network in front that somebody else trains, or the input itself."""
    model, front = mlp(3), nn.Linear(6, 6)
    _, sgd = stepping(model, [2])
    for _ in range(3):
        front.zero_grad()
        x = torch.ones(2, 6, requires_grad=True)
        sgd.step(lambda x=x: model(front(x)).square().sum().backward() or 0.0)
        assert front.weight.grad is not None and x.grad is not None


def test_a_loss_without_a_graph_says_that_it_was_cut() -> None:
    model = mlp(3)
    _, sgd = stepping(model, [2])
    sgd.step(taking(model))
    with pytest.raises(RuntimeError, match=r"nothing after stage 2, where the graph was cut; .* write cut=False"):
        sgd.step(lambda: model[:2](torch.ones(2, 6)).sum().backward() or 0.0)
    model[4].requires_grad_(False)
    sgd.step(taking(model))  # nothing moves, and nothing breaks


def test_stages_that_the_loss_does_not_use_or_that_do_not_train(caplog: pytest.LogCaptureFixture) -> None:
    """An unused last stage (a pooler) leaves a graph; one without trainable parameters is no stage."""
    model = nn.ModuleDict({"body": mlp(3), "pooler": nn.Linear(6, 6)})
    _, sgd = stepping(model, [3], ["body.0", "body.2", "body.4", "pooler"])
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        sgd.step(taking(model["body"]))
    assert "the loss does not depend on the stages of pooler.weight" in caplog.text
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    frozen = mlp(4)
    for k in (0, 4):
        frozen[k].requires_grad_(False)
    stages = Stages(frozen, None, cut=True, method="test")
    assert [names[0] for names in stages.names] == ["0.weight", "4.weight"]
    assert stages.names[0] == ("0.weight", "0.bias", "2.weight", "2.bias")


def test_a_module_that_runs_again_after_a_later_stage_is_found_out_at_the_first_step() -> None:
    shared = nn.Linear(6, 6)
    model = nn.Sequential(nn.Linear(6, 6), shared, nn.Linear(6, 6), nn.Tanh(), shared, nn.Linear(6, 6))
    stages = Stages(model, None, cut=True, method="test")
    sgd = sgd_of(model, Method(within=stages.cut))
    with pytest.raises(ValueError, match="not in the order of the forward pass"):
        sgd.step(taking(model))


def test_grad_mode_comes_back_when_a_frozen_stage_raises() -> None:
    class Fails(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError

    model = nn.Sequential(nn.Linear(6, 6), Fails(6, 6), nn.Linear(6, 6))
    _, sgd = stepping(model, [2])
    with pytest.raises(ZeroDivisionError):
        sgd.step(lambda: loss_of(model))
    assert torch.is_grad_enabled()


def test_the_mask_alone_decides_where_the_cut_is() -> None:
    """What always moves keeps everything after it in the graph."""
    model = mlp()
    stages = Stages(model, None, cut=True, method="test")
    method = Method(mask=lambda c: stages.mask(c, [3]) | masks.only(c.parameters, ["2.bias"]), within=stages.cut)
    sgd = sgd_of(model, method)
    before = model[2].bias.detach().clone()

    def closure() -> Tensor:
        loss = backward(lambda: loss_of(model))()
        assert model[0].weight.grad is None and model[2].bias.grad is not None
        return loss

    sgd.step(taking(model))  # inspected
    sgd.step(closure)
    assert not torch.equal(model[2].bias, before)


def test_a_model_with_hooks_is_saved_and_copied_with_its_driver() -> None:
    model = mlp()
    _, sgd = stepping(model, [3])
    torch.save(model, io.BytesIO())
    both, other = copy.deepcopy((model, sgd))
    for net, run in ((model, sgd), (both, other)):
        seen: list[bool] = []
        for _ in range(3):
            run.step(noting(net, seen))
        assert seen == [True, False, False]
    assert are_equal(model, both)
    for module in model.modules():
        module._forward_hooks.clear()
    with pytest.raises(ValueError, match="hooks of the method are gone"):
        sgd_of(model, sgd.method).step(taking(model))
