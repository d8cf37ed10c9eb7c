"""A tiny BERT, as one network or nested, and the settings of a short training of it by the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

import partialsgd as ps

STEPS = 12


def network() -> nn.Module:
    set_seed(0)
    config = BertConfig(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)
    return BertForSequenceClassification(config)


def family() -> ps.Nested:
    return ps.nest(network(), ps.LowRank(1 / 4))


def data(examples: int = 96, *, seed: int = 1) -> list[dict[str, Any]]:
    """Which half of the vocabulary the first token is from; `weight` is a column that BERT does not take."""
    tokens = torch.randint(16, (examples, 8), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": int(row[0] < 8), "weight": 1.0} for row in tokens]


def arguments(output: Path, **others: Any) -> TrainingArguments:
    settings = {
        "max_steps": STEPS,
        "learning_rate": 3e-3,
        "logging_steps": 4,
        "save_steps": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "dataloader_pin_memory": False,
        "disable_tqdm": True,
        "use_cpu": True,
        "report_to": "none",
        **others,
    }
    return TrainingArguments(str(output), **settings)


def differing(a: nn.Module, b: nn.Module) -> list[str]:
    """The names of the tensors that are not the same to the bit."""
    other: dict[str, Tensor] = b.state_dict()
    return [name for name, tensor in a.state_dict().items() if not torch.equal(tensor, other[name])]
