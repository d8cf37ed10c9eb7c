"""The work of a step, without counting it: exactly what counting gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from partialsgd.lab.recipes.translation.losses import TranslationFlops
from partialsgd.nested.inspect import flops
from tests.lab.recipes.translation.tiny import family, inputs

# A layer of 32 × 32 makes W + VU from 17 places on, one of 32 × 48 from 20: both sides of each are here, on each side.
SHAPES = [(1, 16, 17), (1, 19, 16), (2, 10, 8), (1, 4, 20), (6, 5, 3)]
FAMILIES: dict[str, dict[str, Any]] = {
    "low rank, three levels": {"ratio": ("1/8", "1/4")},
    "low rank, pre-norm": {"norm": "pre"},
    "width": {"nest": "width"},
    "depth": {"nest": "depth", "ratio": ("1/2",)},
    "alone, not tied": {"nest": "none", "tie": False},
}


@pytest.mark.parametrize("told", FAMILIES.values(), ids=FAMILIES)
def test_it_is_what_counting_gives(told: dict[str, Any]) -> None:
    nested = family(**told, layers=1 if told.get("nest") != "depth" else 2)
    work, forward = TranslationFlops(nested), TranslationFlops(nested, "forward")
    for level in nested.levels:
        for shape in SHAPES if level == "full" else SHAPES[-1:]:
            with nested.at(level):
                counted = flops.count(nested.model, **inputs(*shape), use_cache=False)
            assert work(level, shape) == counted.training, (level, shape)
            assert forward(level, shape) == counted.forward, (level, shape)
    assert all(work(level, (9, 9, 9)) < work("full", (9, 9, 9)) for level in nested.levels[:-1])


def test_counting_leaves_the_network_and_the_noise_alone() -> None:
    nested = family().train()
    torch.manual_seed(3)
    noise = torch.get_rng_state()
    TranslationFlops(nested)("core", (2, 3, 4))
    assert torch.equal(torch.get_rng_state(), noise)
    assert nested.level == "full" and nested.training and all(p.grad is None for p in nested.parameters())
