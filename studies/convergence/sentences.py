"""Short sentences of Multi30k, and a small Transformer with its half-width core: the paper's Figure 4."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

import partialsgd as ps
from partialsgd.lab.training.errors import NotThere
from studies.convergence.tasks import Examples, Problem, Task

LONGEST, PAIRS, WORDS = 12, 6_400, 1_500
EOS, PAD, UNKNOWN, FIRST_WORD = range(4)
NARROWED = ("*.fc1.*", "*.fc2.*", "*.q_proj.*", "*.k_proj.*")
"""The layers that are narrower in the core; it has the others whole."""

Pair: TypeAlias = tuple[list[str], list[str]]


@lru_cache(maxsize=1)
def short_sentences(folder: Path) -> Examples:
    """The first pairs of Multi30k that are short on both sides; all but the most frequent words become one."""
    train, valid = _pairs(folder, "train")[:PAIRS], _pairs(folder, "valid")
    words = sorted({word for side in (0, 1) for word in _frequent(train, side)})
    number = {word: FIRST_WORD + k for k, word in enumerate(words)}
    x, y, test_x, test_y = (_numbers(part, side, number) for part in (train, valid) for side in (0, 1))
    return Examples(x, y, test_x, test_y, classes=FIRST_WORD + len(words))


def _pairs(folder: Path, part: str) -> list[Pair]:
    pairs = zip(*(_sentences(folder / f"{part}.{language}.gz") for language in ("de", "en")), strict=True)
    return [(german, english) for german, english in pairs if max(len(german), len(english)) <= LONGEST]


def _sentences(path: Path) -> list[list[str]]:
    if not path.exists():
        raise NotThere(f"{path} does not exist; --data is the folder with multi30k.de-en in it")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [re.findall(r"\w+|[^\w\s]", line.lower()) for line in lines]


def _frequent(pairs: Sequence[Pair], side: int) -> list[str]:
    counts = Counter(word for pair in pairs for word in pair[side])
    return sorted(counts, key=lambda word: (-counts[word], word))[:WORDS]


def _numbers(pairs: Sequence[Pair], side: int, number: Mapping[str, int]) -> Tensor:
    sentences = ([number.get(word, UNKNOWN) for word in pair[side]] for pair in pairs)
    return torch.tensor([[*sentence, EOS, *[PAD] * (LONGEST - len(sentence))] for sentence in sentences])


def translator(data: Examples, seed: int, rate: float) -> Problem:
    """A Transformer with its half-width core, and no dropout, with which the two gradients would not be comparable."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    size = {f"{side}_{part}": n for side in ("encoder", "decoder") for part, n in _TRANSFORMER.items()}
    special = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
    config = MarianConfig(
        vocab_size=data.classes,
        d_model=128,
        activation_function="relu",
        dropout=0.0,
        max_position_embeddings=LONGEST + 1,
        **size,
        **special,
    )
    model = ps.nest(MarianMTModel(config).train(), ps.Width(1 / 2, query_key=True))
    optimizer = torch.optim.Adam(model.parameters(), rate, betas=(0.9, 0.98), fused=True)
    return Problem(model, optimizer, partial(_translation_loss, model), partial(_losses, model))


_TRANSFORMER = {"layers": 2, "ffn_dim": 256, "attention_heads": 4}


def _translation_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    labels = y.masked_fill(y == PAD, -100)
    loss: Tensor = model(input_ids=x, attention_mask=(x != PAD).long(), labels=labels).loss
    return loss


@torch.no_grad()
def _losses(model: ps.Nested, data: Examples) -> dict[str, float]:
    model.eval()
    losses = {}
    for level in model.levels:
        with model.at(level):
            losses[level] = float(_translation_loss(model, data.test_x, data.test_y))
    model.train()
    return losses


SENTENCES = Task(
    "sentences",
    f"Multi30k, German to English ({PAIRS:,} pairs of at most {LONGEST} words), Transformer of 2 + 2 layers, d 128, "
    "feed-forward 256, 4 heads, no dropout, and its core with half of the feed-forward, query and key units, Adam",
    "multi30k.de-en",
    short_sentences,
    translator,
    steps=800,
    batch=32,
    rate=1e-3,
    warm_up=100,
    every=20,
    large=512,
    groups={"narrowed": NARROWED},
    seeds=range(3),
)
