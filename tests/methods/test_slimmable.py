"""All levels in one step."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from partialsgd import methods, soft_cross_entropy
from tests.methods.training import X, Y, nested_loss, sgd_of, train
from tests.training import family

LAWS = {"": methods.slimmable(), "mean": methods.slimmable(combine="mean", distill=True)}
REFUSED_SETTINGS = [
    ({"combine": "max"}, "combine must be"),
    *(({"weights": {"core": wrong}}, "weights of 'core' must be a number") for wrong in (-1.0, math.nan, 1e308, True)),
]


@pytest.mark.parametrize("combine", ["sum", "mean"])
@pytest.mark.parametrize("make", [methods.slimmable, methods.sandwich])
def test_the_update_is_by_the_gradients_of_all_levels(make, combine: str) -> None:
    nested, by_hand = (family(0.25, 0.5).eval() for _ in range(2))
    weights = {"full": 1.0, "1/2": 2.0, "1/4": 3.0} if make is methods.slimmable else {}
    step = train(sgd_of(nested, make(combine=combine, **{"weights": weights} if weights else {})), nested_loss)[0]
    total = {p: torch.zeros_like(p) for p in by_hand.parameters()}
    for level in ("full", "1/2", "1/4"):
        with by_hand.at(level):
            loss = F.cross_entropy(by_hand(X), Y)
            share = weights.get(level, 1.0) / (sum(weights.values()) or 3.0 if combine == "mean" else 1.0)
            for p, g in zip(total, torch.autograd.grad(loss, list(total), allow_unused=True), strict=True):
                total[p] += 0 if g is None else share * g
    assert step.backwards == 3 and [level for level, _ in step.losses] == ["full", "1/2", "1/4"]
    for p, (q, g) in zip(nested.parameters(), total.items(), strict=True):
        torch.testing.assert_close(p, q - 0.1 * g, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [methods.slimmable, methods.sandwich])
@pytest.mark.parametrize("distill", [True, False])
def test_pupils_learn_from_the_largest_level_if_asked_to(make, distill: bool) -> None:
    nested = family(0.25, 0.5)
    sgd = sgd_of(nested, make(distill=distill))
    teachers, first = [], []

    def closure(g):
        g.outputs = nested(X)
        teachers.append(g.teacher)
        first.append(g.outputs.detach())
        loss = F.cross_entropy(g.outputs, Y) if g.teacher is None else soft_cross_entropy(g.outputs, g.teacher)
        loss.backward()
        return loss

    sgd.step(closure)
    assert teachers[0] is None and len(teachers) == 3
    for teacher in teachers[1:]:
        assert (teacher is None) != distill
        assert not distill or (torch.equal(teacher, first[0]) and not teacher.requires_grad)


def test_an_unknown_level_and_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="no level 'tiny'"):
        methods.slimmable(weights={"tiny": 1.0}).bind(family())
    with pytest.raises(ValueError, match=r"no level has a weight: weights are \{'core': 0, 'full': 0.0\}"):
        methods.slimmable(weights={"core": 0, "full": 0.0}).bind(family())
    one = methods.slimmable(weights={"core": np.float32(2)}).bind(family())
    assert one.name == methods.slimmable(weights={"core": 2.0}).bind(family()).name
