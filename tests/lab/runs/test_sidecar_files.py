"""What a run keeps beside its weights is enough to make the network's inputs, by whoever reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lab.made_runs import TINY, adult
from tokenizers import Tokenizer

from partialsgd.lab.recipes import RECIPES, build
from partialsgd.lab.recipes.tabular import adult as census
from partialsgd.lab.recipes.translation import tokens
from partialsgd.lab.runs import sidecar_files as beside


def task_of(recipe: str, **changes: Any) -> Any:
    return build(RECIPES[recipe](**{**TINY[recipe], **changes}))


@pytest.mark.parametrize(
    ("recipe", "name"), [("translation", "tokenizer.json"), ("images", "inputs.json"), ("tabular", "inputs.json")]
)
def test_each_recipe_writes_one_file_and_others_stay(tmp_path: Path, recipe: str, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    beside.write(recipe, task_of(recipe), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", name}
    json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert beside.files("another", None) == {}


def test_a_tokenizer_comes_back_from_its_file(tmp_path: Path) -> None:
    task = task_of("translation")
    beside.write("translation", task, tmp_path)
    lines = [text for pair in task.corpus.splits["test"] for text in pair]
    plain = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [plain.encode(line).ids for line in lines] == tokens.encode_all(task.tokenizer, lines)


def test_pixels_are_made_inputs_as_the_file_says() -> None:
    task = task_of("images")
    said = json.loads(beside.files("images", task)["inputs.json"])
    mean, deviation = (torch.tensor(said[name]).view(1, -1, 1, 1) for name in ("mean", "deviation"))
    pixels = task.data.test.images[:5]
    torch.testing.assert_close((pixels - mean) / deviation, task.standard(pixels), rtol=1e-4, atol=1e-5)
    assert said["classes"] == list(map(str, range(10)))


def test_rows_are_made_inputs_as_the_file_says(tmp_path: Path) -> None:
    """In the words of the README: numbers by mean and deviation, words and crosses by their lists, 0 if unknown."""
    test = adult(tmp_path / "census") / "adult.test"
    test.write_text(test.read_text().replace("7, 0, 40, Cuba", "7, 0, 40, Peru"))  # which train has not
    task = task_of("tabular", data=str(tmp_path / "census"))
    said = json.loads(beside.files("tabular", task)["inputs.json"])
    table = census.read(tmp_path / "census", 0.1, 0).test
    words, crossed = ({(k, json.dumps(v)): n for k, v, n in said[name]} for name in ("words", "crossed"))
    for k, row in enumerate(table.categories):
        numbers = dict(zip(said["numbers"], table.numbers[k].tolist(), strict=True))
        values: dict[str, Any] = dict(zip(said["categories"], row, strict=True))
        values |= {name: sum(edge < numbers[name] for edge in edges) for name, edges in said["edges"].items()}
        standard = [(x - m) / d for x, m, d in zip(numbers.values(), said["mean"], said["deviation"], strict=True)]
        assert task.test.numbers[k].tolist() == pytest.approx(standard, rel=1e-5, abs=1e-5)
        known = [words.get((place, json.dumps(word)), 0) for place, word in enumerate(row)]
        assert task.test.categories[k].tolist() == known
        found = [[values[name] for name in cross] for cross in said["crosses"]]
        keys = [json.dumps(each if len(each) > 1 else each[0]) for each in found]
        assert task.test.crosses[k].tolist() == [crossed.get((place, key), 0) for place, key in enumerate(keys)]
    assert (task.test.categories == 0).any() and len(crossed) == len(task.encoder.crossed) - 1
