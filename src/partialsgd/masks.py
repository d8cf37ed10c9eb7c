"""Masks: which coordinates a step may move (p_t). True means "moves", in every mask, everywhere."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeAlias, final

import torch
from torch import Tensor, nn

from partialsgd._util import shards
from partialsgd._util.bitwise_select import Selection, by_rows, rows_of
from partialsgd.parameters import Parameters, parameters_of

Entry: TypeAlias = bool | Tensor


@final
class Mask(Mapping[str, Entry]):
    """For each parameter all (True), none (False) or a boolean tensor; combine with `&`, `|`, `~`."""

    def __init__(self, parameters: Parameters, entries: dict[str, Entry], *, mixed: Iterable[str] = ()) -> None:
        if entries.keys() != parameters.keys():
            missing = next(iter(parameters.keys() - entries.keys()), None)
            what = f"lacks {missing!r}" if missing else f"names {next(iter(entries.keys() - parameters.keys()))!r}"
            raise ValueError(
                f"a mask needs one entry for each parameter, under its first name; this one {what}. "
                "masks.from_tensors(model, entries, rest=False) fills in the others"
            )
        if parameters.is_sharded:
            entries = {
                name: shards.sharded_like(parameters[name], entry) if isinstance(entry, Tensor) else entry
                for name, entry in entries.items()
            }
        self._mixed = frozenset(mixed)
        """Names whose tensor is known to hold both values, so that `simplified` need not read it."""
        self.parameters = parameters
        self.entries: Mapping[str, Entry] = entries
        self._selections: dict[str, Selection] = {}

    def __getitem__(self, name: str) -> Entry:
        entry = self.entries.get(name)
        return self.entries[self.parameters.canonical(name)] if entry is None else entry

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __and__(self, other: Mask) -> Mask:
        return self._combine(other, _and)

    def __or__(self, other: Mask) -> Mask:
        return self._combine(other, _or)

    def __invert__(self) -> Mask:
        return Mask(self.parameters, {name: _not(entry) for name, entry in self.entries.items()})

    def __repr__(self) -> str:
        if self.parameters.is_sharded:  # a rank that prints must not wait for the others
            return f"Mask of {len(self)} parameters, {len(self.partial)} of them in part, sharded over ranks"
        return f"Mask({self.count():,} of {everything(self.parameters).count():,} coordinates move)"

    def items(self) -> ItemsView[str, Entry]:
        return self.entries.items()

    def count(self) -> int:
        """The number of coordinates that move. All ranks that share the parameters must call it."""
        whole = sum(self.parameters[name].numel() for name, entry in self.entries.items() if entry is True)
        return whole + sum(map(int, count_moving(list(self.partial.values()))))

    @cached_property
    def is_everything(self) -> bool:
        return all(entry is True for entry in self.entries.values())

    @cached_property
    def partial(self) -> Mapping[str, Tensor]:
        """The parameters that move in part, each with its boolean tensor."""
        return {name: entry for name, entry in self.entries.items() if isinstance(entry, Tensor)}

    def selection(self, name: str) -> Selection:
        """Applies the mask of a parameter that moves in part to tensors of its shape, or of the shape of its part."""
        if name not in self._selections:
            entry = self.partial[name]
            part = shards.local(entry) if self.parameters.is_sharded else entry
            self._selections[name] = Selection(part, self.parameters.scratch)
        return self._selections[name]

    def release(self) -> None:
        """Give the buffers of the selections back when a step is done."""
        for selection in self._selections.values():
            selection.release()

    def simplified(self) -> Mask:
        """The same mask, with a tensor that is all True or all False written as True or False."""
        unknown = {name: m for name, m in self.partial.items() if name not in self._mixed}
        partial = {name: m for name, m in unknown.items() if not _is_mixed_at_a_glance(m)}
        if not partial:
            return self
        # One transfer for all tensors, not one for each: on a GPU every transfer waits.
        moving = torch.stack(count_moving(list(partial.values()))).tolist()
        sizes = [m.numel() for m in partial.values()]
        whole = {n: count > 0 for n, count, size in zip(partial, moving, sizes, strict=True) if count in (0, size)}
        return Mask(self.parameters, {**self.entries, **whole}, mixed=self._mixed) if whole else self

    def assume_mixed(self) -> Mask:
        """Return the same mask, whose tensors `simplified` does not read on an accelerator, where the host would have
        to wait for them. The caller knows that each of them holds a True. On a CPU this returns the mask itself."""
        on_accelerators = [name for name, m in self.partial.items() if m.device.type != "cpu"]
        return Mask(self.parameters, dict(self.entries), mixed=on_accelerators) if on_accelerators else self

    def _combine(self, other: Mask, op: Callable[[Entry, Entry], Entry]) -> Mask:
        return Mask(self.parameters, {name: op(entry, other[name]) for name, entry in self.entries.items()})


def count_moving(entries: Sequence[Tensor]) -> list[Tensor]:
    """Count the coordinates that move, left on the device of the first; those of sharded masks over all ranks."""
    counts = []
    for mask in shards.locals_of(entries):
        rows = rows_of(mask)
        counts.append(mask.count_nonzero() if rows is None else rows.count_nonzero() * mask[0].numel())
    counts = [count.to(counts[0].device) for count in counts]
    return list(shards.add_up(torch.stack(counts), entries)) if any(map(shards.is_sharded, entries)) else counts


def everything(model: nn.Module | Parameters) -> Mask:
    """1: every coordinate moves."""
    parameters = model if isinstance(model, Parameters) else Parameters(model)
    mask: Mask | None = parameters.cache.get("everything")  # without a call: every step asks
    if mask is None:
        mask = parameters.cache["everything"] = Mask(parameters, dict.fromkeys(parameters, True))
    return mask


def nothing(model: nn.Module | Parameters) -> Mask:
    """0: no coordinate moves."""
    return ~everything(model)


def only(model: nn.Module | Parameters, patterns: Sequence[str]) -> Mask:
    """The parameters that a pattern covers move, the others do not."""
    parameters = parameters_of(model)
    chosen = set(parameters.match(patterns))
    return Mask(parameters, {name: name in chosen for name in parameters})


def only_parameters(model: nn.Module | Parameters, chosen: Iterable[nn.Parameter]) -> Mask:
    """The given parameters move, the others do not."""
    parameters = parameters_of(model)
    moving = set(chosen)
    if unknown := moving - set(parameters.values()):
        shape = tuple(next(iter(unknown)).shape)
        raise ValueError(f"a parameter of shape {shape} is not one of the model's; pass the model's own parameters")
    return Mask(parameters, {name: p in moving for name, p in parameters.items()})


def from_tensors(model: nn.Module | Parameters, entries: Mapping[str, Entry], *, rest: bool = False) -> Mask:
    """Build a mask from True, False or a boolean tensor for each name; parameters that are not named get `rest`."""
    parameters = parameters_of(model)
    named: dict[str, tuple[str, Entry]] = {}
    mixed: set[str] = set()
    for name, entry in entries.items():
        canonical = parameters.canonical(name)
        parameter = parameters[canonical]
        checked = _checked(name, parameter, entry)
        if isinstance(checked, Tensor) and checked.device != parameter.device:
            if checked.device.type == "cpu":  # looked at here, where nobody waits
                checked = bool(checked.any()) if _is_uniform(checked) else checked
                mixed.add(canonical)
            checked = checked.to(parameter.device, non_blocking=True) if isinstance(checked, Tensor) else checked
        if canonical in named and not _same(named[canonical][1], checked):
            raise ValueError(f"{named[canonical][0]!r} and {name!r} are one tied parameter; give it one mask")
        named[canonical] = (name, checked)
    return Mask(parameters, {name: named[name][1] if name in named else rest for name in parameters}, mixed=mixed)


def _is_mixed_at_a_glance(mask: Tensor) -> bool:
    """True if the first entries hold both values.

    It is False where they are not read: on an accelerator the host would wait, and ranks that share a sharded mask, of
    which each sees a part, must come to the same answer."""
    if shards.is_sharded(mask):
        return False
    rows = rows_of(mask)
    mask = mask if rows is None else rows.contiguous()
    if mask.device.type != "cpu" or not mask.is_contiguous():
        return False
    first = mask.view(-1)[:512]
    return bool(first.any()) and not bool(first.all())


def _is_uniform(mask: Tensor) -> bool:
    return bool(mask.all()) or not bool(mask.any())


def _checked(name: str, parameter: nn.Parameter, entry: Entry) -> Entry:
    if isinstance(entry, bool):
        return entry
    if not isinstance(entry, Tensor):
        raise TypeError(f"the mask of {name!r} must be True, False or a boolean tensor, got {entry!r}")
    if entry.dtype is not torch.bool:
        raise TypeError(f"the mask of {name!r} must be boolean, got {entry.dtype}; write mask != 0 or mask.bool()")
    if entry.shape != parameter.shape:
        shapes = f"{tuple(entry.shape)}, the parameter {tuple(parameter.shape)}"
        raise ValueError(f"the mask of {name!r} has shape {shapes}; expand it to the parameter's shape")
    return entry


def _and(a: Entry, b: Entry) -> Entry:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return by_rows(torch.logical_and, a, b)
    return a is not False and b is not False and (b if a is True else a)


def _or(a: Entry, b: Entry) -> Entry:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return by_rows(torch.logical_or, a, b)
    return a is True or b is True or (b if a is False else a)


def _not(entry: Entry) -> Entry:
    return by_rows(torch.logical_not, entry) if isinstance(entry, Tensor) else not entry


def _same(a: Entry, b: Entry) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b)  # of sharded tensors, on all ranks
    return a is b
