"""What using a network needs beside its weights: a tokenizer, or how its inputs are made. Each run keeps it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from partialsgd.export.files import staged
from partialsgd.lab.training.task import Task

TOKENIZER, INPUTS = "tokenizer.json", "inputs.json"


def write(recipe: str, task: Task, directory: Path) -> None:
    """`tokenizer.json` for a translation, `inputs.json` for images and rows."""
    with staged(directory) as stage:
        for name, text in files(recipe, task).items():
            (stage / name).write_text(text, encoding="utf-8")


def files(recipe: str, task: Any) -> dict[str, str]:
    if recipe == "translation":
        return {TOKENIZER: task.tokenizer.to_str(pretty=True)}
    if recipe == "images":
        return {INPUTS: _json(_images(task))}
    return {INPUTS: _json(_rows(task))} if recipe == "tabular" else {}


def _images(task: Any) -> dict[str, Any]:
    mean, factor = task.standard.mean.flatten(), task.standard.factor.flatten()
    return {"mean": mean.tolist(), "deviation": (1 / factor).tolist(), "classes": list(task.data.names)}


def _rows(task: Any) -> dict[str, Any]:
    encoder = task.encoder
    return {
        "numbers": list(encoder.schema.numbers),
        "mean": encoder.mean.tolist(),
        "deviation": encoder.deviation.tolist(),
        "categories": list(encoder.schema.categories),
        "words": encoder.words.as_list(),
        "crosses": [*([name] for name in encoder.schema.categories), *map(list, encoder.schema.crosses)],
        "edges": dict(zip(encoder.schema.numbers, encoder.edges.tolist(), strict=True)),
        "crossed": encoder.crossed.as_list(),
    }


def _json(said: dict[str, Any]) -> str:
    return json.dumps(said, indent=2, ensure_ascii=False) + "\n"
