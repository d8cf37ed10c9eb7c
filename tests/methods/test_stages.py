"""Stages in order, and a graph that ends at the first that moves."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from partialsgd import Method, PartialSGD
from partialsgd.methods._shared.stages import Stages
from tests.methods.training import backward


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


def noting(model: nn.Module, seen: list[bool]):
    """Forward and backward, and whether backward has reached the first layer."""

    def closure() -> Tensor:
        loss = backward(lambda: loss_of(model))()
        seen.append(model[0].weight.grad is not None)
        return loss

    return closure


def stepping(model: nn.Module, moving, named=None, rate: float = 0.1, **options) -> tuple[Stages, PartialSGD]:
    """A driver that moves the stages `moving`, a list or a function of t, and cuts the graph before them."""
    stages = Stages(model, named, cut=True, method="test")
    method = Method(mask=lambda c: stages.mask(c, moving(c.t) if callable(moving) else moving), within=stages.cut)
    called = options.pop("called", model)
    return stages, PartialSGD(called, torch.optim.SGD(model.parameters(), rate, **options), method)


def taking(model: nn.Module):
    """Forward and backward."""
    return lambda: loss_of(model).backward() or 0.0


NETWORKS = {"mlp": mlp, "embedded": Embedded, "gpt2": gpt2}


def test_what_no_stage_names_makes_stages_of_its_own() -> None:
    stages = Stages(Embedded(), None, cut=True, method="test")
    assert [names[0] for names in stages.names] == ["shift", *(f"blocks.{k}.0.weight" for k in range(3)), "norm.weight"]
    assert stages.names[0] == ("shift", "embed.weight") and stages.names[-1][-1] == "head.bias"
    stages = Stages(
        Embedded(), ["embed", ["blocks.0", "blocks.1"], "blocks.2", "norm", "head"], cut=True, method="test"
    )
    assert len(stages) == 6 and stages.is_cut


def test_stages_keep_the_order_in_which_they_were_named() -> None:
    """A network whose layers are registered in another order than they run in."""
    model = nn.ModuleDict({"last": nn.Linear(6, 6), "first": nn.Linear(6, 6)})
    model.scale = nn.Parameter(torch.ones(6))
    stages, sgd = stepping(model, [1, 2], ["first", "last", "scale"])
    assert [names[0] for names in stages.names] == ["first.weight", "last.weight", "scale"] and stages.is_cut
    reached: list[bool] = []

    def closure() -> Tensor:
        loss = backward(lambda: (model["last"](model["first"](torch.ones(2, 6))) * model.scale).square().sum())()
        reached.append(model["first"].weight.grad is not None)
        return loss

    for _ in range(2):
        sgd.step(closure)
    assert reached == [True, False]


def test_it_says_at_construction_whether_the_graph_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="partialsgd")
    assert Stages(mlp(), None, cut=True, method="freezing").is_cut
    assert "freezing: 4 stages; backward stops at the first that moves" in caplog.text
    caplog.clear()
    stages = Stages(Embedded(), ["*.0.weight", "*.0.bias"], cut=True, method="freezing")
    assert not stages.is_cut and "freezing: Embedded is not known to be a chain" in caplog.text
    caplog.clear()
    assert not Stages(mlp(), None, cut=False, method="freezing").is_cut and not caplog.text


def test_a_tied_weight_belongs_to_the_first_stage_that_has_it() -> None:
    model = mlp(3)
    model[4].weight = model[0].weight
    stages = Stages(model, None, cut=True, method="test")
    assert stages.names == (("0.weight", "0.bias"), ("2.weight", "2.bias"), ("4.bias",))


@pytest.mark.parametrize(
    ("build", "named", "message"),
    [
        (mlp, ["0", "*.weight"], "is in two stages"),
        (mlp, ["0", "nothing"], "matches no parameter"),
        (Embedded, "block", "names 0 lists of modules"),
        (lambda: nn.Sequential(nn.Linear(2, 2)), None, "two are needed"),
    ],
)
def test_stages_that_make_no_sense_are_refused(build, named, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stages(build(), named, cut=True, method="test")
