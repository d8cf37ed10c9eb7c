"""A level that was exported: its files, its README, and that the code there computes the same without partialsgd."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from partialsgd._util import files
from partialsgd.lab.cli import main
from partialsgd.lab.recipes import build
from partialsgd.lab.runs import export_run
from partialsgd.lab.runs.export_run import export_level
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import open_task
from partialsgd.lab.training.errors import AlreadyThere, WrongCall
from tests.lab.made_runs import made_run

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "low-rank": ("translation", {}),
    "pre-norm": ("translation", {"norm": "pre"}),
    "untied": ("translation", {"norm": "pre", "tie": False, "nest": "depth", "ratio": ("1/2",), "layers": 2}),
    "narrow": ("translation", {"nest": "width"}),
    "narrow but for attention": ("translation", {"nest": "width", "query_key": False}),
    "short": ("translation", {"nest": "depth", "ratio": ("1/2",), "layers": 2}),
    "core alone": ("translation", {"alone": "core"}),
    "images": ("images", {}),
    "images of low rank": ("images", {"nest": "low-rank"}),
    "short images": ("images", {"nest": "depth"}),
    "images without norms": ("images", {"norms": "none"}),
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
    ("untied", "core", "transformers"),
    ("narrow but for attention", "core", "transformers"),
    ("narrow but for attention", "core", "safetensors"),
    *((run, "core", "safetensors") for run in ("images", "images of low rank", "short images", "images without norms")),
    ("images", "full", "safetensors"),
    ("images", "core", "onnx"),
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


def question(recipe: str, format: str, pixels: list[Any]) -> str:
    if recipe == "translation":
        return TOGETHER if format == "onnx" else TRANSLATED
    library = "torch" if format == "safetensors" else "np"
    make = "tensor" if library == "torch" else "array"
    return f"answer = scores({library}.{make}({pixels}, dtype={library}.float32)).tolist()"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: made_run(folder / name, recipe, **changes) for name, (recipe, changes) in RUNS.items()}


@pytest.fixture(scope="module")
def answers(runs: dict[str, Run]) -> dict[str, Any]:
    questions = []
    for name, level, format in CASES:
        run = runs[name]
        directory = export_level(run, level, format=format)
        task: Any = open_task(run)
        is_images = run.settings.recipe == "images"
        pixels = task.data.test.images[:3].float().tolist() if is_images else []
        questions.append((f"{name} {level} {format}", str(directory), question(run.settings.recipe, format, pixels)))
    done = subprocess.run(
        [sys.executable, "-c", READER], input=json.dumps(questions), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)
    return read


@pytest.mark.parametrize(("name", "level", "format"), CASES, ids=[" ".join(case) for case in CASES])
def test_the_code_of_the_readme_computes_what_the_level_computes(
    runs: dict[str, Run], answers: dict[str, Any], name: str, level: str, format: str
) -> None:
    run, answer = runs[name], answers[f"{name} {level} {format}"]
    task: Any = open_task(run)
    with task.network.at(level), torch.no_grad():
        if run.settings.recipe == "translation":
            assert_translated(task.network.model, task.tokenizer, answer)
        else:
            expected = task.network(task.standardise(task.data.test.images[:3]))
            torch.testing.assert_close(torch.tensor(answer), expected, rtol=1e-4, atol=1e-5)


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


def readme(run: Run, level: str, to: Path | None = None, **options: Any) -> str:
    return (export_level(run, level, to=to, **options) / "README.md").read_text()


def test_the_readme_has_the_scores_of_the_exported_checkpoint(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "images")
    assert "| accuracy |" not in readme(run, "core")
    levels = {"core": {"test": {"accuracy": 0.98761, "loss": 0.5}}, "full": {"test": {"accuracy": 0.1}}}
    extras = {"signature": "nrefs:1"}
    summary = {"checkpoint": "best", "score": "accuracy", "levels": levels, "extras": extras}
    run.write_json("summary.json", summary)
    assert "| accuracy |" not in readme(run, "core", checkpoint="last")
    text = readme(run, "core")
    assert "| accuracy | 0.9876 |\n| loss | 0.5 |" in text and "0.1 |" not in text and "accuracy: nrefs:1." in text


def test_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = made_run(tmp_path / "run", "images"), made_run(tmp_path / "other", "images", seed=1)
    (run.path / "metrics.jsonl").touch()  # every training writes it
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for directory in (run.path, run.path / ".." / "run", other.path):
        assert main(["export", str(run.path), "--to", str(directory)]) == 2
        assert f"--to: {directory} is a run, whose config.json would be overwritten" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_readme_says_how_a_level_was_trained_and_names_no_path_of_this_machine(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("".join(f"{language} {split} {k}\n" for k in range(30)))
    joint = made_run(tmp_path / "joint", "translation", method="slimmable", data=str(folder))
    network = build(joint.settings).network
    core, full = network.size("core"), network.size("full")
    text = readme(joint, "core")
    assert text.startswith("# translation: core\n\nTranslates en to de; trained on the sentences in `corpus`.")
    assert f"{core:,} parameters, {core / full:.1%} of the full network, and was trained together" in text
    assert "the method `slimmable`" in text and f"{full:,} parameters, the full network," in readme(joint, "full")
    assert str(tmp_path) not in text
    text = readme(made_run(tmp_path / "alone", "translation", nest="none", method="plain"), "full")
    assert "parameters. It was trained with the method `plain`" in text and "trained together" not in text
    assert "trained on phrases generated from the Unicode" in text


@pytest.mark.parametrize(
    ("recipe", "names"), [("translation", {"tokenizer.json"}), ("images", {"inputs.json", "network.py"})]
)
def test_the_files_and_packages_that_using_it_needs_are_beside_it_and_in_the_readme(
    tmp_path: Path, recipe: str, names: set[str]
) -> None:
    run = made_run(tmp_path / recipe, recipe)
    for format in build(run.settings).formats:
        text = readme(run, "full", format=format)
        (code,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
        nodes = list(ast.walk(ast.parse(code)))
        modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        modules |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
        imported = {name.partition(".")[0] for name in modules} - {"json", "network"}
        (packages,) = re.findall("`pip install (.*)`", text)
        torch = {"torch"} if format == "transformers" else set()  # transformers needs it and does not install it
        assert set(packages.split()) == imported | torch, (recipe, format)
    files = {path.name for path in (run.path / "exports" / "full-safetensors").iterdir()}
    assert files == {"README.md", "export.json", "config.json", "model.safetensors", *names}


def test_a_level_or_format_that_there_is_not_is_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "images", ratio=("1/4", "1/2"))
    assert export_level(run, "1/4") == run.path / "exports" / "1_4-safetensors"
    with pytest.raises(WrongCall, match=r"--level: this run has no level 'core'; its levels are 1/4, 1/2, full"):
        export_level(run, "core")
    with pytest.raises(WrongCall, match=r"--format transformers is not for .* images, .*; use safetensors or onnx"):
        export_level(run, "full", format="transformers")
    low_rank, to = made_run(tmp_path / "translation", "translation"), tmp_path / "no"
    with pytest.raises(ValueError, match="'core' cannot be loaded by from_pretrained: no Hugging Face class has low r"):
        export_level(low_rank, "core", format="transformers", to=to)
    assert not to.exists() and export_level(low_rank, "full", to=tmp_path / "other") == tmp_path / "other"


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    folder = tmp_path_factory.mktemp("runs")
    return [made_run(folder / name, "images", seed=seed) for seed, name in enumerate(("run", "other"))]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_an_export_is_replaced_by_the_same_level_of_the_same_run_alone(two_runs: list[Run], tmp_path: Path) -> None:
    run, other = two_runs
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / files.STAGE).mkdir()  # a kill left it
    export_level(run, "core", to=tmp_path / "to")
    first = contents(tmp_path / "to")
    for wrong_run, level in ((run, "full"), (other, "core")):
        with pytest.raises(
            AlreadyThere, match=r"holds the level 'core' of (this|another) run; give an empty directory"
        ):
            export_level(wrong_run, level, to=tmp_path / "to")
        assert contents(tmp_path / "to") == first
    export_level(run, "core", to=tmp_path / "to")
    assert contents(tmp_path / "to") == first
    (tmp_path / "to" / "notes.txt").write_text("mine")
    export_level(other, "full", to=tmp_path / "to", format="onnx", overwrite=True)
    after = contents(tmp_path / "to")
    assert "model.safetensors" not in after and after["notes.txt"] == b"mine", "its own files go, and no others"
    assert after["README.md"].startswith(b"# images: full") and json.loads(after["export.json"])["level"] == "full"


def test_files_of_the_user_are_overwritten_only_on_demand(
    two_runs: list[Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text("my project")
    call = ["export", str(two_runs[0].path), "--to", str(tmp_path)]
    assert main(call) == 2
    assert (
        "is not empty, and has no export.json of ours (README.md); give an empty directory" in capsys.readouterr().err
    )
    assert contents(tmp_path) == {"README.md": b"my project"}
    assert main([*call, "--overwrite"]) == 0
    assert (tmp_path / "README.md").read_text().startswith("# images: core")


@pytest.mark.parametrize("moment", ["readme", "move"])
def test_a_failure_leaves_no_readme_beside_weights_of_another_level_and_the_same_call_goes_on(
    moment: str, two_runs: list[Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_level(two_runs[0], "core", to=tmp_path / "to")
    before = contents(tmp_path / "to")
    with monkeypatch.context() as patch:
        if moment == "readme":  # the last file that is made
            patch.setattr(export_run, "_readme", lambda *_: 1 / 0)
        else:
            weights = [tmp_path / name / "model.safetensors" for name in ("to", "new")]
            patch.setattr(files.os, "replace", lambda a, b: 1 / 0 if b in weights else a.rename(b))
        with pytest.raises(ZeroDivisionError):
            export_level(two_runs[0], "full", to=tmp_path / "to", overwrite=True)
        with pytest.raises(ZeroDivisionError):
            export_level(two_runs[0], "full", to=tmp_path / "new")
    if moment == "readme":
        assert contents(tmp_path / "to") == before and not (tmp_path / "new").exists()
    else:
        assert not (tmp_path / "to" / "README.md").exists() and not (tmp_path / "new" / "README.md").exists()
    for name in ("to", "new"):
        export_level(two_runs[0], "full", to=tmp_path / name, overwrite=moment == "readme")
    assert contents(tmp_path / "to") == contents(tmp_path / "new")


def test_a_file_of_the_same_name_that_no_export_wrote_names_nothing_to_delete(tmp_path: Path) -> None:
    for text in ('{"files": ["thesis.txt"]}', "[1]", "not JSON"):
        tmp_path.joinpath("export.json").write_text(text)
        assert export_run._record_of(tmp_path) == {}
