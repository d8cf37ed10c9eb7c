"""How long `nest` takes beyond one forward pass, on a GPT-2 of 98 M parameters."""

from __future__ import annotations

import torch

import partialsgd as ps
from benchmarks.figures import Figure
from benchmarks.harness import Run, Track
from partialsgd.nested.example_inputs import from_config

SUMMARY = "nest of a network of 98 M parameters, beyond one forward pass"


def network() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        made = GPT2LMHeadModel(GPT2Config(n_embd=768, n_layer=12, n_head=12, vocab_size=16000))
    made.to_empty(device="cpu").tie_weights()
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, -0.02, 0.02)
    return made.eval()


def measure(track: Track) -> list[Figure]:
    plain = network()
    example = from_config(plain)
    assert example is not None
    args, kwargs = example.call

    @torch.no_grad()
    def forward() -> None:
        plain(*args, **kwargs)

    def nesting() -> Run:
        fresh = network()
        return lambda: ps.nest(fresh, ps.Width(1 / 2))

    times = track.race(SUMMARY, {"forward": lambda: forward, "nest": nesting}, repeat=1)
    beyond = times.difference("nest", "forward")
    return [Figure(SUMMARY, beyond, 3.0, "s", times.medians())]
