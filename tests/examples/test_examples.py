"""The examples do what they say: the seams fit the loops that people have, and change no bit of a training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import partialsgd as ps

EXAMPLES = Path(__file__).parents[2] / "examples"
METHODS = {"sam": (ps.methods.sam(rho=0.05), 2), "dropout": (ps.methods.dropout(keep=0.9), 1)}

each_method = pytest.mark.parametrize(("method", "gradients"), METHODS.values(), ids=METHODS)

lightning_warns = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.`:FutureWarning",  # torch 2.13 has deprecated what Lightning 2.6 uses
    "ignore:The '(train|val)_dataloader' does not have many workers:UserWarning",  # on three cores or more
)


@pytest.fixture(autouse=True)
def _same_torch_afterwards() -> Iterator[None]:
    """Examples seed the global generator, as scripts do."""
    with torch.random.fork_rng():
        yield


def example(name: str) -> ModuleType:
    """Imported when it is needed: Lightning and transformers take seconds."""
    return import_module(f"examples.{name}")


def assert_same(a: nn.Module, b: nn.Module) -> None:
    for (name, x), y in zip(a.state_dict().items(), b.state_dict().values(), strict=True):
        assert torch.equal(x, y), name


def assert_falls(losses: list[float]) -> None:
    quarter = len(losses) // 4
    assert sum(losses[-quarter:]) < 0.8 * sum(losses[:quarter])


# --- digits


def test_digits_plain_is_the_loop_without_partialsgd() -> None:
    digits = example("digits")
    data, model = digits.digits(), digits.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    order = torch.Generator().manual_seed(digits.SEED)
    for _ in range(2):
        for batch in torch.randperm(len(data.train_x), generator=order).split(64):
            optimizer.zero_grad()
            digits.forward_backward(model, data.train_x[batch], data.train_y[batch])
            optimizer.step()
    assert_same(model, digits.train("plain", data, 2, lambda: None).model)


# --- every_size


def test_every_size_trains_three_networks_and_takes_the_smallest_out(capsys: pytest.CaptureFixture[str]) -> None:
    every_size = example("every_size")
    nested, small = every_size.main(epochs=30)
    _, x, _, y = every_size.digits()
    found = {}
    for level in nested.levels:
        with nested.at(level):
            found[level] = every_size.accuracy(nested, x, y)
    assert capsys.readouterr().out.endswith(f"1/16 by itself: {every_size.accuracy(small, x, y):.1%}\n")
    assert every_size.accuracy(small, x, y) == found["1/16"]
    assert found["1/16"] > 0.8 and found["1/4"] > 0.9 and found["full"] > 0.9
    assert all(type(module).__module__.startswith("torch.") for module in small.modules())
    assert sum(p.numel() for p in small.parameters()) == sum(p.numel() for p in nested.parameters(level="1/16"))


# --- int8_weights


def test_int8_weights_are_smaller_and_as_good() -> None:
    """In a process that finds torchao where `make setup` installs it."""
    code = "import json; from examples.int8_weights import main; print(json.dumps(main(epochs=30)))"
    path = os.pathsep.join((str(Path(sys.prefix) / "int8"), str(Path(__file__).parents[2])))
    run = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [tuple(row) for row in json.loads(done.stdout.splitlines()[-1])]
    assert [row[:2] for row in rows] == [(name, kind) for name in ("1/16", "full") for kind in ("float32", "int8")]
    (size, score), (small, coarse), (full_size, full_score), (full_small, full_coarse) = [row[2:] for row in rows]
    assert small < 0.7 * size and full_small < 0.4 * full_size  # a row of a small weight has a scale too
    assert abs(coarse - score) < 0.02 and abs(full_coarse - full_score) < 0.02
    assert full_coarse > 0.9


# --- does_it_converge


def test_does_it_converge_measures_the_core_of_both_and_draws_figure_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = example("does_it_converge").main(tmp_path / "criteria", steps=200)
    assert figure.read_bytes().startswith(b"\x89PNG")
    standard, alternating, _ = capsys.readouterr().out.splitlines()
    assert standard.startswith("standard, the core: 20 measured")
    assert alternating.startswith("alternating, the core: 10")


# --- plain_loop


@each_method
def test_plain_loop_is_step_with_clip_norm(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    plain_loop = example("plain_loop")
    trained, losses = plain_loop.main(tmp_path / "run.pt", method, steps=60, until=60)
    assert_falls(losses)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)
    sgd = ps.PartialSGD(model, optimizer, method, seed=0, clip_norm=1.0)
    for t in range(60):
        step = sgd.step(partial(forward_backward, model, *plain_loop.batch_at(t)))
        assert (step.backwards, float(step.loss)) == (gradients, losses[t])
        scheduler.step()
    assert_same(model, trained)


@each_method
def test_plain_loop_resumes_to_the_bit(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    train = partial(example("plain_loop").main, method=method, steps=20)
    whole, losses = train(tmp_path / "whole.pt", until=20)
    _, first = train(tmp_path / "parts.pt", until=7)
    parts, rest = train(tmp_path / "parts.pt", until=20)
    assert first + rest == losses
    assert_same(whole, parts)


def forward_backward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


# --- hf_trainer


def test_hf_trainer_trains_both_levels(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    settings = {"max_steps": 40, "learning_rate": 3e-3, "dataloader_pin_memory": False, "disable_tqdm": True}
    trainer = example("hf_trainer").main(TrainingArguments(str(tmp_path), use_cpu=True, **settings))
    metrics = trainer.evaluate()
    assert metrics["eval_full_loss"] < 0.69 and metrics["eval_core_loss"] < 0.69
    tokens = torch.randint(16, (3, 8))
    nested = trainer.model.eval()
    core = nested.extract("core").eval()
    with torch.no_grad(), nested.at("core"):
        torch.testing.assert_close(core(tokens).logits, nested(tokens).logits)


# --- lightning_module


@lightning_warns
def test_lightning_module_trains_and_validates_both_levels(tmp_path: Path) -> None:
    settings = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer, module = example("lightning_module").main(
        max_epochs=4, default_root_dir=tmp_path, enable_model_summary=False, num_sanity_val_steps=0, **settings
    )
    assert trainer.callback_metrics["accuracy"] > 0.8 and trainer.callback_metrics["core_accuracy"] > 0.7
    assert isinstance(module.network.extract("core"), nn.Sequential)


# --- wide and deep


def test_wide_and_deep_is_at_most_60_lines_and_both_levels_learn() -> None:
    assert len((EXAMPLES / "wide_and_deep.py").read_text().splitlines()) <= 60
    scores = example("wide_and_deep").main(epochs=6)
    assert scores.keys() == {"core", "full"} and min(scores.values()) > 0.95
