"""Batches: every pair once an epoch, never too many tokens, and nothing but (seed, epoch, index) decides."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from partialsgd._util import randomness
from partialsgd.lab.recipes.translation.tokens import EOS, PAD, Ids, TokenBatch, TokenBatches, in_order

NAMES = ["input_ids", "attention_mask", "decoder_input_ids", "labels"]


def drawn(count: int = 200, seed: int = 0, longest: int = 30) -> list[Ids]:
    """Pairs that are all different, of many lengths."""
    random = Random(seed)

    def line(number: int) -> list[int]:
        return [number + 3, *(random.randrange(3, 5000) for _ in range(random.randrange(longest - 1))), EOS]

    return [(line(number), line(number)) for number in range(count)]


# The definition, slow: batches as lists of pairs, then padded number by number.


def slow_batches(pairs: list[Ids], max_tokens: int, seed: int, longest: int) -> list[list[Ids]]:
    fitting = [pair for pair in pairs if max(map(len, pair)) <= longest and max(map(len, pair)) <= max_tokens]
    generator = randomness.generator(randomness.key(seed, "composition"))
    shuffled = [fitting[place] for place in torch.randperm(len(fitting), generator=generator)]
    batches: list[list[Ids]] = []
    for pair in sorted(shuffled, key=lambda pair: (max(map(len, pair)), len(pair[0]))):
        if (
            batches
            and (len(batches[-1]) + 1) * max(len(side) for p in [*batches[-1], pair] for side in p) <= max_tokens
        ):
            batches[-1].append(pair)
        else:
            batches.append([pair])
    return batches


def slow_batch(pairs: list[Ids]) -> TokenBatch:
    def padded(lines: list[list[int]], fill: int) -> Tensor:
        width = max(map(len, lines))
        return torch.tensor([line + [fill] * (width - len(line)) for line in lines])

    sources, targets = ([list(side) for side in sides] for sides in zip(*pairs, strict=True))
    return {
        "input_ids": padded(sources, PAD),
        "attention_mask": padded([[1] * len(line) for line in sources], 0),
        "decoder_input_ids": padded([[EOS, *line[:-1]] for line in targets], PAD),
        "labels": padded(targets, -100),
    }


def are_equal(one: TokenBatch, other: TokenBatch) -> bool:
    return list(one) == list(other) == NAMES and all(
        one[name].dtype == torch.int64 and torch.equal(one[name], other[name]) for name in NAMES
    )


def pairs_of(batch: TokenBatch) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Read the pairs that went in back from the tensors."""
    sources = [tuple(row[: sum(there)]) for row, there in zip(*(batch[n].tolist() for n in NAMES[:2]), strict=True)]
    targets = [tuple(number for number in row if number != -100) for row in batch["labels"].tolist()]
    return list(zip(sources, targets, strict=True))


def frozen(pair: Ids) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(pair[0]), tuple(pair[1])


lines = st.lists(st.integers(3, 99), max_size=11).map(lambda line: [*line, EOS])
corpora = st.lists(st.tuples(lines, lines), min_size=1, max_size=40)


@given(corpora, st.integers(4, 60), st.integers(0, 3), st.integers(4, 20))
def test_the_fast_batches_are_the_slow_ones(pairs: list[Ids], max_tokens: int, seed: int, longest: int) -> None:
    pairs = [([5, EOS], [6, EOS]), *pairs]  # one that fits always
    expected = slow_batches(pairs, max_tokens, seed, longest)
    fast = TokenBatches(pairs, max_tokens=max_tokens, seed=seed, longest=longest)
    assert len(fast) == len(expected) and fast.left_out == len(pairs) - sum(map(len, expected))
    order = torch.randperm(len(expected), generator=randomness.generator(randomness.key(seed, "order", 2)))
    for index, place in enumerate(order):
        assert are_equal(fast.make(2, index), slow_batch(expected[place]))
        assert fast.units(2, index) == sum(len(target) for _, target in expected[place])


@pytest.mark.parametrize("pairs", [[], drawn(5)])
def test_a_training_without_batches_is_refused(pairs: list[Ids]) -> None:
    message = rf"none of the {len(pairs)} pairs has at most 1 tokens .*; increase longest \(1\) and max_tokens \(50\)"
    with pytest.raises(ValueError, match=message):
        TokenBatches(pairs, max_tokens=50, seed=0, longest=1)


@pytest.mark.parametrize("name", ["max_tokens", "longest"])
def test_limits_are_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be a whole number of at least 1, got 0"):
        TokenBatches(drawn(), **{"max_tokens": 50, "seed": 0, "longest": 9, name: 0})
    with pytest.raises(ValueError, match="max_tokens must be a whole number of at least 1, got 0"):
        in_order(drawn(), 0)


@given(corpora, st.integers(1, 60))
def test_in_order_gives_all_pairs_shortest_first(pairs: list[Ids], max_tokens: int) -> None:
    seen, widths = Counter[tuple[tuple[int, ...], tuple[int, ...]]](), []
    for batch in in_order(pairs, max_tokens):
        found = pairs_of(batch)
        assert are_equal(batch, slow_batch([(list(source), list(target)) for source, target in found]))
        widths.append(max(batch["input_ids"].shape[1], batch["labels"].shape[1]))
        assert len(found) * widths[-1] <= max_tokens or len(found) == 1
        seen.update(found)
    assert seen == Counter(map(frozen, pairs)) and widths == sorted(widths)
    assert not list(in_order([], max_tokens))


def test_seed_epoch_and_index_decide_whatever_was_asked_before() -> None:
    noise = torch.get_rng_state()
    one, other = (TokenBatches(drawn(), max_tokens=150, seed=1, longest=30) for _ in range(2))
    asked = [(epoch, index) for epoch in (2, 0, 1) for index in (3, 0, 2)]
    expected = {place: one.make(*place) for place in asked}
    other.units(9, 0)
    for place in reversed(asked):
        batch = other.make(*place)
        assert are_equal(batch, expected[place])
        for tensor in batch.values():
            tensor.zero_()  # a batch may be changed without harm
    assert all(are_equal(batches.make(*place), expected[place]) for place in asked for batches in (one, other))
    assert torch.equal(torch.get_rng_state(), noise)
    for ask in (one.make, one.units):
        with pytest.raises(IndexError):
            ask(0, len(one))
