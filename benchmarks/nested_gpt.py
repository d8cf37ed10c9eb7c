"""The cost of hidden units in blocks: a language model of GPT-2's architecture, nested by width, at 1,024 tokens."""

from __future__ import annotations

from dataclasses import replace

import partialsgd as ps
from benchmarks import families
from benchmarks.figures import Figure, ratio, sum_ratio
from benchmarks.harness import Track, ready

SUMMARY = "nested GPT by Width(1/4), 1,024 tokens, one thread and two: full, core and pair ÷ ordinary networks"
TOKENS = 1024


def measure(track: Track) -> list[Figure]:
    return [figure for threads in (1, 2) for figure in _steps(replace(track, warm_up=1, threads=threads))]


def _steps(track: Track) -> list[Figure]:
    batch = families.text(TOKENS)
    nested = ps.nest(families.gpt(), ps.Width(1 / 4))
    pair = ps.nest(families.gpt(), ps.Width(1 / 4))
    training = families.translation(nested, batch)
    contestants = {
        "plain": families.translation(families.gpt(), batch).step,
        "small": families.translation(families.extracted(nested, batch), batch).step,
        "full": families.at(training, "full"),
        "core": families.at(training, "core"),
        "pair": families.steps(families.translation(pair, batch), ps.methods.alternating(), 2),
    }
    threads = "one thread" if track.threads == 1 else f"{track.threads} threads"
    times = track.race(f"GPT, {threads}", {name: ready(run) for name, run in contestants.items()}, repeat=1)
    return [
        ratio(f"Width(1/4), full ÷ plain, {TOKENS} tokens, {threads}", times, "full", "plain", 1.01),
        ratio(f"Width(1/4), core ÷ plain of that size, {threads}", times, "core", "small", 1.02),
        sum_ratio(f"alternating pair ÷ (plain + small), {threads}", times, "pair", ("plain", "small"), 1.02),
    ]
