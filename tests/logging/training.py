"""A run with a log, checkpoints and batches that are skipped, for processes that are killed or are several."""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from partialsgd import CriteriaMeter, MetricsLog, PartialSGD, Step, masks, methods
from partialsgd.logging.metrics_log import Record
from tests.training import family

BATCHES = 160
OVERFLOWS = 7  # every so many batches one gives an infinite loss
SAVES = 5
METHOD, METER = methods.dropout(keep=0.8), CriteriaMeter(every=3, alerts=None)  # here, so that a fork has them


def train(folder: str, pause: float = 0.0) -> None:
    """From the checkpoint in the folder, if there is one, to the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    sgd = PartialSGD(model, optimizer, METHOD, nonfinite="skip", meter=METER)
    states, first = {"model": model, "optimizer": optimizer, "sgd": sgd}, 0
    checkpoint = Path(folder) / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        first = saved.pop("batch")
        for name, state in saved.items():
            states[name].load_state_dict(state)
    skips = sgd.state_dict()["skips"]
    with MetricsLog(Path(folder) / "metrics.jsonl", t=sgd.t, skips=skips) as log:
        for batch in range(first, BATCHES):
            log.write(sgd.step(lambda batch=batch: loss(model, batch)), batch=batch)
            if batch % SAVES == 0:
                new = {name: state.state_dict() for name, state in states.items()}
                torch.save({**new, "batch": batch + 1}, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
            time.sleep(pause)


def saved(folder: str) -> int:
    """The batch that a run would go on with."""
    checkpoint = Path(folder) / "checkpoint.pt"
    return torch.load(checkpoint, weights_only=True)["batch"] if checkpoint.exists() else 0


def loss(model: nn.Module, batch: int) -> torch.Tensor:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(batch))
    found = (model(x) - x[:, :2]).square().mean()
    if batch % OVERFLOWS in (0, 1):
        found = found * torch.inf
    found.backward()
    return found


def made_up(t: int = 0, losses: tuple[tuple[str | None, float], ...] = ((None, 1.0),), **more: object) -> Step:
    """A step that nobody took."""
    model = nn.Linear(1, 1)
    mask = masks.everything(PartialSGD(model, torch.optim.SGD(model.parameters(), 0.1)).parameters)
    told = tuple((level, torch.tensor(loss)) for level, loss in losses)
    return Step(t, None, mask, told[0][0] if told else None, 1, told, **more)


def on_two_ranks(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    with MetricsLog(Path(folder) / "metrics.jsonl", trackers=("tensorboard",)) as log:
        for t in range(2):
            log.write(made_up(t, losses=((None, float(rank)),)))
            dist.barrier()
    dist.destroy_process_group()


def steps(sgd: PartialSGD, count: int) -> list[Step]:
    model = sgd.parameters.model

    def loss() -> torch.Tensor:
        found = model(torch.randn(5, 6, generator=torch.Generator().manual_seed(sgd.t))).square().mean()
        found.backward()
        return found

    return [sgd.step(loss) for _ in range(count)]


def alternating(every: int = 2, **options: object) -> PartialSGD:
    nested = family()
    optimizer = torch.optim.SGD(nested.parameters(), 0.1)
    meter = CriteriaMeter(every=every, alerts=None)
    return PartialSGD(nested, optimizer, methods.alternating(), meter=meter, **options)


def measured(c_norm: float = 1.0, c_sim: float = 1.0, c_align: float = 1.0, **more: object) -> Record:
    cosine = 1 / c_align if c_align else math.nan
    q = c_norm * max(c_sim, c_align) if c_align > 0 else math.inf
    return {"c_norm": c_norm, "c_sim": c_sim, "c_align": c_align, "cosine": cosine, "q": q, **more}


def run(*criteria: Record | Sequence[Record], every: int = 1) -> list[Record]:
    """One step for each."""
    lists = [[one] if isinstance(one, dict) else list(one) for one in criteria]
    return [
        {"t": k * every, "level": None, "loss": {"model": 1 / (k + 1)}, "lr": 0.1, "backwards": 1, "criteria": found}
        for k, found in enumerate(lists)
    ]


def noisy(seed: int, *, count: int = 60, level: float = 2.0, negative: float = 0.0, **more: object) -> list[Record]:
    draw = random.Random(seed)

    def some() -> float:
        return 1 + level * draw.random()

    found = [(some(), some(), some() * (-1 if draw.random() < negative else 1)) for _ in range(count)]
    return run(*(measured(*three, **more) for three in found), every=5)
