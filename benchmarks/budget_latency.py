"""Latencies that fit_budget promises from its table, beside those that the extracted level has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import partialsgd as ps
from benchmarks import families
from benchmarks.figures import Figure
from benchmarks.harness import Run, Track, estimate, ready

SUMMARY = "fit_budget by latency: promised ÷ measured, or measured ÷ promised, whichever is larger"
SHARES = (0.7, 0.85)


def measure(track: Track) -> list[Figure]:
    torch.set_num_threads(track.threads)
    text, (pictures, _) = families.text(1024), families.pictures(32)
    gpt, resnet = families.gpt().eval(), families.small_resnet().eval()
    return [
        *_figures(track, "GPT, 1024 tokens", gpt, text, [lambda: gpt(**text).loss]),
        *_figures(
            track, "ResNet-18 of width 32, 32 images", resnet, pictures, [lambda: resnet(pictures).pow(2).mean()]
        ),
    ]


def _figures(
    track: Track, what: str, model: nn.Module, example: Any, losses: list[Callable[[], Tensor]]
) -> list[Figure]:
    fitted = ps.fit_budget(model, example, losses, budget=ps.Budget(latency=SHARES))
    nested = ps.nest(model, fitted, example=example)
    levels = {p.level: nested.extract(p.level, example=example).eval() for p in fitted.promises}
    runs = {level: ready(_forward(plain, example)) for level, plain in levels.items()}
    times = track.race(what, runs, repeat=1)
    figures = []
    for promise in fitted.promises:
        assert promise.latency is not None
        ratios = [seconds / promise.latency for (seconds,) in times.of(promise.level)]
        apart = estimate([max(ratio, 1 / ratio) for ratio in ratios])
        name = f"{what}, budget {promise.level} of the latency"
        medians = {"promised": promise.latency, **times.medians(promise.level)}
        figures.append(Figure(name, apart, 1.15, medians=medians))
    return figures


def _forward(plain: nn.Module, example: Any) -> Run:
    @torch.inference_mode()
    def run() -> None:
        plain(**example) if isinstance(example, dict) else plain(example)

    return run
