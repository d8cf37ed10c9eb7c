"""Wide and deep: a linear function of features and their crosses, and an MLP over embeddings (Cheng et al. 2016)."""

from __future__ import annotations

from itertools import pairwise
from typing import cast, final

import torch
from torch import Tensor, nn

from partialsgd.lab.recipes.tabular.features import UNKNOWN, Rows
from partialsgd.nested import OutputSum


@final
class Deep(nn.Module):
    """Numbers and the embeddings of words, through an MLP, to one logit. An unknown word has the embedding 0."""

    def __init__(self, numbers: int, categories: int, words: int, *, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, embedding, padding_idx=UNKNOWN) if categories else None
        sizes = [numbers + embedding * categories, *[hidden] * layers]
        steps = [step for pair in pairwise(sizes) for step in (nn.Linear(*pair), nn.ReLU())]
        self.mlp = nn.Sequential(*steps, nn.Linear(sizes[-1], 1))

    def forward(self, numbers: Tensor, categories: Tensor | None = None) -> Tensor:
        if self.words is not None:
            assert categories is not None  # a table with words in it has them in every row
            numbers = torch.cat([numbers, self.words(categories).flatten(1)], 1)
        return cast(Tensor, self.mlp(numbers)).squeeze(1)


@final
class Wide(nn.Module):
    """A weight for each number, each word and each cross, to one logit. It starts at zero."""

    def __init__(self, numbers: int, crosses: int) -> None:
        super().__init__()
        self.numbers = nn.Linear(numbers, 1)
        self.crosses = nn.Embedding(crosses, 1, padding_idx=UNKNOWN)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, numbers: Tensor, crosses: Tensor) -> Tensor:
        return cast(Tensor, self.numbers(numbers) + self.crosses(crosses).sum(1)).squeeze(1)


def wide_and_deep(deep: Deep, wide: Wide) -> OutputSum:
    """The deep part is the core, the wide one the extension."""
    return OutputSum(deep, wide, inputs=((0,) if deep.words is None else (0, 2), (0, 1)))


def inputs_of(rows: Rows) -> tuple[Tensor, ...]:
    """The arguments of the sum: numbers, crosses, and categories if there are any.

    The deep part alone takes the first and the third.
    """
    return (rows.numbers, rows.crosses, rows.categories)[: 3 if rows.categories.shape[1] else 2]
