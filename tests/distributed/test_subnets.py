"""Independent subnets on 2 and 4 processes: the method in one process, on narrow networks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from partialsgd import PartialSGD, distributed, methods
from partialsgd.distributed.narrowing import layouts_of
from partialsgd.methods._shared import neurons
from partialsgd.parameters import Parameters
from tests.distributed import subnet_ranks
from tests.distributed.subnet_ranks import CASES, EVERY, RATE, ROUNDS, SEED, SHAPES, loss_of, momenta, values
from tests.methods.smaller import mlp, places, ready, smaller
from tests.processes import run_on


def in_one_process(name: str, workers: int) -> list[dict]:
    """The interleaved method; what model and momentum are after each turn of the workers."""
    options = dict(CASES[name])
    build, momentum, clip_norm = options.pop("build"), options.pop("momentum", 0.0), options.pop("clip_norm", None)
    model = ready(build())
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=momentum)
    method = methods.independent_subnets(workers, EVERY, **options)
    sgd, states = PartialSGD(model, optimizer, method, seed=SEED, clip_norm=clip_norm), []
    for t in range(workers * EVERY * ROUNDS):
        sgd.step(lambda t=t: loss_of(model, t, SHAPES[build]))
        if (t + 1) % workers == 0:
            states.append({"model": values(model), "momenta": momenta(model, optimizer)})
    return states


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_make_what_the_method_makes_in_one_process(tmp_path: Path, workers: int) -> None:
    """After every step of every case, for weights, momentum and BatchNorm's statistics; between rounds all of it."""
    ranks = run_on(subnet_ranks.train, workers, tmp_path)
    for name, case in CASES.items():
        first = ranks[0][name]
        assert first["rounds"] == ROUNDS and [r[name]["levels"] for r in ranks] == [
            [f"worker {i}"] for i in range(workers)
        ]
        expected = in_one_process(name, workers)
        for step, (ours, alone) in enumerate(zip(first["states"], expected, strict=True)):
            is_between = (step + 1) % EVERY == 0
            for key in ("model", "momenta"):
                for entry, tensor in alone[key].items():
                    if case.get("shared") == "average" and entry not in split_names(first) and not is_between:
                        continue  # x holds the copy of the worker whose turn is next
                    where = f"{name}, step {step}, {entry}: "
                    torch.testing.assert_close(ours[key][entry], tensor, msg=where.__add__)
        for other in ranks[1:]:
            for ours, theirs in zip(first["states"], other[name]["states"], strict=True):
                assert all(torch.equal(t, theirs["model"][n]) for n, t in ours["model"].items()), "ranks differ"


def split_names(found: dict) -> set[str]:
    names = list(found["states"][0]["model"])
    return set(names) - {names[-1]}  # the bias of the outputs belongs to no unit


@pytest.mark.parametrize("workers", [2, 4])
def test_a_rank_holds_its_narrow_network_and_its_shard_and_sends_its_block_twice(tmp_path: Path, workers: int) -> None:
    ranks = run_on(subnet_ranks.memory, workers, tmp_path)
    n = 64 // workers
    block = 32 * n + n + n * n + n + n * 16  # without the shared bias of the outputs
    whole = sum(p.numel() for p in subnet_ranks.wide().parameters())
    for rank, seen in enumerate(ranks):
        assert seen["sizes"] == [(32, n), (n, n), (n, 16)]
        assert seen["parameters"] == seen["gradients"] == block + 16
        assert seen["state"] == block, "what is held has none"
        shard = (whole - 16) // workers
        held = 2 * (block + 16) + block + 2 * shard
        assert held <= seen["live"] <= held + 100, "and nothing else of the whole network's size"
        assert seen["same objects"]
        # x and momentum go home and come from there; what is at home here is not sent, and the rest is by chance.
        assert seen["bytes"] % 4 == 0
        exact = 2 * 4 * block * (workers - 1) / workers * 2
        assert seen["bytes"] == pytest.approx(exact, rel=0.2), rank
    total = sum(seen["bytes"] for seen in ranks)
    assert total == pytest.approx(2 * 4 * block * (workers - 1) * 2, rel=0.05)
    ddp = 2 * 2 * (workers - 1) / workers * whole * 4  # two steps
    assert total / workers < 0.6 * ddp


def test_a_resumed_run_has_the_bits_of_one_that_went_on(tmp_path: Path) -> None:
    for found in run_on(subnet_ranks.resume, 2, tmp_path):
        for adam in (False, True):
            for name, tensor in found[f"{adam} None"].items():
                assert torch.equal(tensor, found[f"{adam} 2"][name]), (adam, name)


def test_a_round_ends_when_the_mean_cosine_is_below_the_bound(tmp_path: Path) -> None:
    ranks = run_on(subnet_ranks.criterion, 2, tmp_path)
    assert ranks[0]["rounds"] == ranks[1]["rounds"], "all decide alike"
    expected, number, steps = [], 0, 0
    for local in range(30):
        steps += 1
        is_aligned = True
        if local % 2 == 0:
            is_aligned = sum(cosine(found, rank, local) for rank, found in enumerate(ranks)) * 1.25 >= 2
        if steps == 6 or not is_aligned:
            number, steps = number + 1, 0
        expected.append(number)
    assert ranks[0]["rounds"] == expected and expected[-1] > 5, "some rounds ended early"


def cosine(found: dict, rank: int, local: int) -> float:
    """From two plain networks: the whole one and the worker's, whose parameters are found in the whole by value."""
    whole, own = ready(mlp()), found["own"][local]
    whole.load_state_dict(found["wholes"][local], strict=False)
    kept = {i: torch.isin(found["wholes"][local][f"{i}.bias"], own[f"{i}.bias"]) for i in (0, 2)}
    small = smaller(whole, kept)
    for model in (whole, small):
        loss_of(model, local * 2 + rank, (5,))
    index = places(whole, kept)
    a = torch.cat([p.grad[index[n]].flatten() for n, p in whole.named_parameters()])
    b = torch.cat([p.grad.flatten() for p in small.parameters()])
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def test_what_cannot_be_right_is_refused_on_all_ranks_and_changes_nothing(tmp_path: Path) -> None:
    for said in run_on(subnet_ranks.refused, 2, tmp_path):
        assert "leave its `with` block before a step" in said["inside"] and "already entered" in said["twice"]
        assert "the round has had 1 of 2 steps" in said["middle"] and "has made 1 steps" in said["late"]
        assert "the workers do not agree: this one has made" in said["apart"]
        assert "has no hidden units that could be fewer" in said["few"]
        assert "not DistributedDataParallel" in said["ddp"]
        assert "pass the model itself, not DataParallel" in said["data parallel"]
        assert "Adafactor keeps 'row_var'" in said["factored"]
        assert "let it take no argument" in said["argument"]


def test_a_group_of_processes_is_needed() -> None:
    model = subnet_ranks.wide()
    with pytest.raises(RuntimeError, match="init_process_group"):
        distributed.independent_subnets(model, torch.optim.SGD(model.parameters(), 0.1))


class PackedGate(nn.Module):
    """Gate and up lie in one layer: each hidden unit is two of its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(4, 12), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        y: torch.Tensor = self.down(gate.relu() * up)
        return y


@pytest.mark.parametrize(
    "build", [PackedGate, lambda: nn.Sequential(nn.Conv1d(3, 4, 1), nn.ReLU(), nn.Conv1d(4, 2, 1))]
)
def test_layers_that_cannot_be_split_over_workers_are_refused(build: Callable[[], nn.Module]) -> None:
    model = build()
    hidden = neurons.hidden_units(model, caller="test")
    with pytest.raises(ValueError, match=r"cannot be split over workers: .* name other layers by hidden="):
        layouts_of(Parameters(model), model, hidden)
