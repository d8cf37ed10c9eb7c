"""How long `nest` takes beyond one forward pass, on a GPT-2 of 98 M parameters: `python -m benchmarks.nest_time`."""

from __future__ import annotations

import statistics
import time

import torch

import partialsgd as ps
from partialsgd.nested.example_inputs import from_config


def model() -> torch.nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        made = GPT2LMHeadModel(GPT2Config(n_embd=768, n_layer=12, n_head=12, vocab_size=16000))
    made.to_empty(device="cpu").tie_weights()
    for parameter in made.parameters():
        torch.nn.init.uniform_(parameter, -0.02, 0.02)
    return made.eval()


def main(repeats: int = 3) -> None:
    """Print the medians of the forward pass and of `nest`."""
    torch.set_num_threads(1)
    forward, nesting = [], []
    for _ in range(repeats):
        network = model()
        example = from_config(network)
        assert example is not None
        for seconds, run in (
            (forward, lambda network=network, example=example: network(**example.call[1])),
            (nesting, lambda network=network: ps.nest(network, ps.Width(1 / 2))),
        ):
            start = time.perf_counter()
            with torch.no_grad():
                run()
            seconds.append(time.perf_counter() - start)
    count = sum(p.numel() for p in model().parameters())
    first, second = statistics.median(forward), statistics.median(nesting)
    print(
        f"{count / 1e6:.0f} M parameters: forward {first:.2f} s, nest {second:.2f} s, beyond it {second - first:.2f} s"
    )


if __name__ == "__main__":
    main()
