"""Translations small enough to be tried: settings, a network, a corpus of copies and a tokenizer of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from partialsgd.lab.recipes.translation import model, tokens
from partialsgd.lab.recipes.translation.corpus import Corpus
from partialsgd.lab.recipes.translation.settings import PRESETS, Translation
from partialsgd.nested import Nested

VOCABULARY = 60


def settings(**changes: Any) -> Translation:
    tiny: dict[str, Any] = {
        "d_model": 32, "ffn": 48, "heads": 4, "layers": 2, "longest": 32, "max_tokens": 200, "vocabulary": 300,
        "size": 40, "valid_size": 6, "test_size": 6, "ratio": ("1/4",), "dropout": 0.1,
    }  # fmt: skip
    return replace(PRESETS["laptop"], **{**tiny, **changes})


def family(**changes: Any) -> Nested:
    torch.manual_seed(0)
    told = settings(**changes)
    return model.nest(model.build(told, VOCABULARY), told)


def inputs(sentences: int = 2, source: int = 5, target: int = 4, *, seed: int = 0) -> dict[str, Tensor]:
    """Some tokens; the first source is padded by one."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY, (sentences, source), generator=random)
    mask = torch.ones_like(ids)
    if source > 1:
        ids[0, -1], mask[0, -1] = 0, 0
    decoder = torch.randint(3, VOCABULARY, (sentences, target), generator=random)
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": decoder}


def corpus() -> Corpus:
    """Four numbers in words, to be turned into others: a network learns it in no time."""
    words = {"one": "eins", "two": "zwei", "six": "sechs"}
    lines = [" ".join(line) for line in product(words, repeat=4)]
    pairs = [(line, " ".join(words[word] for word in line.split())) for line in lines]
    held = {"valid": pairs[11:73:30], "test": pairs[5:81:25]}
    rest = [pair for pair in pairs if not any(pair in split for split in held.values())]
    return Corpus("en", "de", {"train": rest, **held}, ("a note",))


@cache
def tokenizer() -> Tokenizer:
    return tokens.train(corpus(), 300)
