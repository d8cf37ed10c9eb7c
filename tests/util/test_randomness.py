"""The counter-based draws: stable, independent of everything, and random enough."""

from __future__ import annotations

import pytest
import torch

from partialsgd._util import randomness

CPU = torch.device("cpu")


def splitmix64(seed: int, count: int) -> list[int]:
    """The generator as published (Steele, Lea and Flood 2014), in Python's own integers."""
    state, out, m = seed, [], 2**64 - 1
    for _ in range(count):
        z = state & m
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
        out.append(z ^ (z >> 31))
        state = (state + 0x9E3779B97F4A7C15) & m
    return out


@pytest.mark.parametrize("count", [0, 1, 5, 40_000, 140_001])
def test_words_are_splitmix64(count: int) -> None:
    seed = randomness.key(3, "a")
    ours = [w % 2**64 for _, chunk in randomness.words(seed, count, CPU) for w in chunk.tolist()]
    assert ours == splitmix64(seed, count)


def test_keys_are_stable_and_tell_places_apart() -> None:
    assert randomness.key(0, 1, 2, "layer.weight") == -8284500774766592708
    places = [(s, t, b, n) for s in (0, 1) for t in (0, 1, 11) for b in (0, 1) for n in ("a", "b", "1")]
    assert len({randomness.key(*place) for place in places}) == len(places)
    assert randomness.key(1, "1") != randomness.key("1", 1)


@pytest.mark.parametrize("keep", [1e-6, 0.003, 0.1, 0.5, 0.9, 0.9995])
def test_the_share_that_stays_is_keep(keep: float) -> None:
    shape = torch.Size([1000, 1003])
    drawn = torch.cat([randomness.bernoulli(randomness.key(k), shape, keep, CPU).flatten() for k in range(4)])
    expected, deviation = keep * len(drawn), (keep * (1 - keep) * len(drawn)) ** 0.5
    assert abs(int(drawn.sum()) - expected) < 5 * deviation + 2e-5 * len(drawn)


def test_neighbours_seeds_and_positions_are_uncorrelated() -> None:
    shape = torch.Size([1 << 20])
    draws = [randomness.bernoulli(seed, shape, 0.5, CPU).float() - 0.5 for seed in (0, 1, 2, 12345)]
    limit = 5 / shape.numel() ** 0.5
    for k, a in enumerate(draws):
        for lag in (1, 2, 3, 4, 8, 1000, 1003):
            assert abs(float((a[lag:] * a[:-lag]).mean()) * 4) < limit
        for b in draws[k + 1 :]:
            assert abs(float((a * b).mean()) * 4) < limit


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    randomness.bernoulli(1, torch.Size([99]), 0.5, CPU)
    randomness.generator(1)
    assert torch.equal(before, torch.get_rng_state())
