"""A line says what a step did, in valid JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import partialsgd as ps
from partialsgd import Branch, Method, PartialSGD
from partialsgd.logging import read, record, records
from tests.families import family
from tests.logging.training import made_up, steps


class Numbers:
    def __init__(self, **numbers: object) -> None:
        self._numbers = numbers

    def numbers(self) -> dict[str, object]:
        return self._numbers


def test_losses_are_told_by_level_and_never_mixed() -> None:
    nested = family()
    sgd = PartialSGD(nested, torch.optim.SGD(nested.parameters(), 0.1), ps.methods.slimmable())
    step = steps(sgd, 1)[0]
    assert record(step)["loss"] == {level: loss.item() for level, loss in step.losses}
    assert list(record(step)["loss"]) == ["full", "core"]
    twice = Method(branches=lambda context: [Branch(), Branch(weight=0.5)], name="twice")
    model = nn.Linear(6, 2)
    step = steps(PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), twice), 1)[0]
    assert list(record(step)["loss"]) == ["model", "model#2"]
    assert record(made_up(losses=()))["loss"] == {}


class Reads(TorchDispatchMode):
    """Counts tensors that are read one number at a time."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_all_losses_are_read_from_the_device_at_once() -> None:
    step = made_up(losses=(("full", 1.0), ("core", 2.0), ("tiny", 3.0)))
    with Reads() as reads:
        assert record(step)["loss"] == {"full": 1.0, "core": 2.0, "tiny": 3.0}
        assert reads.count == 0
        step.losses[0][1].item()
        assert reads.count == 1


def test_infinities_are_valid_json_and_come_back(tmp_path: Path) -> None:
    odd = {"c_norm": math.inf, "c_align": -math.inf, "q": math.nan, "level": "nan", "groups": {"inf": {"q": math.inf}}}
    path = tmp_path / "metrics.jsonl"
    with ps.MetricsLog(path) as log:
        log.write(made_up(losses=(("nan", math.nan),), measurements=(Numbers(**odd),)), accuracy=-math.inf)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    json.loads(path.read_text(), parse_constant=refuse)
    (line,) = read(path)
    assert math.isnan(line["loss"]["nan"]) and line["accuracy"] == -math.inf and line["level"] == "nan"
    (found,) = line["criteria"]
    assert math.isnan(found.pop("q")) and found == {k: v for k, v in odd.items() if k != "q"}


def test_what_a_strange_meter_finds_does_not_stop_the_log() -> None:
    assert "criteria" not in record(made_up(measurements=(1.5,)))


def test_a_skipped_step_is_told_and_its_t_comes_again() -> None:
    model = nn.Linear(6, 2)
    sgd = PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1), nonfinite="skip")
    bad = sgd.step(lambda: (model.weight.sum() * torch.inf).backward() or torch.tensor(torch.inf))
    first, second = record(bad), record(steps(sgd, 1)[0])
    assert (first["t"], first["skipped"], first["loss"]) == (0, True, {"model": math.inf})
    assert second["t"] == 0 and "skipped" not in second


def test_an_evaluation_is_told_by_level_also_with_a_slash_in_its_name() -> None:
    found = {"t": 3, "valid/core/loss": 1, "valid/1/4/BLEU": 2.5, "valid/core/BLEU": 9.0, "lr": 0.1}
    assert records.evaluation(found) == {"core": {"loss": 1.0, "BLEU": 9.0}, "1/4": {"BLEU": 2.5}}
