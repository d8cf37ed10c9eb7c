"""Dry runs of a model on an example: they find its hidden units, and refuse what a spec cannot cut."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from partialsgd._util.snapshots import Buffers, Modes, RandomState
from partialsgd.nested import example_inputs
from partialsgd.nested.example_inputs import Example, tensors_of
from partialsgd.nested.layers import fast_paths
from partialsgd.nested.planning.groups import HiddenUnits
from partialsgd.nested.planning.hidden_units import hidden_units
from partialsgd.nested.planning.nest_plan import NestPlan
from partialsgd.nested.planning.trace import Trace, module_path

_HINT = 'name the hidden layers by patterns: hidden=("*.fc1", "*.fc2")'


def find_units(plan: NestPlan) -> HiddenUnits:
    """Run the model of a plan in training and in evaluation mode, leave it as it was, and return its units."""
    if plan.hidden_units is None:
        plan.hidden_units = _traced_units(plan)
    return plan.hidden_units


def example_of(plan: NestPlan, model: nn.Module) -> Example:
    """Return the example that was given, one that fits a Hugging Face config, or a guess."""
    if plan.example is None:
        plan.example = example_inputs.from_config(model) or example_inputs.guessed(model)
    if plan.example is None and not any(list(module.parameters(recurse=False)) for module in _layers(model)):
        raise ValueError(f"{type(model).__name__} has no hidden units: it has no layers")
    if plan.example is None:
        raise ValueError(
            f"{plan.caller} finds no hidden units in {type(model).__name__}: it runs the network once, and "
            f"no input for it is known; {_hint(plan)}"
        )
    return plan.example


def _hint(plan: NestPlan) -> str:
    return f"give nest(…, example=x) with an input that it takes, or {_HINT}" if plan.caller == "Width" else _HINT


def _layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if module is not model]


def _traced_units(plan: NestPlan) -> HiddenUnits:
    model = plan.model
    if any(p.is_meta for p in model.parameters()):  # a sharded model's shapes: buffers too
        model = copy.deepcopy(model).to("meta")
    args, kwargs = example_of(plan, model).call
    if hasattr(model, "config") and "use_cache" in inspect.signature(model.forward).parameters:
        kwargs = {"use_cache": False, **kwargs}  # keys and values in a cache are no outputs that must keep their size
    snapshots = RandomState(model), Buffers(model), Modes(model)
    trace = Trace(model)
    try:
        with fast_paths.disabled():
            for training in (True, False):
                trace.run(model.train(training), args, kwargs)
    except Exception as error:
        raise ValueError(
            f"{plan.caller} finds no hidden units in {type(model).__name__}: it runs the network once, and "
            f"the network raised {error!r}; {_hint(plan)}"
        ) from error
    finally:
        for snapshot in snapshots:
            snapshot.restore()
    units = hidden_units(plan, trace)
    units.unknown = [str(reason) for reason in trace.unknown]
    return units


def read_elsewhere(plan: NestPlan, layers: Sequence[str]) -> dict[str, str]:
    """Return the layers whose weight other code than their own reads, where an input is known, and the code's module.

    An extracted layer of low rank has no weight that could be read.
    """
    model = plan.model
    example = plan.example or example_inputs.from_config(model)
    weights = {model.get_submodule(name).get_parameter("weight"): name for name in layers}
    if example is None or any(weight.is_meta for weight in weights):
        return {}
    reads = _Reads(weights)
    args, kwargs = example.call
    snapshots = RandomState(model), Buffers(model), Modes(model)
    try:
        with torch.no_grad(), fast_paths.disabled(), module_path(model, reads.path), reads:
            model.eval()(*args, **kwargs)
    except Exception:  # whatever the model raises: it is the user's to see when it runs
        return {}
    finally:
        for snapshot in snapshots:
            snapshot.restore()
    return reads.readers


@final
class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    """Notes which modules run operations on weights of other modules."""

    def __init__(self, weights: Mapping[nn.Parameter, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # untyped in torch
        self.path: list[str] = []
        self.readers: dict[str, str] = {}
        self._weights = weights

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so torch would import its compiler

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        reader = self.path[-1] if self.path else ""
        for value in args:
            if isinstance(value, nn.Parameter) and self._weights.get(value, reader) != reader:
                self.readers[self._weights[value]] = reader
        return function(*args, **kwargs or {})


def require_same_shapes(plan: NestPlan, blocks: Sequence[str]) -> None:
    """Raise if a block that a level leaves out changes the shape of what runs through it, where an input is known."""
    model = plan.model
    example = plan.example or example_inputs.from_config(model)
    if example is None or not blocks:
        return
    shapes: dict[str, tuple[Any, Any]] = {}

    def note(name: str, block: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
        before, after = next(tensors_of((args, kwargs)), None), next(tensors_of(outputs), None)
        if before is not None and after is not None:
            shapes[name] = tuple(before.shape), tuple(after.shape)

    with ExitStack() as restored:
        for snapshot in (RandomState(model), Buffers(model), Modes(model)):
            restored.callback(snapshot.restore)
        for name in blocks:
            hook = partial(note, name)
            restored.callback(plan.modules[name].register_forward_hook(hook, with_kwargs=True).remove)
        args, kwargs = example.call
        try:
            with torch.no_grad(), fast_paths.disabled():
                model.eval()(*args, **kwargs)
        except Exception:  # whatever the model raises: it is the user's to see when it runs
            return
    for name, (before, after) in shapes.items():
        if before != after:
            raise ValueError(
                f"Depth cannot leave out {name!r}: it makes {list(after)} of {list(before)}, and the next block "
                "takes what it makes; name lists whose blocks keep the shape, such as the blocks inside a stage"
            )


def require_groups(plan: NestPlan, units: HiddenUnits) -> None:
    """Raise if no group of units was found, with the reasons."""
    if not units.feed_forward:
        reasons = [f"{name!r}: {reason}" for name, reason in units.refused.items()]
        shown = "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more" if len(reasons) > 3 else "")
        raise ValueError(
            f"{type(plan.model).__name__} has no hidden units that could be fewer: they lie between two layers, which "
            f"hidden=('first', 'second') names where they are not found ({shown or 'it has no layers'})"
        )
