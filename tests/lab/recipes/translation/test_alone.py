"""A core alone: `nest`, `extract("core")` and a plain loop, as the recipe trains it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from partialsgd.lab.recipes.translation import losses, model
from partialsgd.lab.recipes.translation.task import build, make_optimizer
from partialsgd.lab.runs.use_run import load_weights
from partialsgd.lab.training import loop
from tests.lab.recipes.translation.tiny import settings

TOLD: dict[str, Any] = {"dropout": 0.0, "max_steps": 8, "epochs": 8, "init": "matched", "threads": 1, "warm_up": 3}
TOLD |= {"longest": 64, "beam": 1}  # all phrases fit


def test_it_is_the_extracted_core_in_a_plain_loop(tmp_path: Path) -> None:
    """Written out: no family, no PartialSGD, one optimizer over the extracted network."""
    told = settings(**TOLD)
    task = build(told)
    torch.manual_seed(told.seed)
    core: Any = model.nest(model.build(told, task.tokenizer.get_vocab_size()), told).extract("core")
    optimizer = make_optimizer(core, told)
    core.train()
    for t in range(8):
        for group in optimizer.param_groups:
            group["lr"] = told.lr * task.learning_rate(t, 8)
        batch = task.batches.make(*divmod(t, len(task.batches)))
        outputs = losses.run(core, batch)
        loss = losses.cross_entropy(outputs.logits, batch["labels"], told.label_smoothing)
        optimizer.zero_grad()
        (loss / task.batches.units(*divmod(t, len(task.batches)))).backward()
        optimizer.step()
    run = loop.train(settings(**TOLD, alone="core", method="plain", out=str(tmp_path / "alone")), show=False)
    trained = build(run.settings)  # type: ignore[arg-type]  # the settings of this recipe, as they were given
    load_weights(trained.network, run.last)
    found = dict(trained.network.extract("full").named_parameters())
    expected = dict(core.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_it_is_the_level_that_only_trains_inside_the_family(tmp_path: Path) -> None:
    """With dropout too: both draw the same noise, for low-rank layers have the outputs of whole ones."""
    more = {**TOLD, "dropout": 0.1}
    alone = loop.train(settings(**more, alone="core", method="plain", out=str(tmp_path / "a")), show=False)
    inside = loop.train(settings(**more, method="only('core')", out=str(tmp_path / "b")), show=False)
    first, second = ([line["loss"] for line in _lines(run)] for run in (alone, inside))
    assert [loss["model"] for loss in first] == [loss["core"] for loss in second]


def test_bleu_along_the_training_is_of_the_first_validation_pairs_and_changes_nothing(tmp_path: Path) -> None:
    with_look, without = (
        loop.train(settings(**TOLD, look_bleu=pairs, out=str(tmp_path / f"{pairs}")), show=False) for pairs in (4, 0)
    )
    lines = _lines(with_look)
    looked = [line for line in lines if "valid/core/BLEU" in line]
    assert len(looked) == len([line for line in lines if "valid/core/loss" in line]) > 0
    for line in lines:
        for level in ("core", "full"):
            line.pop(f"valid/{level}/BLEU", None)
    assert lines == _lines(without)


def _lines(run: Any) -> list[dict[str, Any]]:
    from partialsgd.logging import read

    return read(run.metrics)
