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
    """What went in, read back from the tensors."""
    sources = [tuple(row[: sum(there)]) for row, there in zip(*(batch[n].tolist() for n in NAMES[:2]), strict=True)]
    targets = [tuple(number for number in row if number != -100) for row in batch["labels"].tolist()]
    return list(zip(sources, targets, strict=True))


def frozen(pair: Ids) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(pair[0]), tuple(pair[1])


lines = st.lists(st.integers(3, 99), max_size=11).map(lambda line: [*line, EOS])
corpora = st.lists(st.tuples(lines, lines), min_size=1, max_size=40)


@given(corpora, st.integers(12, 60), st.integers(0, 3), st.integers(12, 20))
def test_the_fast_batches_are_the_slow_ones(pairs: list[Ids], max_tokens: int, seed: int, longest: int) -> None:
    expected = slow_batches(pairs, max_tokens, seed, longest)
    fast = TokenBatches(pairs, max_tokens=max_tokens, seed=seed, longest=longest)
    assert len(fast) == len(expected)
    order = torch.randperm(len(expected), generator=randomness.generator(randomness.key(seed, "order", 2)))
    for index, place in enumerate(order):
        assert are_equal(fast.make(2, index), slow_batch(expected[place]))
        assert fast.units(2, index) == sum(len(target) for _, target in expected[place])


def test_a_batch_by_hand() -> None:
    batches = TokenBatches([([5, 6, 7, EOS], [8, EOS]), ([9, EOS], [10, 11, 12, EOS])], max_tokens=8, seed=0, longest=9)
    batch = batches.make(0, 0)
    assert batch["input_ids"].tolist() == [[9, 1, 0, 0], [5, 6, 7, 1]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["decoder_input_ids"].tolist() == [[1, 10, 11, 12], [1, 8, 0, 0]]
    assert batch["labels"].tolist() == [[10, 11, 12, 1], [8, 1, -100, -100]]
    assert len(batches) == 1 and batches.units(0, 0) == 6


def test_pairs_that_are_too_long_are_left_out_and_counted() -> None:
    def pair(source: int, target: int) -> Ids:
        return [5] * (source - 1) + [EOS], [6] * (target - 1) + [EOS]

    pairs = [pair(10, 3), pair(3, 10), pair(11, 3), pair(3, 11), pair(2, 2), pair(21, 2)]
    by_length = TokenBatches(pairs, max_tokens=20, seed=0, longest=10)
    by_tokens = TokenBatches(pairs, max_tokens=10, seed=0, longest=20)
    assert by_length.left_out == by_tokens.left_out == 3
    for batches in (by_length, by_tokens):
        seen = [p for index in range(len(batches)) for p in pairs_of(batches.make(0, index))]
        assert Counter(seen) == Counter(frozen(p) for p in (pairs[0], pairs[1], pairs[4]))
    assert TokenBatches(pairs, max_tokens=99, seed=0, longest=99).left_out == 0


def test_seed_epoch_and_index_decide_whatever_was_asked_before() -> None:
    one, other = (TokenBatches(drawn(), max_tokens=150, seed=1, longest=30) for _ in range(2))
    asked = [(epoch, index) for epoch in (2, 0, 1) for index in (3, 0, 2)]
    expected = {place: one.make(*place) for place in asked}
    other.units(9, 0)
    assert all(are_equal(other.make(*place), expected[place]) for place in reversed(asked))
    assert all(are_equal(one.make(*place), expected[place]) for place in asked)


def test_a_batch_may_be_changed_without_harm() -> None:
    batches = TokenBatches(drawn(), max_tokens=150, seed=1, longest=30)
    expected = batches.make(0, 0)
    for tensor in batches.make(0, 0).values():
        tensor.zero_()
    assert are_equal(batches.make(0, 0), expected)


def test_the_global_generator_is_not_asked() -> None:
    before = torch.get_rng_state()
    TokenBatches(drawn(), max_tokens=150, seed=1, longest=30).make(0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_beyond_the_last_batch_there_is_none() -> None:
    batches = TokenBatches(drawn(), max_tokens=150, seed=1, longest=30)
    for ask in (batches.make, batches.units):
        with pytest.raises(IndexError):
            ask(0, len(batches))


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
        next(in_order(drawn(), 0))


@given(corpora, st.integers(1, 60))
def test_in_order_gives_all_pairs_with_their_places(pairs: list[Ids], max_tokens: int) -> None:
    found: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    widths = []
    for places, batch in in_order(pairs, max_tokens):
        assert are_equal(batch, slow_batch([pairs[place] for place in places]))
        widths.append(max(batch["input_ids"].shape[1], batch["labels"].shape[1]))
        assert len(places) * widths[-1] <= max_tokens or len(places) == 1
        found.update(zip(places, pairs_of(batch), strict=True))
    assert [found[place] for place in range(len(pairs))] == [frozen(pair) for pair in pairs]
    assert widths == sorted(widths)
