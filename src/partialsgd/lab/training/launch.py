"""Where a training runs: device, precision and processes, by accelerate."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.tracking import get_available_trackers
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, broadcast_object_list
from rich.console import Console
from torch import Tensor

from partialsgd.lab.training.settings import Settings

_PATIENCE = timedelta(hours=24)
"""The others wait while the first rank evaluates: torch's own ten minutes are too few for a beam search."""

_PRECISION = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}


def processes() -> PartialState:
    """This process among the others that torchrun or accelerate has started."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "OMP_NUM_THREADS/MKL_NUM_THREADS unset", UserWarning)  # a setting of the run
        return PartialState(cpu=not torch.accelerator.is_available(), timeout=_PATIENCE)


def accelerator(settings: Settings, path: Path) -> Accelerator:
    processes()
    AcceleratorState._reset_state()  # the processes stay; another run in this one may have another precision
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision=_PRECISION[settings.precision],
        log_with=list(settings.track) or None,
        project_dir=path,
        # Accumulation is ours; an environment that asks accelerate for it would divide the loss.
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        # A step of the core gives the rest of the network no gradient.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )


def require(settings: Settings) -> None:
    """Refuse what this machine cannot do; accelerate would only say so in a log, or after the run was made."""
    for module, extra in _needed(settings):
        if find_spec(module) is None:
            raise ImportError(f"{module} is needed for this: pip install partialsgd[{extra}]")
    if settings.precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError('precision "fp16" needs a GPU; without one there are "fp32" and "bf16"')
    known = sorted(kind.value for kind in get_available_trackers())
    for name in settings.track:
        if name not in known:
            raise ValueError(
                f"the tracker {name!r} is not installed, or accelerate has none of that name; here {known}"
            )


def _needed(settings: Settings) -> list[tuple[str, str]]:
    """The modules that a run uses, also at its end, and the extra that has them."""
    translation = ("babel", "sacrebleu", "sklearn", "tokenizers", "transformers")
    names = translation if settings.recipe == "translation" else ("sklearn",)
    return [*((name, "lab") for name in names), *([("tensorboard", "lab")] if settings.tensorboard else [])]


@contextmanager
def trackers(here: Accelerator, settings: Settings, path: Path) -> Iterator[None]:
    """What is sent to them arrives, however the block ends."""
    if settings.track:
        here.init_trackers("partialsgd", {"run": path.name})
    try:
        yield
    finally:
        for tracker in here.trackers:
            tracker.finish()


def console() -> Console:
    """Quiet on all ranks but the first."""
    return Console(stderr=True, quiet=not processes().is_main_process)


@contextmanager
def warnings_of_one() -> Iterator[None]:
    """Warnings are the first rank's to show; those of torch on the layout of gradients say nothing that can be done."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        if not processes().is_main_process:
            warnings.simplefilter("ignore")
        yield


def from_main(value: Any) -> Any:
    """What the first rank has."""
    box = [value]
    if processes().num_processes > 1:
        broadcast_object_list(box)
    return box[0]


def any_rank(here: Accelerator, flag: bool) -> bool:
    """Whether it is so on any rank: all must leave the loop at the same step."""
    return total(here, flag) > 0


def mean(here: Accelerator, value: Tensor) -> Tensor:
    """Over the ranks."""
    if here.num_processes == 1:
        return value
    found: Tensor = here.reduce(value, reduction="mean")
    return found


def total(here: Accelerator, value: float) -> float:
    """Over the ranks."""
    if here.num_processes == 1:
        return value
    found: Tensor = here.reduce(torch.tensor(value, dtype=torch.float64, device=here.device), reduction="sum")
    return found.item()


def random_states(here: Accelerator) -> list[dict[str, Tensor]]:
    """The global generators of every rank."""
    states = {"cpu": torch.get_rng_state()}
    if here.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(here.device)
    if here.num_processes == 1:
        return [states]
    every: dict[str, Tensor] = {kind: here.gather(state[None].to(here.device)).cpu() for kind, state in states.items()}
    return [{kind: stacked[rank] for kind, stacked in every.items()} for rank in range(here.num_processes)]


def set_random_states(here: Accelerator, states: list[dict[str, Tensor]]) -> None:
    if len(states) != here.num_processes:
        raise ValueError(
            f"the run was saved by {len(states)} processes and there are {here.num_processes}: "
            "resume it with as many, for the batches and the noise are dealt to them"
        )
    own = states[here.process_index]
    torch.set_rng_state(own["cpu"])
    if "cuda" in own and here.device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], here.device)
