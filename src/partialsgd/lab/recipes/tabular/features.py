"""Rows as a network takes them: numbers standardised, words and crosses numbered. All of it is learned from train."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from partialsgd.lab.recipes.tabular.tables import Schema, Table

UNKNOWN = 0
"""The number of a word, or of a cross, that train does not have; it is one for all columns."""


class Rows(NamedTuple):
    """A split, or a batch of it."""

    numbers: Tensor
    """float32 (rows, columns)."""
    crosses: Tensor
    """int64: for each category, and then for each cross, the number of what the row has."""
    categories: Tensor
    """int64: for each category the number of the row's word."""
    labels: Tensor
    """float32, 0 or 1."""


@final
class Vocabulary:
    """In each column, a number for each value that train has; from 1, over all columns."""

    def __init__(self, columns: Sequence[Iterable[Hashable]]) -> None:
        found = [sorted(set(column), key=repr) for column in columns]
        known = [(place, value) for place, values in enumerate(found) for value in values]
        self._numbers = {value: number for number, value in enumerate(known, UNKNOWN + 1)}

    def __len__(self) -> int:
        """With the unknown one."""
        return len(self._numbers) + 1

    def as_list(self) -> list[tuple[int, Hashable, int]]:
        """The column's place, the value and its number."""
        return [(place, value, number) for (place, value), number in self._numbers.items()]

    def encode(self, columns: Sequence[Sequence[Hashable]], rows: int) -> Tensor:
        """(rows, columns)."""
        numbers = [[self._numbers.get((k, value), UNKNOWN) for value in column] for k, column in enumerate(columns)]
        return torch.tensor(numbers, dtype=torch.long).view(len(columns), rows).t().contiguous()


@final
@dataclass(frozen=True)
class Features:
    """How a table becomes rows."""

    schema: Schema
    mean: Tensor
    deviation: Tensor
    edges: Tensor
    """(columns, buckets − 1): between them lie about equally many rows of train."""
    words: Vocabulary
    crossed: Vocabulary

    def encode(self, table: Table) -> Rows:
        numbers = ((table.numbers - self.mean) / self.deviation).float()
        categories = self.words.encode(_words(table, self.schema), len(table))
        crosses = self.crossed.encode(_crosses(table, self.schema, self.edges), len(table))
        return Rows(numbers, crosses, categories, table.labels.float())


def features(train: Table, schema: Schema, buckets: int) -> Features:
    mean, deviation = train.numbers.mean(0), train.numbers.std(0, correction=0)
    deviation[deviation == 0] = 1  # a column that says nothing
    shares = torch.arange(1, buckets, dtype=torch.float64) / buckets
    edges = torch.quantile(train.numbers, shares, dim=0).t().contiguous()
    words = Vocabulary(_words(train, schema))
    return Features(schema, mean, deviation, edges, words, Vocabulary(_crosses(train, schema, edges)))


def _words(table: Table, schema: Schema) -> list[list[Hashable]]:
    return [[row[k] for row in table.categories] for k in range(len(schema.categories))]


def _crosses(table: Table, schema: Schema, edges: Tensor) -> list[list[Hashable]]:
    """Each category by itself, then the crosses."""
    columns: dict[str, list[Hashable]] = dict(zip(schema.categories, _words(table, schema), strict=True))
    crossed = {name for cross in schema.crosses for name in cross}
    for k, name in enumerate(schema.numbers):
        if name in crossed:
            columns[name] = list(torch.bucketize(table.numbers[:, k].contiguous(), edges[k]).tolist())
    together = [list[Hashable](zip(*(columns[name] for name in cross), strict=True)) for cross in schema.crosses]
    return [*(columns[name] for name in schema.categories), *together]
