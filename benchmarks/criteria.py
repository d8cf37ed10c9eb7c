"""c_norm, c_sim, c_align while training: what measuring costs in time and memory, at every n-th step.

A period of n steps has one that is measured and n − 1 at which the meter only counts. Each kind is timed by itself, in
turns with a step without a meter, and the ratio of a period is made of the three within each round: it differs from 1
by too little for a race between whole periods to tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

import partialsgd as ps
from benchmarks import families
from benchmarks.baselines import Training, fused_adam
from benchmarks.figures import Figure, ratio
from benchmarks.harness import Estimate, Run, Times, Track, estimate, ready
from benchmarks.live_bytes import peak_of
from studies.methods.tasks import digits

SUMMARY = "criteria measured at every 1st, 16th and 64th step ÷ unmeasured: dropout, alternating; extra memory"
LIMITS = {1: 2.1, 16: 1.10, 64: 1.03}
IN_A_ROW = 16
NEVER = 2**62
TOKENS = 512


def measure(track: Track) -> list[Figure]:
    few = replace(track, warm_up=1)  # a round takes long enough to be its own warm-up
    return [*_dropout(track, few), *_alternating(few)]


def _dropout(track: Track, few: Track) -> list[Figure]:
    method, cnn = ps.methods.dropout(0.9), small_cnn()
    sentences = families.translation(families.small_transformer(), families.sentences(TOKENS))
    of_cnn = f"dropout(0.9), digits CNN, batch {cnn.batch}"
    of_transformer = f"dropout(0.9), 2-layer Transformer, {TOKENS} tokens"
    return [
        *_steps(track, of_cnn, cnn, method, repeat=9),
        *_steps(few, of_transformer, sentences, method),
        _in_a_row(few, of_transformer, sentences, method),
        _memory(of_cnn, cnn, method),
        _memory(of_transformer, sentences, method),
    ]


def _alternating(track: Track) -> list[Figure]:
    narrow, thin = ps.Width(1 / 2, query_key=True), ps.LowRank(1 / 4, where=families.LAYERS)
    batch, found = families.sentences(TOKENS), list[Figure]()
    for name, spec, dropout in (
        ("Width(1/2)", narrow, 0.0),
        ("LowRank(1/4)", thin, 0.0),
        ("Width(1/2) of a network with dropout", narrow, 0.3),  # x and x̃ draw other noise: two passes without it
    ):
        nested = ps.nest(families.small_transformer(dropout=dropout), spec)
        training, method = families.translation(nested, batch), ps.methods.alternating()
        what, is_limited = f"alternating, {name}, {TOKENS} tokens", dropout == 0
        found += _steps(track, what, training, method, cycle=2, is_limited=is_limited)
        found.append(_memory(what, training, method, is_limited=is_limited))
    return found


def _steps(
    track: Track,
    what: str,
    training: Training,
    method: ps.Method,
    *,
    cycle: int = 1,
    repeat: int = 3,
    is_limited: bool = True,
) -> list[Figure]:
    """`cycle` is how many steps go once through all levels, each of which is counted by itself."""
    made = partial(runner, training, method)
    contestants = {
        "without": made(None, cycle),
        "counting": made(ps.CriteriaMeter(NEVER), cycle),
        "measured": made(ps.CriteriaMeter(1), cycle),
    }
    contestants["counting"]()  # the first step of each level is measured
    times = track.race(what, {name: ready(run) for name, run in contestants.items()}, repeat=repeat)
    return [
        Figure(
            f"criteria at every {_nth(n)} ÷ unmeasured, {what}",
            amortised(times, n),
            limit if is_limited else None,
            medians=times.medians(),
        )
        for n, limit in LIMITS.items()
    ]


def _in_a_row(track: Track, what: str, training: Training, method: ps.Method) -> Figure:
    """A whole period raced against as many steps without a meter, to see that the sum is not made up."""
    contestants = {
        "without": ready(runner(training, method, None, IN_A_ROW)),
        "period": ready(runner(training, method, ps.CriteriaMeter(IN_A_ROW), IN_A_ROW)),
    }
    times = track.race(f"{what}, {IN_A_ROW} in a row", contestants, repeat=1)
    return ratio(f"{IN_A_ROW} steps in a row, the first measured, ÷ unmeasured, {what}", times, "period", "without")


def amortised(times: Times, every: int) -> Estimate:
    """The time of a period of `every` steps ÷ as many without a meter, within each round."""
    rounds = times.of("without", "counting", "measured")
    return estimate([((every - 1) * counting + measured) / (every * without) for without, counting, measured in rounds])


def _nth(every: int) -> str:
    return "step" if every == 1 else f"{every}th step"


def runner(training: Training, method: ps.Method, meter: ps.CriteriaMeter | None, count: int) -> Run:
    sgd = ps.PartialSGD(training.model, training.optimizer, method, meter=meter)

    def run() -> None:
        for _ in range(count):
            sgd.step(training.closure)

    return run


def _memory(what: str, training: Training, method: ps.Method, *, is_limited: bool = True) -> Figure:
    """Counted, not timed, over four steps from the making of `PartialSGD` on."""
    training.step()  # makes the optimizer's state, which both have
    make: Callable[[ps.CriteriaMeter | None], Run] = partial(_made_and_run, training, method)
    without, measured = peak_of(make(None)), peak_of(make(ps.CriteriaMeter(1)))
    size = sum(p.numel() * p.element_size() for p in training.parameters)
    extra = (measured - without) / size
    medians = {"without": without, "measured": measured, "parameters": size}
    limit = 1.1 if is_limited else None
    said = f"extra memory of criteria ÷ parameters, {what}"
    return Figure(said, Estimate(extra, extra, extra), limit, medians=medians)


def _made_and_run(training: Training, method: ps.Method, meter: ps.CriteriaMeter | None) -> Run:
    return lambda: runner(training, method, meter, 4)()


def small_cnn() -> Training:
    """Three convolutions and a linear layer on scikit-learn's digits."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 2 * 2, 10),
    )
    data = digits().train
    x, y = data.x[:64].view(-1, 1, 8, 8), data.y[:64]
    return Training(model, fused_adam(list(model.parameters())), lambda: F.cross_entropy(model(x), y), len(y))
