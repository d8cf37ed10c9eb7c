"""Optimizer state of one block at a time: what is left of Adam's two moments when inactive blocks give theirs back."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import torch
from torch import Tensor
from torch.optim import Optimizer

import partialsgd as ps
from benchmarks import baselines, ours
from benchmarks.baselines import Training
from benchmarks.figures import Figure
from benchmarks.harness import Estimate, Track

SUMMARY = "block-coordinate on a small GPT-2: bytes of Adam's state ÷ Adam on everything, beside the arithmetic limit"
LAYERS = 12
CLOSE = 1.05
"""How near to the arithmetic limit it must be."""


def measure(track: Track) -> list[Figure]:
    """Counted, not timed: the track is not needed."""
    everything = state_over(gpt2(), None, steps=1)[0]
    freed, held = (cycle(free=free) for free in (True, False))
    blocks = block_sizes()
    largest, layer = max(blocks) / sum(blocks), blocks[1] / sum(blocks)
    said = f"{LAYERS} layers, embeddings and last norm, one block at a time"
    return [
        _figure(f"state at the peak of a cycle, freed ÷ Adam on everything ({said})", max(freed) / everything, largest),
        _arithmetic("the largest block, the embeddings, ÷ all parameters", largest),
        _figure("state while a layer is active, freed ÷ Adam on everything", max(freed[1:]) / everything, layer),
        _arithmetic("one layer ÷ all parameters", layer),
        _arithmetic("state in the mean over a cycle, freed ÷ Adam on everything", mean(freed) / everything),
        _arithmetic("state at the end of a cycle, held ÷ Adam on everything", held[-1] / everything),
    ]


def cycle(*, free: bool) -> list[int]:
    """The bytes of state in each block's turn: the embeddings', each layer's, the last norm's."""
    training = gpt2()
    method = ps.methods.block_coordinate(every=2, free=free, blocks="transformer.h")
    each = state_over(training, method, steps=2 * len(block_sizes()))
    return [max(turn) for turn in zip(each[::2], each[1::2], strict=True)]


def state_over(training: Training, method: ps.Method | None, *, steps: int) -> list[int]:
    """The bytes of state at the end of the optimizer's part of each step, when it holds the most."""
    seen: list[int] = []

    def look(optimizer: Optimizer, *_: object) -> None:
        seen.append(bytes_of(optimizer))

    training.optimizer.register_step_post_hook(look)
    sgd = ours.with_method(training, ps.methods.plain() if method is None else method)
    for _ in range(steps):
        sgd.step(training.closure)
    return seen


def bytes_of(optimizer: Optimizer) -> int:
    tensors = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


def block_sizes() -> Sequence[int]:
    """Parameters of each block, in the order of the turns: counted from the modules, not from the method."""
    inner = gpt2().model.get_submodule("transformer")
    layers = list(inner.get_submodule("h").children())
    embeddings = [inner.get_submodule(name) for name in ("wte", "wpe")]
    parts = [embeddings, *([layer] for layer in layers), [inner.get_submodule("ln_f")]]
    return [sum(p.numel() for module in part for p in module.parameters()) for part in parts]


def gpt2() -> Training:
    """GPT-2's 12 layers at a sixth of its width; its vocabulary is made smaller in the same proportion as a layer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=8192, n_positions=128, n_embd=128, n_layer=LAYERS, n_head=4, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).train()
    tokens = torch.randint(8192, (2, 32))

    def forward() -> Tensor:
        loss: Tensor = model(input_ids=tokens, labels=tokens).loss
        return loss

    return Training(model, baselines.fused_adam(list(model.parameters())), forward, len(tokens))


def _figure(what: str, share: float, arithmetic: float) -> Figure:
    return Figure(what, Estimate(share, share, share), CLOSE * arithmetic)


def _arithmetic(what: str, share: float) -> Figure:
    return Figure(what, Estimate(share, share, share))
