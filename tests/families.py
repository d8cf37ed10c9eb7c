"""A small family for the methods that train one: three levels, with dropout and BatchNorm."""

from __future__ import annotations

import torch
from torch import nn

from partialsgd import LowRank, Nested, Width, nest


def family(*ratios: float, kind: str = "width") -> Nested:
    torch.manual_seed(0)
    layers = [nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.2), nn.Linear(12, 8), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(8, 3))
    spec = Width(ratios or 0.5) if kind == "width" else LowRank(ratios or 0.25)
    return nest(model, spec)
