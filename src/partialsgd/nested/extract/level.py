"""Extraction of one level as a plain module, and the check that it computes what the nested model computes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn

from partialsgd import masks
from partialsgd._util.snapshots import Buffers, Modes, RandomState
from partialsgd.nested.example_inputs import Call, Example, is_close, tensors_of
from partialsgd.nested.extract.hf_config import allow_saving, make_saveable
from partialsgd.nested.layers import fast_paths
from partialsgd.nested.layers.base import NestedLayer, NestedModule, level_modules, level_parameters
from partialsgd.nested.layers.batch_norm import SharedBatchNorm, warn_if_never_updated
from partialsgd.nested.layers.depth import ShortenedBlocks
from partialsgd.nested.layers.low_rank import LowRankLayer
from partialsgd.nested.layers.narrow_module import NarrowModule
from partialsgd.nested.layers.separate import SeparateLevels
from partialsgd.nested.layers.sums import OutputSum
from partialsgd.nested.switch import FULL, Switch
from partialsgd.parameters import Parameters
from partialsgd.perturbations import drop_outside, perturbed


def extract_level(model: nn.Module, level: str, fast_path_flags: Mapping[str, int]) -> nn.Module:
    """Copy the model with a plain module in the place of every nested one; tied parameters stay tied."""
    if isinstance(model, OutputSum) and not model.is_sum(level):
        return extract_level(model.core, level, fast_path_flags)  # the core alone takes its own arguments
    if isinstance(model, SeparateLevels):
        return extract_level(model.network(level), level, {})
    for name, module in model.named_modules():
        if "forward" in vars(module):
            raise ValueError(
                f"the forward of {name or 'the model'!r} was replaced on the object, and a copy would call the nested "
                "model's: remove such wrappers first, or wrap the nested model instead of its model"
            )
    memo: dict[int, Any] = {}
    # Innermost first: a list of blocks, or a sum, copies the modules inside it.
    for module in reversed([m for m in level_modules(model, level) if isinstance(m, NestedModule)]):
        plain = memo[id(module)] = module.extract(level, memo)
        for submodule in plain.modules() if isinstance(module, NestedLayer) else [plain]:
            submodule.training = module.training
    extracted: nn.Module = copy.deepcopy(model, memo)
    for key, hook in list(extracted._forward_hooks.items()):
        if isinstance(getattr(hook, "__self__", None), Switch):
            del extracted._forward_hooks[key]
    fast_paths.restore_in_copy(model, fast_path_flags, memo)
    allow_saving(extracted)
    warn_if_never_updated(extracted, level)
    return extracted


def check_extracted(
    model: nn.Module, extracted: nn.Module, level: str, example: Example, inputs_of: Callable[[Call], Call]
) -> None:
    """Compare both on random inputs: two batch sizes, training and evaluation mode, with and without gradients."""
    generator = torch.Generator().manual_seed(0)
    with _restored(model), _restored(extracted), fast_paths.disabled():
        for rows in (2, 3):
            call = _accepted_call(model, example, rows, generator)
            for training in (True, False):
                model.train(training)
                extracted.train(training)
                for with_grad in (True, False):
                    with torch.set_grad_enabled(with_grad):
                        expected = _run(model, call, rows)
                        got = _run(extracted, inputs_of(call), rows)
                        try:
                            _compare(expected, got, level, training)
                        except RuntimeError:
                            if not training or not _draws_elsewhere(model, call, rows, expected):
                                raise
            if level != FULL and _is_mask(model):  # in evaluation mode: dropout would have other shapes
                _compare(_run_masked(model, level, call, rows), expected, level, training, loose=True)
        _settle_saving(model, extracted, level, partial(_run, extracted, inputs_of(call), rows))


def _settle_saving(model: nn.Module, extracted: nn.Module, level: str, run: Callable[[], object]) -> None:
    """Make a Hugging Face model load as itself where it is saved, or refuse to be saved."""
    root = model.core if isinstance(model, OutputSum) and not model.is_sum(level) else model
    lists = {name: module for name, module in root.named_modules() if isinstance(module, ShortenedBlocks)}
    kept = {name: (blocks.indices[level], len(blocks.names)) for name, blocks in lists.items()}
    is_original = level == FULL and not any(isinstance(module, fx.GraphModule) for module in extracted.modules())
    hint = f"write the level with partialsgd.export.export(nested, {level!r}, directory)"
    with torch.no_grad():
        make_saveable(extracted, kept, hint, run, is_original=is_original)


def _accepted_call(model: nn.Module, example: Example, rows: int, generator: torch.Generator) -> Call:
    """Return random inputs with so many rows, or with the example's if the model accepts no other number."""
    call = example.drawn(rows, generator)
    try:
        with torch.no_grad():
            _run(model, call, rows)
    except Exception:
        return example.drawn(None, generator)
    return call


def _run(model: nn.Module, call: Call, seed: int) -> list[Tensor]:
    """Run a model from a fixed seed, so that dropout is the same in both, and leave its buffers as they were."""
    args, kwargs = call
    buffers = Buffers(model)
    torch.manual_seed(seed)
    try:
        outputs = [y.detach() for y in tensors_of(model(*args, **kwargs))]
    finally:
        buffers.restore()
    if not any(bool(y.isfinite().any()) for y in outputs):
        raise RuntimeError(
            "the model returned no finite floating-point number on inputs drawn like the example, so its levels "
            "cannot be compared: look for NaN in its weights, or give another example="
        )
    return outputs


def _draws_elsewhere(model: nn.Module, call: Call, seed: int, outputs: list[Tensor]) -> bool:
    """True if the model draws noise from another generator than torch's: from one seed it gives two results."""
    return not all(is_close(a, b) for a, b in zip(outputs, _run(model, call, seed), strict=True))


def _is_mask(model: nn.Module) -> bool:
    """True if every level is the full network with zeros outside its mask."""
    modules = [module for module in model.modules() if isinstance(module, NestedModule)]
    if any(isinstance(module, LowRankLayer) and module.has_own_weight for module in modules):
        return False
    return all(isinstance(module, (NestedLayer, NarrowModule, SharedBatchNorm)) for module in modules)


def _run_masked(model: nn.Module, level: str, call: Call, seed: int) -> list[Tensor]:
    """Run the definition of a level: the full network with every parameter outside the mask at zero."""
    switch = next(module.switch for module in model.modules() if isinstance(module, NestedModule))
    parameters = Parameters(model)
    mask = masks.only_parameters(parameters, level_parameters(model, level))
    with torch.no_grad(), switch.at(FULL), perturbed(parameters, drop_outside(mask)):
        return _run(model, call, seed)


def _compare(expected: list[Tensor], got: list[Tensor], level: str, training: bool, *, loose: bool = False) -> None:
    mode = "training" if training else "evaluation"
    if len(expected) != len(got):
        raise RuntimeError(
            f"the extracted level {level!r} has {len(got)} outputs in {mode} mode, in the nested model {len(expected)}"
        )
    for a, b in zip(expected, got, strict=True):
        # Some layers compute in single precision even for doubles, so sums in another order differ by that much.
        if is_close(a, b, at_least=1e-3 if loose else 0.0):
            continue
        difference = "shapes differ" if a.shape != b.shape else f"they differ by {float((a - b).abs().max()):.2g}"
        raise RuntimeError(
            f"the extracted level {level!r} does not compute what the nested model computes in {mode} mode "
            f"({difference}), so it is not returned; a layer between nested ones may depend on their width"
        )


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the random state, buffers and modes at the end of the block."""
    with ExitStack() as after:
        for snapshot in (RandomState(model), Buffers(model), Modes(model)):
            after.callback(snapshot.restore)
        yield
