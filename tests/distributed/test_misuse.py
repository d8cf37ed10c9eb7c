"""What users get wrong with `data_parallel` is right, or raises on all processes before anything hangs."""

from __future__ import annotations

from pathlib import Path

import torch

from partialsgd import PartialSGD
from partialsgd import methods as registry
from tests.distributed import misuse_ranks as ranks
from tests.distributed.data_parallel_ranks import family, inputs
from tests.functions import backward
from tests.processes import run_on


def test_wrong_orders_raise_and_say_what_to_do(tmp_path: Path) -> None:
    zero, one = run_on(ranks.refused, 2, tmp_path)
    assert zero == one
    for scenario, words in ranks.REFUSED.items():
        assert words in zero[scenario.__name__], f"{scenario.__name__}: {zero[scenario.__name__]}"


def test_processes_that_would_send_different_things_raise_before_they_do(tmp_path: Path) -> None:
    for messages in run_on(ranks.unlike, 2, tmp_path):
        for name in ranks.UNLIKE:
            assert "do not agree on what this pass sends" in messages[name], f"{name}: {messages[name]}"


def test_norms_evaluations_frozen_layers_and_moved_models_are_right(tmp_path: Path) -> None:
    zero, one = run_on(ranks.right, 2, tmp_path)
    for result in (zero, one):  # running statistics are each process's own, as under DistributedDataParallel
        for how in ("ours", "evaluated"):
            assert all(map(torch.equal, result[f"norms {how}"], result["norms ddp"])), how
    for key in ("frozen", "double"):
        assert all(map(torch.equal, zero[key], one[key])), f"ranks differ: {key}"
    nested = family("width").double()
    sgd = PartialSGD(nested, torch.optim.AdamW(nested.parameters(), 0.01), registry.alternating())
    for t in range(4):
        halves = [inputs(t, rank).double() for rank in range(2)]
        sgd.step(lambda h=halves: backward(torch.stack([nested(x).square().mean() for x in h]).mean()))
    for ours, alone in zip(zero["double"], nested.parameters(), strict=True):
        torch.testing.assert_close(ours, alone)
