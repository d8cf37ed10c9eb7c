"""One level as a network of its own: a plain module, checked against the family before it is handed out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from partialsgd import masks
from partialsgd._util.snapshots import Buffers, Modes, RandomState
from partialsgd.nested.extract import native_config as native
from partialsgd.nested.layers import fast_paths
from partialsgd.nested.layers.base import NestedLayer, NestedModule, level_modules, level_parameters
from partialsgd.nested.layers.batch_norm import SharedNorm, warn_if_never_updated
from partialsgd.nested.layers.sums import OutputSum
from partialsgd.nested.planning.example_inputs import Call, Example, tensors_of
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters
from partialsgd.perturbations import drop_outside, perturbed

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


def extract(model: nn.Module, level: str, fast: Mapping[str, int] | None = None) -> nn.Module:
    """A copy of the model in which every nested module is the plain one of the level. Ties stay ties."""
    if isinstance(model, OutputSum) and not model.is_sum(level):
        return extract(model.core, level, fast)  # by itself it takes its own part of the inputs
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise ValueError(
                f"the forward of {name or 'the model'!r} was replaced on the object, and a copy would call the "
                "family's: take such wrappers off first, or put them around the family and not around its model"
            )
    memo: dict[int, Any] = {}
    # Innermost first: a list of blocks, or a sum, copies what lies inside it.
    for module in reversed([m for m in level_modules(model, level) if isinstance(m, NestedModule)]):
        made = memo[id(module)] = module.plain(level, memo)
        for part in made.modules() if isinstance(module, NestedLayer) else [made]:
            part.training = module.training
    plain: nn.Module = copy.deepcopy(model, memo)
    for key, hook in list(plain._forward_hooks.items()):
        if isinstance(getattr(hook, "__self__", None), Switch):
            del plain._forward_hooks[key]
    fast_paths.take(model, fast or {}, memo)
    native.adopt(plain)
    warn_if_never_updated(plain, level)
    return plain


def check(model: nn.Module, plain: nn.Module, level: str, example: Example, theirs: Callable[[Call], Call]) -> None:
    """Run both on fresh inputs: two batch sizes, training and evaluation, with and without gradients."""
    generator = torch.Generator().manual_seed(0)
    with _untouched(model), _untouched(plain), fast_paths.off():
        for rows in (2, 3):
            call = _accepted(model, example, rows, generator)
            for training in (True, False):
                model.train(training)
                plain.train(training)
                for with_grad in (True, False):
                    with torch.set_grad_enabled(with_grad):
                        expected = _run(model, call, rows)
                        _compare(expected, _run(plain, theirs(call), rows), level, training)
            if level != FULL and _is_mask(model):  # in evaluation: dropout of different widths does not matter
                _compare(_run_masked(model, level, call, rows), expected, level, training, loose=True)


def _accepted(model: nn.Module, example: Example, rows: int, generator: torch.Generator) -> Call:
    """Inputs of another batch size, or of the example's where the network takes no other."""
    call = example.drawn(rows, generator)
    try:
        with torch.no_grad():
            _run(model, call, rows)
    except Exception:
        return example.drawn(None, generator)
    return call


def _run(network: nn.Module, call: Call, seed: int) -> list[Tensor]:
    """Both networks see the same noise, their dropout has the same shapes; and the same statistics at each call."""
    args, kwargs = call
    before = Buffers(network)
    torch.manual_seed(seed)
    try:
        outputs = [y.detach() for y in tensors_of(network(*args, **kwargs))]
    finally:
        before.restore()
    if not any(bool(y.isfinite().any()) for y in outputs):
        raise RuntimeError(
            "the network gave no floating-point tensor with a finite number for inputs drawn like the example, so "
            "nothing can be compared: look for NaN in its weights, or give another example="
        )
    return outputs


def _is_mask(model: nn.Module) -> bool:
    """Whether every level is the whole network with zeros outside its mask."""
    modules = (module for module in model.modules() if isinstance(module, NestedModule))
    return all(isinstance(module, (NestedLayer, SharedNorm)) for module in modules)


def _run_masked(model: nn.Module, level: str, call: Call, seed: int) -> list[Tensor]:
    """The definition of a level: the whole network with everything outside the mask at zero."""
    switch = next(module.switch for module in model.modules() if isinstance(module, NestedModule))
    parameters = Parameters(model)
    mask = masks.only_parameters(parameters, level_parameters(model, level))
    with torch.no_grad(), switch.at(FULL), perturbed(parameters, drop_outside(mask)):
        return _run(model, call, seed)


def _compare(expected: list[Tensor], got: list[Tensor], level: str, training: bool, *, loose: bool = False) -> None:
    mode = "training" if training else "evaluation"
    if len(expected) != len(got):
        raise RuntimeError(
            f"extracted, level {level!r} has {len(got)} outputs in {mode}, in the family {len(expected)}"
        )
    for a, b in zip(expected, got, strict=True):
        # Some layers of double precision compute in single precision: sums in another order differ by as much.
        tolerance = max(_TOLERANCE.get(a.dtype, 1e-4), 1e-3 if loose else 0.0)
        scale = float(a.abs().nan_to_num(posinf=0).max()) if a.numel() else 0.0
        if a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            continue
        apart = "shapes differ" if a.shape != b.shape else f"they differ by {float((a - b).abs().max()):.2g}"
        raise RuntimeError(
            f"the extracted level {level!r} does not compute what the family computes in {mode} ({apart}), "
            "so it is not handed out; a layer between nested ones may depend on their width"
        )


@contextmanager
def _untouched(network: nn.Module) -> Iterator[None]:
    """Noise, statistics and modes are as before afterwards."""
    with ExitStack() as after:
        for saved in (RandomState(network), Buffers(network), Modes(network)):
            after.callback(saved.restore)
        yield
