"""NaN and infinity in a step. The gradients are read once at most, and not at all if their norm is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from partialsgd import vectors
from partialsgd._util import shards
from partialsgd._util.bitwise_select import rows_of
from partialsgd.engine.step import StepInProgress
from partialsgd.masks import Mask
from partialsgd.parameters import Parameters
from partialsgd.vectors import Vector

Nonfinite = Literal["raise", "skip", "ignore"]
_SKIPS_ALLOWED = 20
_SMALL = 1 << 15


@final
class NonfinitePolicy:
    """Decides whether a step with a NaN or an infinity raises, is skipped, or is applied."""

    def __init__(self, nonfinite: Nonfinite, *, losses_are_local: bool) -> None:
        if nonfinite not in get_args(Nonfinite):
            raise ValueError(f"nonfinite must be one of {', '.join(get_args(Nonfinite))}; got {nonfinite!r}")
        self.skips = 0
        """The number of steps skipped in a row."""
        self.is_unread = False
        """True if the answer of the step before, from an accelerator, was not read yet."""
        self._unread: _Unread | None = None
        self._nonfinite = nonfinite
        # Ranks must skip together: they share the gradient, not the loss.
        self._reads_loss = nonfinite == "raise" or (nonfinite == "skip" and not losses_are_local)

    def is_overflow(self, step: StepInProgress, gradient: Vector) -> bool:
        """True if the gradient at x_t is not finite, so that the one at x̃_t need not be taken. On an accelerator the
        host would wait for the answer, so both are taken, and checked together."""
        if self._nonfinite == "ignore":
            return False
        if self._nonfinite == "raise" and accelerator(gradient.values()) is not None and not _any_sharded(gradient):
            step.largest += _largest(gradient)
            return False
        return not math.isfinite(gradient.norm()) and first_nonfinite(gradient) is not None

    @property
    def may_wait(self) -> bool:
        """True if the host need not know at once whether a step is finite."""
        return self._nonfinite == "raise"

    def watch(
        self, step: StepInProgress, parameters: Parameters, device: torch.device, take_back: Callable[[], None]
    ) -> Tensor:
        """Check losses and gradients on the accelerator that holds them, without waiting for the answer.

        Returns the answer as a tensor, for a step that must move nothing if it is False. The host reads it when
        `resolve` is called, one step later at the latest, which calls `take_back` and raises.
        """
        names, finite = self._check_on_device(step, parameters, device)
        self._unread, self.is_unread = _Unread(names, *_copy_to_host(finite), _where(step), take_back), True
        return finite.all()

    def forget(self) -> None:
        """Drop a check that was not read: another state is loaded."""
        self._unread, self.is_unread = None, False

    def _check_on_device(
        self, step: StepInProgress, parameters: Parameters, device: torch.device
    ) -> tuple[list[str], Tensor]:
        """One boolean for each loss and gradient, left on the accelerator that holds them all."""
        read = step.passes if self._reads_loss else []
        losses = [(_loss_name(level, step), loss) for level, loss in read if loss is not None]
        numbers = [*losses, *step.largest, *_largest(vectors.current(parameters))]
        kind = torch.float64 if any(number.dtype == torch.float64 for _, number in numbers) else torch.float32
        finite = torch.stack([number.detach().to(device, kind) for _, number in numbers]).isfinite()
        return [name for name, _ in numbers], finite

    def resolve(self) -> None:
        """Raise if the step before was not finite: it has moved nothing, and is taken back."""
        unread = self._unread
        if unread is None:
            return
        culprits = [name for name, finite in zip(unread.names, unread.read(), strict=True) if not finite]
        if culprits:
            unread.take_back()
        self.forget()
        if culprits:
            raise FloatingPointError(_message(culprits[0], unread.where))

    def check(
        self, step: StepInProgress, parameters: Parameters, norm: Tensor | None, *, gradient_is_checked: bool
    ) -> bool:
        """Return True if the step must be skipped, or raise. `norm` is that of the gradient, if it is known anyway."""
        culprit = self._culprit(step, parameters, norm, gradient_is_checked)
        if culprit is None:
            self.skips = 0
            return False
        if self._nonfinite == "raise":
            raise FloatingPointError(_message(culprit, _where(step)))
        self.skips += 1
        if self.skips >= _SKIPS_ALLOWED:
            raise FloatingPointError(
                f"{self.skips} steps in a row were skipped. The last: " + _message(culprit, _where(step))
            )
        return True

    def _culprit(
        self, step: StepInProgress, parameters: Parameters, norm: Tensor | None, gradient_is_checked: bool
    ) -> str | None:
        if step.overflow:
            return f"the gradient of {first_nonfinite(vectors.current(parameters))!r}"
        if self._nonfinite == "ignore":
            return None
        device = None if gradient_is_checked else accelerator(p.grad for p in parameters.values() if p.grad is not None)
        if device is not None and not parameters.is_sharded:
            names, finite = self._check_on_device(step, parameters, device)
            return next((name for name, is_finite in zip(names, finite.tolist(), strict=True) if not is_finite), None)
        if self._reads_loss:
            for level, loss in step.passes:
                if loss is not None and not math.isfinite(loss):
                    return _loss_name(level, step)
        if gradient_is_checked or (math.isfinite(norm) if norm is not None else are_finite(parameters, step.mask)):
            return None
        # None: the gradient is not finite outside the mask only, or its norm is too large for its type.
        name = first_nonfinite(vectors.current(parameters), step.mask)
        return None if name is None else f"the gradient of {name!r}"


def require_gradients(step: StepInProgress, parameters: Parameters) -> list[Tensor]:
    """The gradients in `.grad`; raise if they were zeroed after the last pass, or are sparse."""
    gradients = [p.grad for p in parameters.values() if p.grad is not None]
    if not gradients and step.has_gradient:
        raise RuntimeError("update() found no gradient: something called zero_grad() after the last pass")
    # A layer's gradients are always sparse or never, so each set of layers is checked once.
    if ("strided", len(gradients)) not in parameters.cache:
        parameters.cache["strided", len(gradients)] = len(vectors.current(parameters))
    return gradients


def are_finite(parameters: Parameters, mask: Mask | None = None) -> bool:
    """True if no gradient in `.grad` holds a NaN or an infinity. With a mask of rows, only the rows inside count.

    A sum is finite only if all its terms are, so each gradient is read once; a finite gradient whose sum overflows
    is read again.
    """
    if parameters.is_sharded:
        return first_nonfinite(vectors.current(parameters), mask) is None
    rows = {} if mask is None else {name: r for name, m in mask.partial.items() if (r := rows_of(m)) is not None}
    gradients = [p.grad if p.grad is None or name not in rows else p.grad[rows[name]] for name, p in parameters.items()]
    if "sums" not in parameters.cache:
        parameters.cache["sums"] = _by_size(parameters.values())
    large, groups = parameters.cache["sums"]
    sums = [g.sum() for k in large if (g := gradients[k]) is not None]
    for group in groups:
        if alike := [g for k in group if (g := gradients[k]) is not None]:
            sums.append(torch.cat(alike).sum() if len(alike) > 1 else alike[0].sum())
    if all(math.isfinite(s) for s in _to_floats(sums)):
        return True
    return first_nonfinite(vectors.current(parameters)) is None


def first_nonfinite(gradients: Mapping[str, Tensor], mask: Mask | None = None) -> str | None:
    """The name of the first gradient with a NaN or an infinity; with a mask, only coordinates inside count. It is the
    same on all ranks that share the parameters."""
    partial = {} if mask is None else mask.partial
    if _any_sharded(gradients):
        counts = []
        for name, gradient in gradients.items():
            part = shards.local(gradient)
            inside = part[shards.local(partial[name])] if name in partial else part
            counts.append(inside.numel() - torch.isfinite(inside).count_nonzero())
        wrong = shards.add_up(torch.stack(counts), list(gradients.values())).tolist()
        return next((name for name, count in zip(gradients, wrong, strict=True) if count), None)
    for name, gradient in gradients.items():
        if not bool(torch.isfinite(gradient[partial[name]] if name in partial else gradient).all()):
            return name
    return None


def _any_sharded(gradients: Mapping[str, Tensor]) -> bool:
    return any(map(shards.is_sharded, gradients.values()))


def _by_size(parameters: Collection[nn.Parameter]) -> tuple[list[int], list[list[int]]]:
    """Large parameters, and small ones in groups that are summed together without waking a second thread."""
    large: list[int] = []
    groups: dict[tuple[object, ...], list[list[int]]] = {}
    sizes = [p.numel() for p in parameters]
    for k, p in enumerate(parameters):
        if sizes[k] >= _SMALL or p.ndim == 0:
            large.append(k)
            continue
        alike = groups.setdefault((p.dtype, p.device, p.shape[1:]), [[]])
        if sum(sizes[other] for other in alike[-1]) + sizes[k] >= _SMALL:
            alike.append([])
        alike[-1].append(k)
    return large, [group for alike in groups.values() for group in alike]


def _to_floats(sums: Sequence[Tensor]) -> list[float]:
    if len(sums) < 2 or sums[0].device.type == "cpu":
        return [float(s.abs()) for s in sums]
    return [float(x) for x in torch.stack([s.abs().to(torch.float64) for s in sums]).tolist()]


@final
@dataclass(frozen=True)
class _Unread:
    """The check of one step, on its way from the accelerator to the host."""

    names: Sequence[str]
    finite: Tensor
    arrived: Any
    """An event of the stream; None if `finite` is still on the accelerator."""
    where: str
    take_back: Callable[[], None]

    def read(self) -> list[bool]:
        if self.arrived is not None:
            self.arrived.synchronize()
        answers: list[bool] = self.finite.tolist()
        return answers


def _copy_to_host(finite: Tensor) -> tuple[Tensor, Any]:
    """Begin to copy to the host, and return the event of its end; on a device without streams, copy nothing yet."""
    current_stream = getattr(torch.get_device_module(finite.device), "current_stream", None)
    if current_stream is None:
        return finite, None
    copy = finite.to("cpu", non_blocking=True)
    return copy, current_stream(finite.device).record_event()


def accelerator(tensors: Iterable[Tensor]) -> torch.device | None:
    """The one device, not a CPU, that holds all the tensors; else None."""
    rest = iter(tensors)
    first = next(rest, None)
    if first is None or first.device.type == "cpu":  # every step asks
        return None
    return first.device if all(tensor.device == first.device for tensor in rest) else None


def _largest(gradient: Vector) -> list[tuple[str, Tensor]]:
    """The largest magnitude of each gradient, which is finite if all its numbers are; left on the device."""
    filled = {f"the gradient of {name!r}": g for name, g in gradient.items() if g.numel()}
    return list(zip(filled, torch._foreach_norm(list(filled.values()), math.inf), strict=True)) if filled else []


def _loss_name(level: str | None, step: StepInProgress) -> str:
    return "the loss" if level in (None, step.level) else f"the loss of level {level!r}"


def _where(step: StepInProgress) -> str:
    return f"step t = {step.context.t}" + (f", level {step.level!r}" if step.level is not None else "")


def _message(culprit: str, where: str) -> str:
    return (
        f"{culprit} is NaN or infinite at {where}; no parameter and no optimizer "
        "state was changed. Check the batch and the learning rate, or pass nonfinite='skip' to leave such steps out"
    )
