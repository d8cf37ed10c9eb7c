"""Compression of what the processes send, with error feedback: `compress`.

Each process adds what it has not sent so far to its gradient, sends a part of the sum, and remembers the rest
(Stich et al. 2018). The memory is kept by parameter name, so it survives changes of the level.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from partialsgd.method import Context
from partialsgd.methods.compressed_gradient import drawn
from partialsgd.methods.top_k import largest

_POWER_SGD_START = 10
"""The first steps are not compressed: torch's hook needs buckets that do not change any more."""


def compress(
    *,
    top_k: float | None = None,
    random_k: float | None = None,
    power_sgd: int | None = None,
    dtype: torch.dtype | None = None,
    feedback: bool = True,
) -> Compression:
    """Send less of each trained gradient: `data_parallel(model, compression=compress(top_k=0.01))`.

    `top_k` is the share of each tensor with the largest numbers, which each process chooses for itself; `random_k` a
    share that is drawn anew at each step, the same on all. `dtype` is that of the numbers on the wire. What is not
    sent is remembered and added to the next gradient, unless `feedback=False`. `power_sgd` is the rank of torch's
    PowerSGD hook, which keeps its memory by bucket, and is refused where steps send different parameters.
    """
    chosen = {"top_k": top_k, "random_k": random_k, "power_sgd": power_sgd}
    given = {name: value for name, value in chosen.items() if value is not None}
    if len(given) > 1 or not (given or dtype):
        raise ValueError(f"give one of top_k, random_k and power_sgd, or a dtype alone; got {given or 'none'}")
    for name in given.keys() & {"top_k", "random_k"}:
        if not 0 < given[name] <= 1:
            raise ValueError(f"{name} is a share in (0, 1], got {given[name]}")
    if power_sgd is not None and (power_sgd < 1 or dtype is not None or not feedback):
        raise ValueError(f"power_sgd is a rank of at least 1, without dtype and feedback; got {power_sgd}")
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"dtype must be a floating-point type such as torch.float16, got {dtype}")
    return Compression(top_k, random_k, power_sgd, dtype, feedback)


@final
@dataclass(frozen=True)
class Payload:
    """The numbers of one tensor that a process sends, and their places; None if all are sent."""

    numbers: Tensor
    places: Tensor | None
    size: int
    """The number of elements that the payload was chosen from."""


@final
class Compression:
    """The settings of `compress`, and this process's memory of what it has not sent.

    Each process has a memory of its own, so each must save and load its own `state_dict()`.
    """

    def __init__(
        self,
        top_k: float | None,
        random_k: float | None,
        power_sgd: int | None,
        dtype: torch.dtype | None,
        feedback: bool,
    ) -> None:
        self._top_k, self._random_k, self._power_sgd = top_k, random_k, power_sgd
        self._dtype, self._feedback = dtype, feedback
        self.unsent: dict[str, Tensor] = {}
        """e, by parameter name, after the last step that moved. Never changed in place."""
        self._of_this_step: dict[str, Tensor] = {}
        self._sent_names: frozenset[str] | None = None
        self._model: weakref.ref[nn.Module] | None = None

    def __repr__(self) -> str:
        chosen = {"top_k": self._top_k, "random_k": self._random_k, "power_sgd": self._power_sgd, "dtype": self._dtype}
        given = [f"{name}={value}" for name, value in chosen.items() if value is not None]
        return f"compress({', '.join([*given, f'feedback={self._feedback}'])})"

    def state_dict(self) -> dict[str, Any]:
        """This process's memory."""
        if self._power_sgd is not None:
            raise NotImplementedError(
                "torch's PowerSGD keeps its memory by bucket, and buckets are others after a restart: it cannot be "
                "resumed; use top_k or random_k, or go on without what it remembers"
            )
        return {"compression": repr(self), "unsent": dict(self.unsent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with the memory that this process has saved. One of other settings raises and changes nothing."""
        if state.get("compression") != repr(self):
            raise ValueError(f"the state was saved by {state.get('compression')}, and this is {self!r}")
        self.unsent, self._of_this_step = {name: e.clone() for name, e in state["unsent"].items()}, {}

    def attach(self, model: nn.Module) -> None:
        """Remember for this model. Raise if another one has it: names of parameters may be the same in both."""
        other = None if self._model is None else self._model()
        if other not in (None, model):
            raise ValueError("this compression remembers for another model; make one for each by compress(…)")
        self._model = weakref.ref(model)

    @property
    def sends_indices(self) -> bool:
        """True if each process chooses for itself, so that the others have to be told what."""
        return self._top_k is not None

    def check(self, names: frozenset[str], *, is_packed: bool) -> None:
        """Raise if this compression cannot send these parameters after those that it has sent before."""
        if self._power_sgd is None:
            return
        if is_packed or self._sent_names not in (None, names):
            raise NotImplementedError(
                "torch's PowerSGD keeps its memory by bucket, and would lose it where steps send different "
                "parameters or elements; use compress(top_k=…) or compress(random_k=…)"
            )
        self._sent_names = names

    @property
    def hook_name(self) -> str:
        return "compressed" if self._power_sgd is None else "PowerSGD"

    def power_sgd_hook(self, group: dist.ProcessGroup) -> tuple[Any, Callable[..., Any]]:
        """torch's PowerSGD hook with its state."""
        assert self._power_sgd is not None
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        state = PowerSGDState(group, matrix_approximation_rank=self._power_sgd, start_powerSGD_iter=_POWER_SGD_START)
        return state, powerSGD_hook

    def unsent_of(self, name: str) -> Tensor | None:
        """e of a parameter, with what this step has added so far."""
        return self._of_this_step.get(name, self.unsent.get(name))

    def remember(self, name: str, unsent: Tensor) -> None:
        self._of_this_step[name] = unsent

    def end_step(self, *, moved: bool) -> None:
        """Keep what the step has remembered, or forget it if the step was dropped."""
        if moved:
            self.unsent = {**self.unsent, **self._of_this_step}
        self._of_this_step = {}

    @torch.no_grad()
    def encode(
        self, context: Context, name: str, gradient: Tensor, unsent: Tensor | None
    ) -> tuple[Payload, Tensor | None]:
        """Split e + g into what is sent and what is remembered: their sum is e + g, to the bit.

        If a number is not finite, NaN is sent, so that all processes see it.
        """
        total = gradient.clone() if unsent is None else gradient + unsent
        is_finite = bool(total.sum().isfinite()) or bool(total.isfinite().all())
        places = self._places(context, name, total, is_finite)
        chosen = total if places is None else total[places]
        numbers = chosen.to(self._dtype or chosen.dtype)
        if not is_finite:
            numbers = torch.full_like(numbers, math.nan)
        payload = Payload(numbers, places, len(total))
        if not self._feedback or not is_finite:
            return payload, None
        # Exact: numbers are rounded to the nearest, and the rounding error of a float fits into a float.
        rest = chosen - numbers.to(chosen.dtype)
        return payload, rest if places is None else total.index_copy(0, places, rest)

    def _places(self, context: Context, name: str, total: Tensor, is_finite: bool) -> Tensor | None:
        if self._top_k is not None:
            # A process whose numbers are not finite sends as many as the others.
            scores, keep = total if is_finite else torch.zeros_like(total), self._top_k
        elif self._random_k is not None:
            scores, keep = drawn(context, name, len(total), total.device), self._random_k
        else:
            return None
        return largest({name: scores}, keep, "layer")[name].nonzero().squeeze(1)

    def message(self, payloads: Sequence[Payload]) -> Tensor:
        """The payloads of a bucket as one tensor; with places, as bytes."""
        numbers = torch.cat([payload.numbers for payload in payloads])
        if not self.sends_indices:
            return numbers
        places = torch.cat([payload.places for payload in payloads if payload.places is not None])
        return torch.cat([places.to(torch.int32).view(torch.uint8), numbers.view(torch.uint8)])

    @torch.no_grad()
    def mean(self, received: Sequence[Tensor], payloads: Sequence[Payload], world: int) -> Tensor:
        """The mean over the processes of what they have sent, zero elsewhere, for the tensors of a bucket in a row.

        `received` is the message of each process if each has chosen for itself, else the sum of all.
        """
        kind, counts = payloads[0].numbers.dtype, [len(payload.numbers) for payload in payloads]
        sizes = [payload.size for payload in payloads]
        device = received[0].device
        total = torch.zeros(sum(sizes), dtype=torch.float32 if kind.itemsize < 4 else kind, device=device)
        starts = torch.tensor([sum(sizes[:i]) for i in range(len(sizes))], device=device)
        starts = starts.repeat_interleave(torch.tensor(counts, device=device))
        if self.sends_indices:
            for message in received:
                places, numbers = torch.split(message, [sum(counts) * 4, sum(counts) * kind.itemsize])
                # A copy: the numbers may begin where none of their type may.
                total.index_add_(0, starts + places.view(torch.int32), numbers.clone().view(kind).to(total.dtype))
        elif payloads[0].places is None:
            total.copy_(received[0])
        else:
            shared = torch.cat([payload.places for payload in payloads if payload.places is not None])
            total[starts + shared] = received[0].to(total.dtype)
        return total.mul_(1.0 / world)
