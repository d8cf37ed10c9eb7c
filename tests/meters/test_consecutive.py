"""Two gradients, one after the other."""

from __future__ import annotations

import math

import torch
from torch import nn

from partialsgd import masks
from partialsgd.meters.consecutive import compare, told
from partialsgd.meters.criteria import Criteria
from partialsgd.vectors import Vector

MODEL = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(1))})
NOTHING = Criteria(1, 1, 1, 1, 1)


def test_only_coordinates_inside_both_masks_meet() -> None:
    memory = {}
    g = Vector({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([2.0])})
    compare(memory, masks.everything(MODEL), g)
    assert told(NOTHING, memory) is NOTHING, "the first step has none before it"
    core = masks.from_tensors(MODEL, {"a": torch.tensor([True, False])})
    compare(memory, core, Vector({"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([9.0])}))
    found = told(NOTHING, memory)
    assert found.consecutive == 3.0 and math.isclose(found.consecutive_cosine, 3 / math.sqrt(29))
    assert [key for key in memory if key.startswith("before/")] == ["before/a"], "one gradient is kept, not all"


def test_what_is_kept_is_a_copy_and_zero_has_no_direction() -> None:
    memory = {}
    g = torch.ones(2)
    compare(memory, masks.everything(MODEL), Vector({"a": g}))
    g.zero_()
    compare(memory, masks.everything(MODEL), Vector({"a": torch.ones(2)}))
    assert memory["consecutive"] == 2.0
    compare(memory, masks.everything(MODEL), Vector({"a": torch.zeros(2)}))
    assert memory["consecutive"] == 0.0 and math.isnan(memory["consecutive_cosine"])
