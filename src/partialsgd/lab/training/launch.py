"""The device, precision and processes of a training, provided by accelerate."""

from __future__ import annotations

import os
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
from accelerate.utils import GradientAccumulationPlugin, broadcast_object_list
from rich.console import Console
from torch import Tensor, nn

from partialsgd._util.extras import missing
from partialsgd.distributed import data_parallel
from partialsgd.lab.training.errors import WrongCall
from partialsgd.lab.training.settings import Settings
from partialsgd.logging.trackers import NAMES, require_trackers

_TIMEOUT = timedelta(hours=24)
"""Other ranks wait while the first one evaluates; torch's default of ten minutes is too short for a beam search."""


def processes() -> PartialState:
    """This process among those that torchrun or accelerate started."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "OMP_NUM_THREADS/MKL_NUM_THREADS unset", UserWarning)  # --threads sets it
        return PartialState(cpu=not torch.accelerator.is_available(), timeout=_TIMEOUT)


def make_accelerator(settings: Settings, path: Path) -> Accelerator:
    processes()
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    return Accelerator(
        cpu=not torch.accelerator.is_available(),
        mixed_precision="no" if settings.precision == "fp32" else settings.precision,
        log_with=[name for name in settings.track if name not in NAMES] or None,
        project_dir=path,
        # The loop accumulates gradients itself; if the environment asked accelerate to, it would divide the loss.
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
    )


def prepare_model(accelerator: Accelerator, network: nn.Module) -> nn.Module:
    """Give the network its device and precision; on several ranks, its steps send only the gradients that move."""
    prepared: nn.Module = accelerator.prepare_model(network, evaluation_mode=True)  # without DistributedDataParallel
    return prepared if accelerator.num_processes == 1 else data_parallel(prepared)


def may_restart() -> bool:
    """True if torchrun starts the processes anew when one of them dies (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)) > 0


def restarts() -> int:
    """How often torchrun has started the processes anew because one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


def require_restartable(settings: Settings) -> None:
    """Refuse a launch that could not go on after a restart, before it begins."""
    if not may_restart():
        return
    if settings.out is None:  # it would have another name, and begin from nothing
        raise WrongCall("torchrun --max-restarts starts this command again when a process dies: name the run by --out")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise WrongCall(
            "torchrun would keep the addresses of dead processes, to which restarted ones may connect: start it with "
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment and with --standalone or --rdzv-backend c10d, "
            "so that each restart has a new store"
        )


def require_available(settings: Settings) -> None:
    """Refuse settings for which this machine lacks a module, a GPU or a tracker, before a run directory is made."""
    for module in settings.requires:
        if find_spec(module) is None:
            raise missing(f"this run needs {module}", "lab")
    require_trackers(log_trackers(settings))
    if settings.precision == "fp16" and not torch.accelerator.is_available():
        raise ValueError('precision "fp16" needs a GPU; on a CPU use "fp32" or "bf16"')
    available = sorted(kind.value for kind in get_available_trackers())
    for name in settings.track:
        if name not in (*NAMES, *available):
            raise ValueError(f"track: {name!r} is not installed or unknown to accelerate; available are {available}")


def log_trackers(settings: Settings) -> tuple[str, ...]:
    """The trackers that the metrics log writes to; accelerate writes to the others of `track`."""
    named = [*(["tensorboard"] if settings.tensorboard else []), *settings.track]
    return tuple(name for name in dict.fromkeys(named) if name in NAMES)


@contextmanager
def trackers(accelerator: Accelerator, settings: Settings, path: Path) -> Iterator[None]:
    """Open the trackers of accelerate, and flush them however the block ends."""
    if accelerator.log_with:
        accelerator.init_trackers("partialsgd", {"run": path.name})
    try:
        yield
    finally:
        for tracker in accelerator.trackers:
            tracker.finish()


def console() -> Console:
    """A console on stderr that is silent on all ranks but the first."""
    return Console(stderr=True, quiet=not processes().is_main_process)


@contextmanager
def warnings_on_first_rank() -> Iterator[None]:
    """Show Python warnings on the first rank only, and not torch's about the strides of DDP buckets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        if not processes().is_main_process:
            warnings.simplefilter("ignore")
        yield


def from_main(value: Any) -> Any:
    """Broadcast the first rank's value to all ranks."""
    values = [value]
    if processes().num_processes > 1:
        broadcast_object_list(values)
    return values[0]


def total(accelerator: Accelerator, value: float) -> float:
    """Sum a number over the ranks."""
    if accelerator.num_processes == 1:
        return value
    tensor = torch.tensor(value, dtype=torch.float64, device=accelerator.device)
    return float(accelerator.reduce(tensor, reduction="sum").item())


def random_states(accelerator: Accelerator) -> list[dict[str, Tensor]]:
    """Gather the global random generators of every rank."""
    states = {"cpu": torch.get_rng_state()}
    if accelerator.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(accelerator.device)
    gathered = {kind: accelerator.gather(state[None].to(accelerator.device)).cpu() for kind, state in states.items()}
    return [{kind: stacked[rank] for kind, stacked in gathered.items()} for rank in range(accelerator.num_processes)]


def set_random_states(accelerator: Accelerator, states: list[dict[str, Tensor]]) -> None:
    if len(states) != accelerator.num_processes:
        raise ValueError(
            f"the run was saved by {len(states)} processes, and this is a launch of {accelerator.num_processes}; "
            "resume with the same number, because batches and random states belong to ranks"
        )
    own = states[accelerator.process_index]
    torch.set_rng_state(own["cpu"])
    if "cuda" in own and accelerator.device.type == "cuda":
        torch.cuda.set_rng_state(own["cuda"], accelerator.device)
