"""Runs that were never trained: settings, random weights and what a run keeps beside them, in a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import partialsgd as ps
from partialsgd.lab.recipes import RECIPES, build
from partialsgd.lab.runs.run import Run

TINY: dict[str, dict[str, Any]] = {
    "translation": {
        **{"size": 60, "valid_size": 8, "test_size": 8, "vocabulary": 300, "longest": 40, "max_tokens": 400},
        **{"layers": 1, "d_model": 16, "ffn": 24, "heads": 2, "ratio": ("1/4",), "beam": 2},
    },
    "images": {"width": 4, "ratio": ("1/2",)},
}


def made_run(path: Path, recipe: str, **changes: Any) -> Run:
    """A run whose levels differ: every parameter is drawn anew, and BatchNorm has seen something."""
    settings = RECIPES[recipe](**{**TINY[recipe], "out": str(path), **changes})
    task = build(settings)
    run = Run.new(settings, texts=task.sidecar_files())
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in task.network.parameters():
            if parameter.requires_grad:  # the positions of words are not drawn
                parameter.add_(torch.randn_like(parameter) * 0.3)
    task.network.train()
    for level in task.network.levels:
        with task.network.at(level), torch.no_grad():
            example = task.example()
            task.network(**example) if isinstance(example, dict) else task.network(*as_tuple(example))
    ps.export.save(task.network.eval(), run.best)
    ps.export.save(task.network, run.last)
    run.write_texts(task.sidecar_files())
    return run


def as_tuple(example: Any) -> tuple[Any, ...]:
    return example if isinstance(example, tuple) else (example,)
