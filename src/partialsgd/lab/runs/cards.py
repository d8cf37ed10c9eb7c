"""README.md beside an exported level: what it is, how good, and how to load it without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.snippets import code
from partialsgd.lab.training.task import Task
from partialsgd.nested.switch import FULL

_NEEDS = {
    ("translation", "safetensors"): "torch transformers tokenizers safetensors",
    ("translation", "onnx"): "onnxruntime tokenizers numpy",
    ("translation", "transformers"): "torch transformers",
    ("images", "safetensors"): "torch safetensors",
    ("images", "onnx"): "onnxruntime numpy",
    ("tabular", "safetensors"): "torch safetensors",
    ("tabular", "onnx"): "onnxruntime numpy",
}

_INPUTS = {
    "translation": "",
    "images": """
`scores` takes pixels as the data have them, (images, channels, height, width), and gives a number for each class.
""",
    "tabular": """
`scores` gives the probability of the class 1. Its inputs are made as `inputs.json` says: `numbers` are
(value - mean) / deviation; `categories` are the numbers that `words` has for [place of the column, value], or 0;
`crosses` likewise by `crossed`, for each entry of `crosses`, in which a number counts as how many of its `edges` are
below it.
""",
}


def card(run: Run, task: Task, level: str, format: str, checkpoint: str) -> str:
    """The text of the README."""
    settings, levels = run.settings, task.network.levels
    is_whole = level == levels[-1] and getattr(settings, "alone", None) in (None, FULL)
    smaller = "" if is_whole else str(getattr(settings, "nest", ""))
    return f"""# {settings.recipe}: {level}

{_data(settings)} {_size(task, level)} Method: `{settings.method}`, of partialsgd, which is not needed to use it.

{_scores(run, level, checkpoint)}## Use

In this directory, after `pip install {_NEEDS[settings.recipe, format]}`:

```python
{code(settings.recipe, format, smaller, values(settings, task, level, format))}
```
{_INPUTS[settings.recipe]}"""


def values(settings: Any, task: Any, level: str, format: str) -> dict[str, Any]:
    """What the code for a recipe is told of this network."""
    if settings.recipe == "translation":
        return {"text": repr(task.corpus.splits["test"][0][0]), "longest": settings.longest}
    if settings.recipe == "images":
        channels, *sides = task.example().shape[1:]
        with task.network.at(level):
            blocks = tuple(len(stage) for stage in task.network.model.stages)
        shape = ", ".join(map(str, (channels, *sides)))
        sizes = {"width": settings.width, "classes": len(task.data.names), "channels": channels}
        norm = ", norm=False" if settings.norms == "none" else ""
        return {"blocks": blocks, "shape": shape, "norm": norm, **sizes}
    return {"layers": 2 * settings.layers + 1, "inputs": _rows(task, level, format)}


def _rows(task: Task, level: str, format: str) -> str:
    """A call with zeros in the place of each input that the level takes."""
    names = ("numbers", "crosses", "categories")
    inputs = dict(zip(names, task.example(), strict=False))
    if level != task.network.levels[-1]:
        inputs.pop("crosses")
    if format == "onnx":
        return ", ".join(f"np.zeros((1, {x.shape[1]}), np.{_dtype(x)})" for x in inputs.values())
    return ", ".join(f"{name}=torch.zeros(1, {x.shape[1]}, dtype=torch.{_dtype(x)})" for name, x in inputs.items())


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _data(settings: Any) -> str:
    folder = None if settings.data is None else Path(settings.data).name
    if settings.recipe == "translation":
        made = "phrases made from the Unicode locale data" if folder is None else f"the sentences in `{folder}`"
        return f"Translates {settings.source} to {settings.target}; trained on {made}."
    default = {"images": "scikit-learn's digits", "tabular": "scikit-learn's breast-cancer data"}[settings.recipe]
    kind = {"images": "Tells pictures apart", "tabular": "Tells rows of a table apart"}[settings.recipe]
    return f"{kind}; trained on {default if folder is None else f'the data in `{folder}`'}."


def _size(task: Task, level: str) -> str:
    levels = task.network.levels
    size, whole = task.network.size(level), task.network.size(levels[-1])
    if len(levels) == 1:
        return f"{size:,} parameters."
    share = "the whole network" if level == levels[-1] else f"{size / whole:.1%} of the whole network"
    return f"{size:,} parameters: {share}; trained together with the levels {', '.join(levels)}."


def _scores(run: Run, level: str, checkpoint: str) -> str:
    """On the test data, at the end of the training, if it is this checkpoint that was scored then."""
    summary = run.summary
    if summary is None or summary["checkpoint"] != checkpoint:
        return ""
    found = summary["levels"][level]["test"]
    rows = "".join(f"| {name} | {value:.4g} |\n" for name, value in found.items())
    signature = summary["extras"].get("signature")
    return f"| on the test data | |\n| --- | --- |\n{rows}\n" + (f"BLEU: {signature}.\n\n" if signature else "")
