"""The FLOPs of a model, as torch counts them and as the paper does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from partialsgd._util.snapshots import Buffers, RandomState

# The operators by which backends implement BatchNorm; one call of batch_norm reaches exactly one of them.
_BATCH_NORMS = (
    torch.ops.aten.native_batch_norm,
    torch.ops.aten._native_batch_norm_legit,
    torch.ops.aten._native_batch_norm_legit_no_training,
    torch.ops.aten._native_batch_norm_legit_functional,
    torch.ops.aten._batch_norm_with_update,
    torch.ops.aten._batch_norm_with_update_functional,
    torch.ops.aten._batch_norm_no_update,
    torch.ops.aten.cudnn_batch_norm,
    torch.ops.aten.miopen_batch_norm,
    torch.ops.aten.batch_norm_elemt,  # SyncBatchNorm
)


@final
@dataclass(frozen=True)
class Flops:
    """The work of one call on its whole batch.

    `forward` and `training` (forward and backward) follow torch's convention: convolutions and matrix products, 2 for
    a multiply-add. `multiply_adds` follows the paper's, for the forward pass: 1 for a multiply-add, and 2 for every
    output element of a BatchNorm.
    """

    forward: int
    training: int
    multiply_adds: int


def count(model: nn.Module, *args: object, **kwargs: object) -> Flops:
    """Count the work of `model(*args, **kwargs)` and of its parameters' gradient; the model is unchanged afterwards.

    Operators that torch's counter does not know count nothing: on a CPU the fused LSTM, and the fast path that
    nn.TransformerEncoder takes in evaluation mode without gradients.
    """
    buffers, random = Buffers(model), RandomState(model)
    counter = FlopCounterMode(display=False, custom_mapping=dict.fromkeys(_BATCH_NORMS, _batch_norm_flops))
    try:
        # Attention written as matrix products is the only kind that is counted on every device.
        with torch.inference_mode(False), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            output = model(*args, **kwargs)
            forward, batch_norm = _counted(counter)
            _differentiate(output, [p for p in model.parameters() if p.requires_grad])
            training, _ = _counted(counter)
    finally:
        buffers.restore()
        random.restore()
    return Flops(forward, training, forward // 2 + batch_norm)


def paper_epoch_flops(multiply_adds_per_level: Sequence[int], *, every_batch: bool, images: int = 45_000) -> float:
    """Return the paper's FLOPs of an epoch (Table 3): 2 for each multiply-add of the forward passes alone.

    `multiply_adds_per_level` is for one image. With `every_batch=True` each batch goes through every level (slimmable
    training), otherwise through one of them in turn (alternating training).
    """
    if not multiply_adds_per_level:
        raise ValueError("multiply_adds_per_level is empty; give the multiply-adds of at least one level")
    passes = images if every_batch else images / len(multiply_adds_per_level)
    return 2.0 * sum(multiply_adds_per_level) * passes


def _differentiate(output: object, parameters: Sequence[nn.Parameter]) -> None:
    """Compute the gradient of the sum of all outputs and discard it; `.grad` is not touched."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    outputs = [leaf for leaf in leaves if leaf.is_floating_point() and leaf.requires_grad]
    if outputs and parameters:
        torch.autograd.grad(outputs, parameters, [torch.ones_like(leaf) for leaf in outputs], allow_unused=True)


def _batch_norm_flops(shape: Sequence[int], *_: object, **__: object) -> int:
    return 2 * prod(shape)


def _counted(counter: FlopCounterMode) -> tuple[int, int]:
    """Return the FLOPs of convolutions and matrix products so far, and those of BatchNorm."""
    counts = counter.get_flop_counts().get("Global", {})
    batch_norm = sum(counts.get(op, 0) for op in _BATCH_NORMS)
    return counter.get_total_flops() - batch_norm, batch_norm
