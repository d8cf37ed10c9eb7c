"""The cost of a level relative to a network of its size: the paper's IWSLT Transformer, nested by rank and by width."""

from __future__ import annotations

from dataclasses import replace

import partialsgd as ps
from benchmarks import families
from benchmarks.figures import Figure, ratio, sum_ratio
from benchmarks.harness import Track, ready

SUMMARY = "nested Transformer (IWSLT size): full and core step ÷ ordinary networks of those sizes, alternating pairs"


def measure(track: Track) -> list[Figure]:
    track = replace(track, warm_up=1)  # a round takes long enough to be its own warm-up
    return [*_steps(track, 512), *_steps(track, 1984), *_few_tokens(track)]


def _steps(track: Track, tokens: int) -> list[Figure]:
    batch = families.sentences(tokens)
    by_rank = ps.nest(families.transformer(), ps.LowRank(1 / 32, where=families.LAYERS))
    by_quarter = ps.nest(families.transformer(), ps.LowRank(1 / 4, where=families.LAYERS))
    by_width = ps.nest(families.transformer(), ps.Width(1 / 4))
    rank, quarter, width = (families.translation(nested, batch) for nested in (by_rank, by_quarter, by_width))
    contestants = {
        "plain": families.translation(families.transformer(), batch).step,
        "small rank": families.translation(families.extracted(by_rank, batch), batch).step,
        "small width": families.translation(families.extracted(by_width, batch), batch).step,
        "rank 1/32, full": families.at(rank, "full"),
        "rank 1/32, core": families.at(rank, "core"),
        "rank 1/4, full": families.at(quarter, "full"),
        "width 1/4, full": families.at(width, "full"),
        "width 1/4, core": families.at(width, "core"),
        "pair": families.steps(rank, ps.methods.alternating(), 2),
    }
    if tokens < 1000:  # reported once, where it takes less long
        contestants["pair by hand"] = families.alternating_by_hand(rank)
        contestants["slimmable"] = families.steps(rank, ps.methods.slimmable(), 2)
    times = track.race(
        f"Transformer, {tokens} tokens", {name: ready(run) for name, run in contestants.items()}, repeat=1
    )
    said = f"{tokens} tokens"
    figures = [
        ratio(f"LowRank(1/32), full ÷ plain, {said}", times, "rank 1/32, full", "plain", 1.03),
        ratio(f"LowRank(1/4), full ÷ plain, {said}", times, "rank 1/4, full", "plain", 1.08 if tokens > 1000 else None),
        ratio(f"Width(1/4), full ÷ plain, {said}", times, "width 1/4, full", "plain", 1.05),
        ratio(f"LowRank(1/32), core ÷ plain of that size, {said}", times, "rank 1/32, core", "small rank", 1.03),
        ratio(f"Width(1/4), core ÷ plain of that size, {said}", times, "width 1/4, core", "small width", 1.05),
        sum_ratio(f"alternating pair ÷ (plain + small), {said}", times, "pair", ("plain", "small rank"), 1.04),
    ]
    if "slimmable" in contestants:
        figures += [
            sum_ratio(f"the same as a raw loop, {said}", times, "pair by hand", ("plain", "small rank")),
            ratio(f"alternating ÷ slimmable, two batches, {said}", times, "pair", "slimmable"),
        ]
    return figures


def _few_tokens(track: Track) -> list[Figure]:
    """A batch so small that a step is mostly overhead."""
    batch = families.sentences(64)
    nested = ps.nest(families.transformer(), ps.LowRank(1 / 32, where=families.LAYERS))
    training = families.translation(nested, batch)
    contestants = {
        "plain": families.translation(families.transformer(), batch).step,
        "small": families.translation(families.extracted(nested, batch), batch).step,
        "full": families.at(training, "full"),
        "core": families.at(training, "core"),
    }
    times = track.race("Transformer, 64 tokens", {name: ready(run) for name, run in contestants.items()}, repeat=1)
    return [
        ratio("LowRank(1/32), full ÷ plain, 64 tokens", times, "full", "plain"),
        ratio("LowRank(1/32), core ÷ plain of that size, 64 tokens", times, "core", "small"),
    ]
