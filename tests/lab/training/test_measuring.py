"""The criteria that a training logs are those of a loop written by hand, and measuring leaves no trace in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import partialsgd as ps
from partialsgd import logging as report
from partialsgd.lab.reproduce.compare import compare
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import loop
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.loop import LAYERS, make_meter
from partialsgd.lab.training.method_text import parse_method
from tests.lab import toy
from tests.lab.checks import remains, steps_by_hand
from tests.lab.recipes.translation import tiny
from tests.lab.toy import Toy, at_batch, stop, trained

pytestmark = pytest.mark.usefixtures("toy")

CASES = [
    ("plain", "only('core')"),
    ("alternating", "only('core')"),
    ("plain", "dropout(keep=0.5)"),
    ("dropout(keep=0.5)", None),
    ("slimmable", "sam(rho=0.1)"),
]


def trains_both(method: str) -> bool:
    """A level that is never trained has a BatchNorm that knows nothing, of which the end of a run warns."""
    return method.startswith(("alternating", "slimmable"))


def measured(run: Run) -> list[tuple[int, dict[str, Any]]]:
    return [(line["t"], one) for line in report.read(run.metrics) for one in line.get("criteria", ())]


def by_hand(settings: Toy, probe: str | None) -> list[tuple[int, dict[str, Any]]]:
    task = toy.build(settings)
    meter = ps.CriteriaMeter(2, None if probe is None else parse_method(probe))
    torch.manual_seed(settings.seed)
    steps = steps_by_hand(task, parse_method(settings.method), 14, lr=settings.lr, seed=settings.seed, meter=meter)
    return [(t, one.numbers()) for t, step in enumerate(steps) for one in step.measurements if hasattr(one, "numbers")]


def leaves(value: Any) -> list[Any]:
    """Names and numbers in order, for a comparison up to rounding: the loop takes the mean in another order."""
    if isinstance(value, dict):
        return [leaf for name in value for leaf in (name, *leaves(value[name]))]
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize(("method", "probe"), CASES)
def test_a_run_logs_what_a_meter_measures_in_a_loop_by_hand(tmp_path: Path, method: str, probe: str | None) -> None:
    settings: dict[str, Any] = {"method": method, "seed": 3, "norm": trains_both(method), "dropout": 0.0}
    found = measured(trained(tmp_path / "a", **settings, measure_every=2, probe=probe))
    expected = by_hand(Toy(**settings), probe)
    assert len(found) >= 7 and any(one["cosine"] != 1 for _, one in found)
    assert all((one.get("probe") is None) == (probe is None) for _, one in found)
    close = [pytest.approx(x, rel=1e-3, abs=1e-5, nan_ok=True) if isinstance(x, float) else x for x in leaves(expected)]
    assert leaves(found) == close


@pytest.mark.parametrize(("options", "over"), [({}, 1), ({"measure_batches": 3}, 3)])
def test_the_gradient_is_the_mean_over_the_batches_of_so_many_steps(tmp_path: Path, options: Any, over: int) -> None:
    settings: dict[str, Any] = {"method": "plain", "dropout": 0.0, "measure_every": 5, "probe": "only('core')"}
    found = dict(measured(trained(tmp_path / "a", **settings, **options, max_steps=1)))[0]
    task = toy.build(Toy(**settings))
    for t in range(over):
        batch = task.batches.make(0, t)
        ((task.network(batch).squeeze(1) - batch.sum(dim=1)).square().mean() / over).backward()
    gradients = {name: p.grad for name, p in task.network.named_parameters()}
    assert all(gradient is not None for gradient in gradients.values())
    whole = torch.cat([gradient.flatten() for gradient in gradients.values() if gradient is not None]).norm()
    assert found["whole"] == pytest.approx(float(whole), rel=1e-5)


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("method", ["plain", "alternating", "slimmable(distill=True)"])
def test_a_run_with_a_probe_is_the_run_without_to_the_bit(tmp_path: Path, method: str, batches: int) -> None:
    hard: dict[str, Any] = {"norm": trains_both(method), "method": method}
    plain = remains(trained(tmp_path / "plain", **hard).path)
    told: dict[str, Any] = {"measure_every": 2, "probe": "dropout(keep=0.5)", "measure_batches": batches}
    probed = remains(trained(tmp_path / "probed", **hard, **told).path)
    for name in ("model", "optimizers", "random", "updates", "flops", "glances"):
        assert plain[f"state {name}"] == probed[f"state {name}"], name
    lines, seen = (
        [{name: x for name, x in json.loads(line).items() if name not in ("criteria", "backwards")} for line in text]
        for text in (each["metrics"].splitlines() for each in (plain, probed))
    )
    assert lines == seen and "criteria" in probed["metrics"] and plain["summary"] == probed["summary"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"probe": "plain"}, "^probe has no effect without measure_every; set both"),
        ({"measure_layers": ("0",)}, "^measure_layers has no effect without measure_every"),
        ({"measure_batches": 2}, "^measure_batches has no effect without measure_every"),
        ({"measure_batches": 0, "measure_every": 1}, "measure_batches must be a whole number of at least 1, got 0"),
    ],
)
def test_what_to_measure_needs_how_often(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Toy(**options)


def test_a_comparison_has_no_place_for_a_probe(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="--probe is for one training: the whole network alone has no core"):
        compare(Toy(out=str(tmp_path / "a"), measure_every=2, probe="only('core')"))
    assert not (tmp_path / "a").exists()


def test_the_core_of_half_the_width_sees_the_noise_of_the_whole_transformer() -> None:
    """Its dropout is where the width stays, so that the pair is measured with it; as a level named is measured."""
    found = []
    for probe in ("only('core')", None):
        torch.manual_seed(5)
        told = tiny.settings(nest="width", ratio=("1/2",), dropout=0.3, measure_every=1, probe=probe)
        network = tiny.family(nest="width", ratio=("1/2",), dropout=0.3).train()
        meter = ps.CriteriaMeter(1, "core") if probe is None else make_meter(told, network)
        sgd = ps.PartialSGD(network, torch.optim.SGD(network.parameters(), 0.1), meter=meter)

        def closure(network: ps.Nested = network) -> torch.Tensor:
            loss = network(**tiny.inputs()).logits.square().mean()
            loss.backward()
            return loss

        (one,) = sgd.step(closure).measurements
        assert isinstance(one, ps.meters.criteria.Criteria) and not one.dropout_off and one.cosine < 1
        found.append({name: number for name, number in one.numbers().items() if name != "probe"})
    assert found[0] == found[1]


@pytest.mark.parametrize("batches", [1, 3])
def test_stopped_in_the_middle_it_measures_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    options: dict[str, Any] = {"norm": True, "method": "alternating", "probe": "only('core')", "measure_every": 3}
    options |= {"measure_layers": ("0",), "measure_batches": batches, "checkpoint_every": 100}
    whole = trained(tmp_path / "whole", **options)
    at_batch(8, stop, monkeypatch)
    with pytest.raises(loop.Stopped):
        trained(tmp_path / "a", **options)
    loop.resume(Run.open(tmp_path / "a"))
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == whole.metrics.read_bytes()
    assert {t for t, _ in measured(whole)} == {0, 1, 6, 7, 12, 13}
    for _, one in measured(whole):
        assert one["groups"].keys() == {LAYERS} and 0 < one["groups"][LAYERS]["whole"] < one["whole"]
