"""One level of a run as files that work without this package: weights, what goes with them, and a README."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

from partialsgd import export
from partialsgd.export.formats import Format
from partialsgd.lab.runs import cards
from partialsgd.lab.runs import sidecar_files as beside
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import Checkpoint, open_family, require_level
from partialsgd.lab.training.errors import WrongCall

# What a translation is fed with: sentences of any length.
_LENGTHS = {"input_ids": {1: "source"}, "attention_mask": {1: "source"}, "decoder_input_ids": {1: "target"}}


def export_level(
    run: Run,
    level: str,
    *,
    format: Format = "safetensors",
    to: Path | None = None,
    checkpoint: Checkpoint = "best",
) -> Path:
    """Write a level of a run, and return where; by default below the run's own directory."""
    recipe = run.settings.recipe
    if to is not None and any((to / name).exists() for name in ("metrics.jsonl", "checkpoints", "best")):
        raise WrongCall(f"--to: {to} is a run, and its settings would be lost; give another directory")
    if format == "transformers" and recipe != "translation":
        raise WrongCall(f"--format transformers is for translations, and {run.path} is of {recipe}; take another")
    task, network = open_family(run, checkpoint)
    require_level(network, level)
    network.cpu()
    example = task.example()
    place = to or run.path / "exports" / f"{level.replace('/', '_')}-{format}"
    dynamic = _LENGTHS if recipe == "translation" else None
    with _no_bars() if format == "transformers" else nullcontext():
        export.export(network, level, place, format=format, example=example, dynamic=dynamic)
    beside.write(recipe, task, place)
    if format == "transformers":
        _tokenizer(task).save_pretrained(place)
    if recipe == "images" and format == "safetensors":
        (place / "network.py").write_text(_source("partialsgd.lab.recipes.images.resnet"), encoding="utf-8")
    (place / "README.md").write_text(cards.card(run, task, level, format, checkpoint), encoding="utf-8")
    return place


@contextmanager
def _no_bars() -> Iterator[None]:
    """Writing and reading the file once are done before a bar is worth it."""
    logging = import_module("transformers.utils.logging")
    was_on = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_on:
            logging.enable_progress_bar()


def _source(module: str) -> str:
    """The file of a module that imports nothing but torch."""
    return inspect.getsource(import_module(module))


def _tokenizer(task: Any) -> Any:
    """As `AutoTokenizer` reads it."""
    transformers: Any = import_module("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=task.tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_input_names=["input_ids", "attention_mask"],
    )
