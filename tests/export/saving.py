"""A small nested model whose parameters all have one value, saved without end by a process that is to be killed."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import torch
from torch import nn

from partialsgd import LowRank, Nested, export, nest


def build() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 2))


def nested_model(number: float) -> Nested:
    return filled(nest(build(), LowRank(1 / 4, init="zero")), number)


@torch.no_grad()
def filled(nested: Nested, number: float) -> Nested:
    for parameter in nested.parameters():
        parameter.fill_(number)
    return nested


def numbers(nested: Nested) -> set[float]:
    return {float(value) for parameter in nested.parameters() for value in parameter.detach().unique()}


def without_end(directory: str) -> None:
    torch.set_num_threads(1)
    nested = nested_model(0)
    for number in count(1):
        export.save(filled(nested, number), Path(directory), metrics={"core": {"number": number}})
