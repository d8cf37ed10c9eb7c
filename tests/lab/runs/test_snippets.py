"""A level that was exported is loaded by the code of its README, without this package, and computes the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.lab.made_runs import adult, as_tuple, made_run
from torch import Tensor

from partialsgd.lab.runs.exporting import export_level
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import open_family
from partialsgd.nested.example_inputs import as_call

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "low-rank": ("translation", {}),
    "pre-norm": ("translation", {"norm": "pre"}),
    "untied": ("translation", {"norm": "pre", "tie": False, "nest": "depth", "ratio": ("1/2",), "layers": 2}),
    "narrow": ("translation", {"nest": "width"}),
    "short": ("translation", {"nest": "depth", "ratio": ("1/2",), "layers": 2}),
    "core alone": ("translation", {"alone": "core"}),
    "images": ("images", {}),
    "images of low rank": ("images", {"nest": "low-rank"}),
    "short images": ("images", {"nest": "depth"}),
    "images without norms": ("images", {"norms": "none"}),
    "numbers": ("tabular", {}),
    "words": ("tabular", {"data": "adult"}),
}


CASES = [
    ("low-rank", "core", "safetensors"),
    ("low-rank", "full", "safetensors"),
    ("low-rank", "core", "onnx"),
    *((run, "core", "safetensors") for run in ("pre-norm", "untied", "narrow", "short")),
    ("pre-norm", "full", "safetensors"),
    ("core alone", "full", "safetensors"),
    ("low-rank", "full", "transformers"),
    ("short", "core", "transformers"),
    *((run, "core", "safetensors") for run in ("images", "images of low rank", "short images", "images without norms")),
    ("images", "full", "safetensors"),
    ("images", "core", "onnx"),
    *((run, level, "safetensors") for run in ("numbers", "words") for level in ("core", "full")),
    ("words", "core", "onnx"),
]


TEXTS = ["three days", "1", "in 5 minutes, in 7 hours or 8 years ago", "Zürich"]


# A process that runs the code of each README in its directory, and then what it was asked for.
READER = """
import contextlib, io, json, os, re, sys
sys.modules["partialsgd"] = None  # it cannot be imported
sys.path.insert(0, "")
found = {}
for name, place, ask in json.loads(sys.stdin.read()):
    os.chdir(place)
    sys.modules.pop("network", None)
    there = {}
    code = re.search("```python\\n(.*?)```", open("README.md").read(), re.S)[1]
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, there)
        exec(ask, there)
    found[name] = there["answer"]
print(json.dumps(found))
"""


TRANSLATED = f"""
def greedy(text):
    ids = tokenizer(text).input_ids if callable(tokenizer) else tokenizer.encode(text).ids
    return network.generate(__import__("torch").tensor([ids]), **options)[0].tolist()

options = {{"num_beams": 1, "do_sample": False, "max_length": 40}}
answer = [[translate(text, **options) for text in {TEXTS}], [greedy(text) for text in {TEXTS}]]
"""


# Greedy, for several sentences at once: the longer ones go on when the others have ended.
TOGETHER = f"""
ids = [tokenizer.encode(text).ids for text in {TEXTS}]
source = np.zeros((len(ids), max(map(len, ids))), np.int64)
for row, one in zip(source, ids):
    row[: len(one)] = one
target = np.full((len(ids), 1), END)
while target.shape[1] < 40:
    fed = {{"input_ids": source, "attention_mask": (source > 0).astype(np.int64), "decoder_input_ids": target}}
    logits = session.run(["logits"], fed)[0]
    target = np.concatenate([target, logits[:, -1:].argmax(-1)], 1)
answer = [[translate(text) for text in {TEXTS}], target.tolist()]
"""


def asked(recipe: str, format: str, inputs: list[Any]) -> str:
    if recipe == "translation":
        return TOGETHER if format == "onnx" else TRANSLATED
    make = "torch.tensor" if format == "safetensors" else "np.array"
    kinds = {int: "int64", float: "float32"}

    def value(rows: Any) -> str:
        first = rows
        while isinstance(first, list):
            first = first[0]
        return f"{make}({rows}, dtype={make.partition('.')[0]}.{kinds[type(first)]})"

    named = {1: "{}", 2: "{}, {}", 3: "{}, {}, {}"}[len(inputs)].format(*map(value, inputs))
    return f"answer = scores({named}).tolist()"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    place = tmp_path_factory.mktemp("runs")
    data = str(adult(place / "adult"))
    return {
        name: made_run(place / name, recipe, **{**changes, **({"data": data} if "data" in changes else {})})
        for name, (recipe, changes) in RUNS.items()
    }


def raw_inputs(run: Run, task: Any, level: str) -> list[Any]:
    """What the README's `scores` is given: pixels, or encoded rows."""
    if run.settings.recipe == "images":
        return [task.data.test.images[:3].float().tolist()]
    args, _ = task.network.inputs_of(level, as_call(as_tuple(task.example())))
    return [column.tolist() for column in args]


@pytest.fixture(scope="module")
def answers(runs: dict[str, Run]) -> Iterator[dict[str, Any]]:
    questions = []
    for name, level, format in CASES:
        run = runs[name]
        place = export_level(run, level, format=format)
        task: Any = open_family(run)[0]
        inputs = [] if run.settings.recipe == "translation" else raw_inputs(run, task, level)
        ask = asked(run.settings.recipe, format, inputs)
        if name == "words" and format == "safetensors" and level == "core":
            ask = ask.replace(", torch.tensor", ", categories=torch.tensor")
        questions.append((f"{name} {level} {format}", str(place), ask))
    found = subprocess.run(
        [sys.executable, "-c", READER], input=json.dumps(questions), capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    yield json.loads(found.stdout)


@pytest.mark.parametrize(("name", "level", "format"), CASES, ids=[" ".join(case) for case in CASES])
def test_the_readme_loads_what_the_family_computes(
    runs: dict[str, Run], answers: dict[str, Any], name: str, level: str, format: str
) -> None:
    run, answer = runs[name], answers[f"{name} {level} {format}"]
    task: Any
    task, network = open_family(run)
    with network.at(level), torch.no_grad():
        if run.settings.recipe == "translation":
            assert_translated(network.model, task.tokenizer, answer)
        elif run.settings.recipe == "images":
            expected = network(task.standard(task.data.test.images[:3]))
            torch.testing.assert_close(torch.tensor(answer), expected, rtol=1e-4, atol=1e-5)
        else:
            expected = network(*task.example()).sigmoid()
            torch.testing.assert_close(torch.tensor(answer), expected, rtol=1e-4, atol=1e-6)


def assert_translated(model: Any, tokenizer: Any, answer: Any) -> None:
    sources = [tokenizer.encode(text).ids for text in TEXTS]
    greedy = [greedily(model, source) for source in sources]
    texts = [tokenizer.decode(ids.tolist(), skip_special_tokens=True) for ids in greedy]
    assert len({tuple(ids.tolist()) for ids in greedy}) >= 3  # the sentences are told apart
    assert answer[0] == texts
    for row, ids in zip(answer[1], greedy, strict=True):
        assert row[: len(ids)] == ids.tolist()  # in a batch with longer ones it goes on


def greedily(model: Any, source: list[int]) -> Tensor:
    """By definition: the most probable token after those before it, until the end."""
    target = torch.tensor([[1]])
    while target.shape[1] < 40:
        ids = torch.tensor([source])
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), decoder_input_ids=target).logits
        target = torch.cat([target, logits[:, -1:].argmax(-1)], 1)
        if target[0, -1] == 1:
            break
    return target[0]
