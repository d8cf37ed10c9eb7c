"""The networks that are nested: the paper's IWSLT Transformer, and ResNet-18 at the shape of CIFAR."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import partialsgd as ps
from benchmarks.baselines import RATE, Training, fused_adam
from benchmarks.harness import Run
from partialsgd.lab.recipes.images.resnet import resnet18

LAYERS = ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj")
"""The layers that the paper nests."""
LENGTH = 32


def transformer() -> nn.Module:
    """6 + 6 layers, d 512, feed-forward 1024, 4 heads, post-norm; a joint vocabulary of 10,000."""
    return _marian(layers=6, width=512, dropout=0.3)


def small_transformer(*, dropout: float = 0.0) -> nn.Module:
    """2 + 2 layers, d 256, feed-forward 1024."""
    return _marian(layers=2, width=256, dropout=dropout)


def gpt() -> nn.Module:
    """GPT-2's architecture: 4 layers, d 768, feed-forward 3072, 12 heads, a vocabulary of 10,000; no dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": 4, "n_embd": 768, "n_head": 12, "vocab_size": 10_000, "n_positions": 8 * LENGTH}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)).train()


def text(tokens: int) -> dict[str, Tensor]:
    """So many tokens in rows of 256, which a language model predicts."""
    ids = torch.randint(10_000, (tokens // (8 * LENGTH), 8 * LENGTH), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def _marian(*, layers: int, width: int, dropout: float) -> nn.Module:
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=10_000,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        activation_function="relu",
        dropout=dropout,
        pad_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        max_position_embeddings=LENGTH,
    )
    return MarianMTModel(config).train()


def sentences(tokens: int) -> dict[str, Tensor]:
    """So many target tokens, and as many source tokens."""
    draw = torch.Generator().manual_seed(0)
    shape = (round(tokens / LENGTH), LENGTH)
    tokens = {name: torch.randint(2, 10_000, shape, generator=draw, device="cpu") for name in ("input_ids", "labels")}
    return {name: ids.to(torch.get_default_device()) for name, ids in tokens.items()}


def pictures(count: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(count, 3, 32, 32, generator=draw, device="cpu")
    labels = torch.randint(10, (count,), generator=draw, device="cpu")
    return images.to(torch.get_default_device()), labels.to(torch.get_default_device())


def translation(model: nn.Module, batch: dict[str, Tensor]) -> Training:
    """Forward, backward and fused Adam of whatever translates."""

    def forward() -> Tensor:
        loss: Tensor = model(**batch).loss
        return loss

    return Training(model, fused_adam(list(model.parameters())), forward, len(batch["labels"]))


def classification(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Training:
    """The same for images, by SGD with momentum as the paper trains it."""
    images, labels = batch

    def forward() -> Tensor:
        return F.cross_entropy(model(images), labels)

    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9, weight_decay=5e-4, fused=True)
    return Training(model, optimizer, forward, len(labels))


def small_resnet() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(width=32).train()


def large_resnet() -> nn.Module:
    torch.manual_seed(0)
    return resnet18().train()


def at(training: Training, level: str) -> Run:
    """The raw loop at a level of the family."""
    nested = training.model
    assert isinstance(nested, ps.Nested)

    def run() -> None:
        with nested.at(level):
            training.closure()
        training.update()

    return run


def steps(training: Training, method: ps.Method, count: int) -> Run:
    """So many steps of a method, through PartialSGD, with an optimizer of its own: raw loops may use the training's."""
    nested, optimizer = training.model, training.optimizer
    assert isinstance(nested, ps.Nested)
    sgd = ps.PartialSGD(nested, type(optimizer)(nested.parameters(), **optimizer.defaults), method)

    def run() -> None:
        for _ in range(count):
            sgd.step(training.closure)

    return run


def alternating_by_hand(training: Training) -> Run:
    """One full and one core step, written as a loop."""
    full, core = at(training, "full"), at(training, "core")

    def run() -> None:
        full()
        core()

    return run


def extracted(nested: ps.Nested, example: Any) -> nn.Module:
    """The core, built plain at its size."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # statistics of BatchNorm do not matter to the clock
        return nested.extract("core", example=example).train()
