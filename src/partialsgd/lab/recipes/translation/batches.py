"""Batches of about equally long sentences, with no more than so many tokens each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import TypeAlias, final

import torch
from torch import Tensor

from partialsgd._util import randomness
from partialsgd.lab.recipes.translation.tokens import EOS, PAD
from partialsgd.lab.training.settings import require_at_least

Ids: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""The numbers of a source and of its target; each ends with EOS."""
TokenBatch: TypeAlias = dict[str, Tensor]
"""Of int64: input_ids, attention_mask, decoder_input_ids, and labels, which are −100 where a target has ended."""

NO_LABEL = -100


@final
class TokenBatches:
    """The batches of a training: what lies in one is the seed's choice, their order that of the seed and the epoch.

    As in fairseq, `max_tokens` bounds sentences × the longest sentence of a batch, source or target: what it takes
    with its padding. Pairs longer than that, or than `longest`, are left out.
    """

    def __init__(self, pairs: Sequence[Ids], *, max_tokens: int, seed: int, longest: int) -> None:
        for name, value in {"max_tokens": max_tokens, "longest": longest}.items():
            require_at_least(name, value, 1)
        limit = min(max_tokens, longest)
        fitting = [pair for pair in pairs if _longer(pair) <= limit]
        if not fitting:
            raise ValueError(
                f"of {len(pairs)} pairs none has at most {limit} tokens on both sides: raise longest ({longest}) "
                f"and max_tokens ({max_tokens})"
            )
        self.left_out = len(pairs) - len(fitting)
        self._seed = seed
        shuffled = [fitting[place] for place in _order(randomness.key(seed, "composition"), len(fitting))]
        self._rows = _Rows(sorted(shuffled, key=_lengths), max_tokens)
        self._epoch, self._orders = -1, list[int]()

    def __len__(self) -> int:
        return len(self._rows.cuts)

    def units(self, epoch: int, index: int) -> int:
        """How many tokens of targets a batch has, their EOS too."""
        return self._rows.tokens(self._place(epoch, index))

    def make(self, epoch: int, index: int) -> TokenBatch:
        return self._rows.batch(self._place(epoch, index))

    def _place(self, epoch: int, index: int) -> int:
        if epoch != self._epoch:
            self._epoch, self._orders = epoch, _order(randomness.key(self._seed, "order", epoch), len(self))
        return self._orders[index]


def in_order(pairs: Sequence[Ids], max_tokens: int) -> Iterator[tuple[list[int], TokenBatch]]:
    """All pairs, the shortest first, in batches with their places in `pairs`; a pair that is too long is alone."""
    require_at_least("max_tokens", max_tokens, 1)
    if not pairs:
        return
    places = sorted(range(len(pairs)), key=lambda place: _lengths(pairs[place]))
    rows = _Rows([pairs[place] for place in places], max_tokens)
    for index, (start, stop) in enumerate(rows.cuts):
        yield places[start:stop], rows.batch(index)


@final
class _Rows:
    """Pairs from short to long, end to end in one tensor for each side, and where batches begin and end."""

    def __init__(self, pairs: Sequence[Ids], max_tokens: int) -> None:
        self.cuts = _cuts([_longer(pair) for pair in pairs], max_tokens)
        self._sides = [_Side([pair[side] for pair in pairs]) for side in (0, 1)]

    def tokens(self, index: int) -> int:
        start, stop = self.cuts[index]
        return self._sides[1].ends[stop] - self._sides[1].ends[start]

    def batch(self, index: int) -> TokenBatch:
        (sources, is_source), (labels, is_target) = (
            side.padded(*self.cuts[index], fill) for side, fill in zip(self._sides, (PAD, NO_LABEL), strict=True)
        )
        inputs = torch.full_like(labels, PAD)
        inputs[:, 0] = EOS
        inputs[:, 1:] = torch.where(is_target[:, 1:], labels[:, :-1], PAD)
        return {
            "input_ids": sources,
            "attention_mask": is_source.long(),
            "decoder_input_ids": inputs,
            "labels": labels,
        }


@final
class _Side:
    def __init__(self, lines: Sequence[Sequence[int]]) -> None:
        self._flat = torch.frombuffer(array("i", chain.from_iterable(lines)), dtype=torch.int32)
        self._lengths = torch.tensor([len(line) for line in lines], dtype=torch.int32)
        self.ends = list(accumulate(map(len, lines), initial=0))

    def padded(self, start: int, stop: int, fill: int) -> tuple[Tensor, Tensor]:
        """The lines one below the other, and where they are: the rest is filled."""
        lengths = self._lengths[start:stop, None]
        is_there = torch.arange(int(lengths.max()), dtype=torch.int32) < lengths
        ids = torch.full(is_there.shape, fill)
        return ids.masked_scatter_(is_there, self._flat[self.ends[start] : self.ends[stop]].long()), is_there


def _longer(pair: Ids) -> int:
    return max(len(pair[0]), len(pair[1]))


def _lengths(pair: Ids) -> tuple[int, int]:
    """What batches are sorted by: the longer side decides how many rows fit, the other how much is padded."""
    return _longer(pair), len(pair[0])


def _cuts(lengths: Sequence[int], max_tokens: int) -> list[tuple[int, int]]:
    """From short to long, as many rows as go into a batch: rows × the last of them, the longest."""
    starts = [0]
    for place, length in enumerate(lengths):
        if place > starts[-1] and (place + 1 - starts[-1]) * length > max_tokens:
            starts.append(place)
    return list(pairwise([*starts, len(lengths)]))


def _order(key: int, count: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=randomness.generator(key)).tolist()
    return order
