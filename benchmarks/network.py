"""Data parallel over slow links: bytes, seconds and weights of ours beside plain DDP.

`python -m benchmarks network --threads 1` measures and stores (it needs root); `python -m benchmarks.network --quick`
tries it once and stores nothing. `compression` is measured on the same network.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import partialsgd as ps
from benchmarks.figures import Figure
from benchmarks.harness import Estimate, Track, estimate
from benchmarks.links import bytes_sent, shaped_links
from partialsgd.distributed import data_parallel

SUMMARY = "data parallel over slow links: a core step sends the core (needs root; only when asked for)"

LAYERS = ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj")
VOCABULARY, LENGTH, SENTENCES = 1000, 16, 8
NESTS: Mapping[str, Callable[[], ps.LowRank | ps.Width]] = {
    "LowRank(1/32)": lambda: ps.LowRank(1 / 32, where=LAYERS),
    "Width(1/4)": lambda: ps.Width(1 / 4),
}
SLOW = "100mbit"
ROUNDING = 100.0
"""How far weights may lie from plain DDP's after the warm-up, in millionths of the way that they have gone, if only the
order of the sums differs. The errors grow with each step, because a ReLU that rounding switches changes a gradient:
by width, plain DDP with buckets of 5 MB lay 8 millionths from plain DDP with buckets of 25 MB after 6 steps, and 1,327
after 36; ours lay 8 and 1,280."""
LINKS = {"1gbit": "1 Gbit/s", SLOW: "100 Mbit/s"}


def measure(track: Track) -> list[Figure]:
    return figures_of(track.rounds)


def transformer() -> nn.Module:
    """The paper's Transformer at a small size: 3 + 3 layers, d 256, feed-forward 1024, 4 heads, without dropout."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=VOCABULARY,
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        activation_function="relu",
        dropout=0.0,
        pad_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        max_position_embeddings=LENGTH,
    )
    return MarianMTModel(config).train()


def batch(t: int, rank: int, words: int = VOCABULARY) -> dict[str, Tensor]:
    """Sentences of so many words to be copied, in which each word follows from the one before, so that there is
    something to learn in few steps; different ones on each worker."""
    draw = torch.Generator().manual_seed(1000 * t + rank)
    sentences = [torch.randint(words - 2, (SENTENCES,), generator=draw)]
    while len(sentences) < LENGTH:
        sentences.append((7 * sentences[-1] + 3) % (words - 2))
    tokens = 2 + torch.stack(sentences, 1)
    return {"input_ids": tokens, "labels": tokens}


@final
class Trainer:
    """One contestant: a model of its own, and `step()`, which gives seconds, bytes and loss."""

    def __init__(
        self,
        rank: int,
        wrapped: nn.Module,
        model: nn.Module,
        method: ps.Method,
        optimizer: torch.optim.Optimizer,
        words: int = VOCABULARY,
    ) -> None:
        self.rank, self.wrapped, self.model, self.words, self.t = rank, wrapped, model, words, 0
        self.sgd = ps.PartialSGD(wrapped, optimizer, method)

    def step(self) -> tuple[float, int, float]:
        inputs = batch(self.t, self.rank, self.words)

        def closure() -> Tensor:
            loss: Tensor = self.wrapped(**inputs).loss
            loss.backward()
            return loss

        dist.barrier()
        before, start = bytes_sent(), perf_counter()
        result = self.sgd.step(closure)
        seconds = perf_counter() - start
        dist.barrier()  # what was sent has left the link's queue
        self.t += 1
        assert result.loss is not None
        return seconds, bytes_sent() - before, float(result.loss)


def race_levels(rank: int, nest: str, rounds: int, warm_up: int) -> dict[str, Any]:
    """On each worker: pairs of a full and a core step, ours and plain DDP in turns.

    By SGD: Adam makes whole steps of the rounding errors of gradients that are almost zero, so that the weights of two
    trainings differ by as much as they move.
    """
    trainers: dict[str, Trainer] = {}
    for name in ("ddp", "ours"):
        nested = ps.nest(transformer(), NESTS[nest]())
        wrapped: nn.Module = data_parallel(nested)
        if name == "ddp":
            wrapped = DistributedDataParallel(nested, find_unused_parameters=True)
        optimizer = torch.optim.SGD(nested.parameters(), 0.05, fused=True)
        trainers[name] = Trainer(rank, wrapped, nested, ps.methods.alternating(), optimizer)
    start = [p.detach().clone() for p in nested.parameters()]
    taken: dict[str, list[tuple[float, int, float]]] = {}
    for number in range(-warm_up, rounds):
        if number == 0:
            early = _millionths(trainers, start)
        for name in sorted(trainers, reverse=number % 2 == 1):
            for level in ("full", "core"):
                result = trainers[name].step()
                if number >= 0:
                    taken.setdefault(f"{name} {level}", []).append(result)
    ddp, ours = (list(trainers[name].model.parameters()) for name in ("ddp", "ours"))
    nested = trainers["ours"].model
    assert isinstance(nested, ps.Nested)
    return {
        "taken": taken,
        "share": nested.mask("core").count() / nested.mask("full").count(),
        "different bits": sum(not torch.equal(a, b) for a, b in zip(ddp, ours, strict=True)),
        "millionths": early,
    }


def _millionths(trainers: Mapping[str, Trainer], start: Sequence[Tensor]) -> float:
    """The distance of our weights from plain DDP's, in millionths of the way that these have gone."""
    ddp, ours = (list(trainers[name].model.parameters()) for name in ("ddp", "ours"))
    return 1e6 * _distance(ddp, ours) / _distance(ddp, start)


@torch.no_grad()
def _distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float((x - y).double().square().sum()) for x, y in zip(a, b, strict=True)))


def figures_of(
    rounds: int, links: Sequence[str] = tuple(LINKS), workers: Sequence[int] = (2, 4), warm_up: int = 3
) -> list[Figure]:
    figures = []
    for link in links:
        for number in workers:
            for nest in NESTS:
                with shaped_links(number, link) as hosts:
                    results = hosts.run(race_levels, nest, rounds_over(link, rounds), warm_up)
                figures += _level_figures(f"{nest}, {number} workers, {LINKS[link]}", link, number, results)
    return figures


def rounds_over(link: str, rounds: int) -> int:
    """A third as many over the slow link, which a step waits for: there, steps are long and alike."""
    return max(1, rounds // 3) if link == SLOW else rounds


def _level_figures(where: str, link: str, workers: int, results: Sequence[dict[str, Any]]) -> list[Figure]:
    seconds, sent = seconds_of(results), bytes_a_step(results)
    share = results[0]["share"]
    bytes_ratio = exact(sent["ours core"] / sent["ours full"] / share)
    core, full = (ratio(seconds[f"ours {level}"], seconds[f"ddp {level}"]) for level in ("core", "full"))
    pairs = [[a + b for a, b in zip(seconds[f"{name} full"], seconds[f"{name} core"], strict=True)]
             for name in ("ours", "ddp")]  # fmt: skip
    medians = {name: estimate(times).value for name, times in seconds.items()}
    is_slow = link == SLOW
    different = results[0]["different bits" if workers == 2 else "millionths"]
    what = (
        "tensors whose bits differ from"
        if workers == 2
        else "distance of the weights after 6 steps, in millionths of the way, from"
    )
    return [
        Figure(
            f"bytes of a core step ÷ full step ÷ its share ({share:.3f}), {where}",
            bytes_ratio,
            1.02,
            medians=sent,
        ),
        Figure(f"core step ÷ plain DDP's, {where}", core, 1.15 * share if is_slow else 1.0, medians=medians),
        Figure(f"full step ÷ plain DDP's, {where}", full, None if is_slow else 1.0, medians=medians),
        Figure(f"alternating pair ÷ plain DDP's, {where}", ratio(*pairs), medians=medians),
        Figure(f"{what} plain DDP's, {where}", exact(float(different)), 0.0 if workers == 2 else ROUNDING),
    ]


def seconds_of(results: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The seconds of each step: those of the slowest worker."""
    return {
        name: [max(times) for times in zip(*([s for s, _, _ in r["taken"][name]] for r in results), strict=True)]
        for name in results[0]["taken"]
    }


def bytes_a_step(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The bytes that all workers together sent in a step: the median over the steps."""
    medians = {}
    for name in results[0]["taken"]:
        steps = zip(*([sent for _, sent, _ in r["taken"][name]] for r in results), strict=True)
        medians[name] = estimate([float(sum(sent)) for sent in steps]).value
    return medians


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    return estimate([a / b for a, b in zip(ours, theirs, strict=True)])


def exact(value: float) -> Estimate:
    return Estimate(value, value, value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one link and few rounds, to see that it works")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, nargs="+", help="numbers of workers; 2 if quick, else 2 and 4")
    options = parser.parse_args(arguments)
    if options.quick:
        show(figures_of(6, (SLOW,), options.workers or (2,), warm_up=2))
    else:
        show(figures_of(options.rounds, workers=options.workers or (2, 4)))


def show(figures: Sequence[Figure]) -> None:
    for figure in figures:
        print(" | ".join(figure.cells()))
        print("    ", {name: round(value, 4) for name, value in figure.medians.items()})


if __name__ == "__main__":
    main()
