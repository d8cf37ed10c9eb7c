"""Helpers of recipes: learning-rate schedules, hashes of data, nesting by the settings, evaluation mode, latency."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd._util.snapshots import Modes
from partialsgd.lab.training.settings import LevelOptions, parse_budget, parse_ratio
from partialsgd.nested import Nested
from partialsgd.nested.layers.batch_norm import Norms, never_updated_is_fine
from partialsgd.nested.specs import Spec


def hash_tensors(*tensors: Tensor) -> str:
    """Hash the dtypes, shapes and values of tensors."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def hash_texts(*texts: str) -> str:
    """Hash texts with their lengths. config.json of existing runs has such hashes, so that it must not change."""
    total = hashlib.sha256()
    for text in texts:
        total.update(f"{len(text)} {text}".encode())
    return total.hexdigest()


def inverse_sqrt(t: int, warm_up: int, initial: float = 0.0) -> float:
    """Rise linearly from `initial` to 1 over `warm_up` steps, then fall as √(warm_up / t), as fairseq's inverse_sqrt.

    Schedules are functions of the step, so that there is no state to save; they give the factor of the peak rate.
    """
    if t < warm_up:
        return initial + (1.0 - initial) * t / warm_up
    return math.sqrt(max(warm_up, 1) / max(t, 1))


def linear(t: int, total: int, warm_up: int = 0, initial: float = 0.0) -> float:
    """Rise linearly from `initial` to 1 over `warm_up` steps, then fall linearly to 0 at step `total`."""
    if t < warm_up:
        return initial + (1.0 - initial) * t / warm_up
    return max(0.0, (total - t) / max(total - warm_up, 1))


def cosine(t: int, total: int, warm_up: int = 0) -> float:
    """Rise linearly from 0 over `warm_up` steps, then follow half a cosine from 1 to 0 at step `total`."""
    if t < warm_up:
        return (t + 1) / (warm_up + 1)
    done = (t - warm_up) / max(total - warm_up, 1)
    return 0.5 * (1.0 + math.cos(math.pi * min(done, 1.0)))


def with_teacher(loss: Tensor, distilled: Tensor, share: float) -> Tensor:
    """(1 − share) · loss + share · distilled: the labels' loss, and that of a teacher's outputs."""
    return distilled if share == 1 else (1 - share) * loss + share * distilled


MakeSpec: TypeAlias = Callable[[tuple[float, ...]], Spec]
"""Makes the spec with these ratios for the layers that the recipe chooses."""


def nest_model(
    model: nn.Module,
    levels: LevelOptions,
    specs: Mapping[str, MakeSpec],
    *,
    seed: int,
    norms: Norms = "separate",
    example: Any = None,
    losses: Sequence[Callable[[], Tensor]] = (),
) -> Nested:
    """Nest the model. `nest="none"` and `alone` give a nested model with a single level.

    `losses` compute the loss of the model on some batches, which a budget needs.
    """
    if levels.nest == "none":
        if levels.alone is not None:
            raise ValueError(f'alone is {levels.alone!r}, but with nest="none" there are no levels; drop one of them')
        return ps.nest(model, levels={})
    if levels.nest not in specs:
        raise ValueError(f"nest must be one of {', '.join([*specs, 'none'])}; got {levels.nest!r}")
    ratios = tuple(sorted(parse_ratio(ratio) for ratio in levels.ratio))
    spec: Spec | Sequence[Spec] = specs[levels.nest](ratios)
    if levels.level_budget is not None:
        spec = _fitted(model, specs[levels.nest]((1.0,)), levels.level_budget, example, losses)
    nested = ps.nest(model, spec, norms=norms, seed=seed)
    for small, large in pairwise(nested.levels):
        if nested.size(small) >= nested.size(large):
            raise ValueError(f"level {small!r} is not smaller than {large!r}; use a smaller ratio or a larger network")
    if levels.alone is None:
        return nested
    if levels.alone not in nested.levels:
        raise ValueError(f"alone must be one of the levels {', '.join(nested.levels)}; got {levels.alone!r}")
    with never_updated_is_fine():  # the level is about to be trained
        return ps.nest(nested.extract(levels.alone, example=example), levels={})


def _fitted(
    model: nn.Module, spec: Spec, budget: str, example: Any, losses: Sequence[Callable[[], Tensor]]
) -> Sequence[Spec]:
    if isinstance(spec, ps.Width) and spec.query_key:
        raise ValueError("a budget does not choose the width of query and key; add --no-query-key")
    if not isinstance(spec, (ps.Width, ps.LowRank)):
        raise ValueError(f"a budget chooses units or ranks, not {type(spec).__name__}; use --nest width or low-rank")
    return ps.fit_budget(model, example, losses, budget=ps.Budget(**parse_budget(budget)), spec=spec)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and each of its modules back at the end."""
    modes = Modes(model)
    model.eval()
    try:
        yield
    finally:
        modes.restore()


def latency(plain: nn.Module, *args: Any) -> float:
    """The median time of 20 calls in evaluation mode, in seconds, after two warm-up calls."""
    times = []
    with evaluation_mode(plain), torch.inference_mode():
        for _ in range(22):
            start = time.perf_counter()
            plain(*args)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
    return statistics.median(times[2:])
