"""Trackers: the numbers of a metrics log for TensorBoard, Weights & Biases and trackio, by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from partialsgd._util.extras import missing


class Tracker(Protocol):
    """A further place that a metrics log writes to, beside its file."""

    def write(self, t: int, numbers: dict[str, float]) -> None: ...
    def close(self) -> None: ...


class _TensorBoard:
    """Events in the folder `tensorboard/NAME` beside the log."""

    def __init__(self, path: Path, t: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = path.parent / "tensorboard" / path.stem
        self._writer: Any = SummaryWriter(str(folder), purge_step=t)  # hides the events of later steps

    def write(self, t: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, t)

    def close(self) -> None:
        self._writer.close()


class _LoggedRun:
    """A run of Weights & Biases, or of trackio, which has the same interface."""

    _run: Any

    def write(self, t: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=t)

    def close(self) -> None:
        self._run.finish()


class _WandB(_LoggedRun):
    """A run in the folder `wandb` beside the log; what was logged before a resume is another run of its group.

    Weights & Biases takes no step twice, and a resumed run repeats those after its checkpoint.
    """

    def __init__(self, path: Path, t: int | None) -> None:
        import wandb

        name = f"{path.parent.resolve().name}/{path.stem}"
        folder = str(path.parent.resolve())
        # The project is the one that WANDB_PROJECT names. A run of the user's own stays open beside this one.
        self._run = wandb.init(group=name, name=f"{name} from step {t or 0}", dir=folder, reinit="create_new")


class _Trackio(_LoggedRun):
    """A run of the project that TRACKIO_PROJECT names, or `partialsgd`, in the folder that TRACKIO_DIR names.

    As for Weights & Biases, what was logged before a resume is another run of its group.
    """

    def __init__(self, path: Path, t: int | None) -> None:
        import trackio
        from trackio import context_vars

        name = f"{path.parent.resolve().name}/{path.stem}"
        project = os.environ.get("TRACKIO_PROJECT", "partialsgd")
        users_own = context_vars.current_run.get()
        context_vars.current_run.set(None)  # `init` would end a run of the user's own
        try:
            self._run = trackio.init(project, f"{name} from step {t or 0}", name, embed=False, auto_log_cpu=False)
        finally:
            context_vars.current_run.set(users_own)


_KINDS: dict[str, tuple[str, Callable[[Path, int | None], Tracker]]] = {
    "tensorboard": ("lab", _TensorBoard),
    "wandb": ("trackers", _WandB),
    "trackio": ("trackers", _Trackio),
}

NAMES = tuple(_KINDS)


def require_trackers(names: Sequence[str]) -> None:
    """Refuse names that are unknown, given twice, or whose package is not installed."""
    if isinstance(names, str):
        raise TypeError(f"trackers must be a sequence of names, got {names!r}; for one tracker use ({names!r},)")
    for k, name in enumerate(names):
        if name not in _KINDS:
            raise ValueError(f"there is no tracker {name!r}; there are {', '.join(map(repr, NAMES))}")
        if name in names[:k]:
            raise ValueError(f"trackers has {name!r} twice; name each tracker once")
        if find_spec(name) is None:
            raise missing(f"to write to the tracker {name!r}, {name} is needed", _KINDS[name][0])


def open_tracker(name: str, path: Path, t: int | None) -> Tracker:
    """Start a tracker for the log at a path that goes on with step t."""
    _, start = _KINDS[name]
    return start(path, t)
