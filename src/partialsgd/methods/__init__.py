"""The registry: every training method, by name, with one line that says what it is."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partialsgd.methods.ac_dc import ac_dc as ac_dc
    from partialsgd.methods.alternating import alternating as alternating
    from partialsgd.methods.block_coordinate import block_coordinate as block_coordinate
    from partialsgd.methods.compose import compose as compose
    from partialsgd.methods.compressed_gradient import compressed_gradient as compressed_gradient
    from partialsgd.methods.dropout import dropout as dropout
    from partialsgd.methods.dynamic_pruning import dynamic_pruning as dynamic_pruning
    from partialsgd.methods.dynamic_sparsity import dynamic_sparsity as dynamic_sparsity
    from partialsgd.methods.extragradient import extragradient as extragradient
    from partialsgd.methods.freezing import freezing as freezing
    from partialsgd.methods.guarded import guarded as guarded
    from partialsgd.methods.independent_subnets import independent_subnets as independent_subnets
    from partialsgd.methods.layerwise import layerwise as layerwise
    from partialsgd.methods.meprop import meprop as meprop
    from partialsgd.methods.only import only as only
    from partialsgd.methods.plain import plain as plain
    from partialsgd.methods.random_mask import random_mask as random_mask
    from partialsgd.methods.sam import sam as sam
    from partialsgd.methods.sandwich import sandwich as sandwich
    from partialsgd.methods.scaled_by_alpha import scaled_by_alpha as scaled_by_alpha
    from partialsgd.methods.slimmable import slimmable as slimmable
    from partialsgd.methods.top_k import top_k as top_k

SUMMARIES: dict[str, str] = {
    "ac_dc": "AC/DC: phases that prune the network for good and train the rest, and phases that train all of it.",
    "alternating": "Alternating training (Algorithm 2): the whole network at even t, the core at odd t.",
    "block_coordinate": "Block-coordinate: a few blocks of layers move for some steps, then the next ones.",
    "compose": "Two methods at once: masks are intersected, and each level of the one is perturbed as the other says.",
    "compressed_gradient": "Compressed gradient: k coordinates are sent; what is left is added to the next gradient.",
    "dropout": "Dropout with one mask a batch: random weights or neurons are dropped and not updated.",
    "dynamic_pruning": "Dynamic pruning (DPF): the gradient of the pruned network moves the dense one.",
    "dynamic_sparsity": "Dynamic sparsity: one network trained at several sparsities, each inside the one before.",
    "extragradient": "Extragradient: take the gradient one step further downhill.",
    "freezing": "Freezing: the first stages stop moving one after the other, and their backward pass is not run.",
    "guarded": "Guarded: a method's steps are taken while a measured criterion is within its bound, else a fallback's.",
    "independent_subnets": "Independent subnets: disjoint blocks of hidden units, each trained as a network by itself.",
    "layerwise": "Layer-wise training: the first stage moves alone for some steps, then the second, to the last.",
    "meprop": "meProp: only the k largest entries of each linear layer's output gradient go on in the backward pass.",
    "only": "One level: a nested network is trained at this level alone, and nothing outside it moves.",
    "plain": "Plain training: every coordinate moves, nothing is perturbed.",
    "random_mask": "Random mask: a random share of the coordinates moves, nothing is perturbed.",
    "sam": "Sharpness-aware minimisation: take the gradient at the worst point nearby.",
    "sandwich": "The sandwich rule: the largest level, the smallest and some drawn between, in one step.",
    "scaled_by_alpha": "Scaled by α: a method's steps with the step size of the theorem, α γ, where α is measured.",
    "slimmable": "Slimmable training: one backward pass for each level, then one update with all of them.",
    "top_k": "Top-k: only the coordinates with the largest gradient move.",
}

__all__ = ["SUMMARIES", *SUMMARIES]  # the table is the list


class _Registry(ModuleType):
    """Importing the file `dropout` would hide the method `dropout`: here the name is always the method."""

    def __setattr__(self, name: str, value: object) -> None:
        is_file = name in SUMMARIES and isinstance(value, ModuleType)
        super().__setattr__(name, getattr(value, name) if is_file else value)


sys.modules[__name__].__class__ = _Registry


def __getattr__(name: str) -> object:
    if name not in SUMMARIES:
        raise AttributeError(f"there is no method {name!r}; there are {', '.join(SUMMARIES)}")
    return getattr(import_module(f"partialsgd.methods.{name}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
