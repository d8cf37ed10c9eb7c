"""--nest and --ratio as a family."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

import partialsgd as ps
from partialsgd.lab.training.nesting import Make, family

MAKES: Mapping[str, Make] = {"width": lambda ratios: ps.Width(ratios), "low-rank": lambda ratios: ps.LowRank(ratios)}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_one_ratio_is_a_core_and_several_are_named_smallest_first() -> None:
    assert family(model(), "width", ["1/2"], MAKES, seed=0).levels == ("core", "full")
    assert family(model(), "low-rank", ["0.5", "1/4"], MAKES, seed=0).levels == ("1/4", "1/2", "full")


def test_none_is_the_network_by_itself() -> None:
    network = family(model(), "none", ["1/2"], MAKES, seed=0)
    assert network.levels == ("full",)
    x = torch.randn(5, 6)
    with network.at("full"):
        assert torch.equal(network(x), model()(x))
    assert network.size("full") == sum(p.numel() for p in model().parameters())


def test_norms_and_seed_arrive() -> None:
    """The seed draws what a spec draws: the random factors of a matched start."""
    makes: Mapping[str, Make] = {"low-rank": lambda ratios: ps.LowRank(ratios, init="matched")}
    one, two, three = (
        torch.cat([p.flatten() for p in family(model(), "low-rank", ["1/2"], makes, seed=seed).parameters()])
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, two) and not torch.equal(one, three)
    shared, separate = (family(model(), "width", ["1/2"], MAKES, seed=0, norms=n) for n in ("shared", "separate"))
    assert len(list(shared.buffers())) < len(list(separate.buffers()))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="nest must be one of width, low-rank, none; got 'depth'"):
        family(model(), "depth", ["1/2"], MAKES, seed=0)
    for ratios, why in (
        ([], "at least one ratio"),
        (["1/2", "0.5"], "alike"),
        (["half"], "written 1/32"),
        (["0"], "(0, 1]"),
    ):
        with pytest.raises(ValueError, match=why.replace("(", r"\(").replace("]", r"\]")):
            family(model(), "width", ratios, MAKES, seed=0)


@pytest.mark.parametrize("ratios", [("1",), ("0.9", "1")])
def test_a_level_that_is_no_smaller_is_refused(ratios: tuple[str, ...]) -> None:
    makes = {"width": lambda numbers: ps.Width(numbers)}
    with pytest.raises(ValueError, match="is no smaller than 'full'"):
        family(
            torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
            "width",
            ratios,
            makes,
            seed=0,
        )


def test_a_level_alone_is_taken_out_with_the_start_that_it_has_in_the_family() -> None:
    x = torch.randn(5, 6)
    whole, alone = (
        family(model(), "width", ["1/2"], MAKES, seed=0, alone=level, example=x) for level in (None, "core")
    )
    assert alone.levels == ("full",) and alone.size("full") == whole.size("core") < whole.size("full")
    with whole.at("core"):
        assert torch.equal(alone(x), whole(x))


def test_a_level_that_there_is_not_cannot_be_alone() -> None:
    with pytest.raises(ValueError, match="alone must be one of the levels, core, full; got 'tiny'"):
        family(model(), "width", ["1/2"], MAKES, seed=0, alone="tiny")
    with pytest.raises(ValueError, match="there are no levels"):
        family(model(), "none", ["1/2"], MAKES, seed=0, alone="core")
