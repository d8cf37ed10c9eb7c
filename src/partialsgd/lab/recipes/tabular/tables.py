"""A table as it is read: numbers, words and what is to be predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from partialsgd.lab.training.orders import permutation


@final
@dataclass(frozen=True)
class Schema:
    """Which columns there are, and which of them the wide part crosses; a number is crossed by its bucket."""

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    crosses: tuple[tuple[str, ...], ...]


@final
@dataclass(frozen=True)
class Table:
    """Rows of one split."""

    numbers: Tensor
    """float64 (rows, columns)."""
    categories: Sequence[tuple[str, ...]]
    """For each row a word in each column."""
    labels: Tensor
    """0 or 1."""

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, chosen: Tensor) -> Table:
        return Table(self.numbers[chosen], [self.categories[i] for i in chosen.tolist()], self.labels[chosen])


@final
@dataclass(frozen=True)
class Tables:
    schema: Schema
    train: Table
    valid: Table
    test: Table


def tables(schema: Schema, known: Table, test: Table, valid_share: float, seed: int) -> Tables:
    """Validation is the last `valid_share` of the known rows in an order that the seed draws."""
    order = permutation(len(known), seed, "validation")
    held = round(valid_share * len(known))
    if not 1 <= held < len(known):
        raise ValueError(f"of {len(known)} rows valid_share {valid_share} takes {held}; both parts need some")
    found = Tables(schema, known[order[:-held]], known[order[-held:]], test)
    for name in ("train", "valid", "test"):
        part: Table = getattr(found, name)
        if len(torch.unique(part.labels)) < 2:
            raise ValueError(f"the {name} rows, {len(part)} of them, are all of one class: AUC needs both; give more")
    return found
