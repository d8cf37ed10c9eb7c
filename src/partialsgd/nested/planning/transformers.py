"""Hidden units of known Transformer layers: of their feed-forward networks, and of query and key."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from partialsgd.nested.layers.linear_maps import LinearMap, linear_map_of
from partialsgd.nested.planning.groups import Producer, UnitGroup
from partialsgd.nested.planning.nest_plan import NestPlan

# The children of a layer: all but the last make the hidden units (gated networks have two such), the last takes them.
_FEED_FORWARD = (
    ("intermediate.dense", "output.dense"),  # BERT
    ("c_fc", "c_proj"),  # GPT-2
    ("gate_proj", "up_proj", "down_proj"),  # Llama
    ("wi", "wo"),  # T5
    ("wi_0", "wi_1", "wo"),  # T5, gated
    ("fc1", "fc2"),  # Marian, ViT
    ("linear1", "linear2"),  # torch.nn
)
# Query, key, and the attribute of their owner that holds the width of a head.
_QUERY_KEY = (
    ("query", "key", "attention_head_size"),  # BERT
    ("q_proj", "k_proj", "head_dim"),  # Llama, Marian, ViT
    ("q", "k", "key_value_proj_dim"),  # T5
)


def feed_forward_groups(plan: NestPlan) -> list[UnitGroup]:
    """Return the hidden units of feed-forward networks in layers of `transformers` and `torch.nn`."""
    return [group for name in _known_layers(plan) for group in _feed_forward_of(plan, name)]


def query_key_groups(plan: NestPlan) -> list[UnitGroup]:
    """Return the units of query and key; under rotary embeddings their order is fixed."""
    is_rotary = any("Rotary" in type(module).__name__ for module in plan.modules.values())
    groups = [group for name in _known_layers(plan) for group in _query_key_of(plan, name, not is_rotary)]
    packed = [name for name, module in plan.modules.items() if isinstance(module, nn.MultiheadAttention)]
    if packed:
        raise ValueError(
            f"query_key=True: {packed[0]!r} is an nn.MultiheadAttention, whose query and key are packed in one tensor"
        )
    if not groups:
        raise ValueError(f"query_key=True: {type(plan.model).__name__} has no attention of a known structure")
    return groups


def _known_layers(plan: NestPlan) -> Iterator[str]:
    for name, module in plan.modules.items():
        is_torch_layer = isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
        if is_torch_layer or type(module).__module__.startswith("transformers."):
            yield name


def _linear_map(plan: NestPlan, name: str) -> LinearMap | None:
    linear = linear_map_of(plan.modules[name]) if name in plan.modules else None
    return linear if isinstance(linear, LinearMap) else None


def _feed_forward_of(plan: NestPlan, owner: str) -> Iterator[UnitGroup]:
    for children in _FEED_FORWARD:
        names = [f"{owner}.{child}" if owner else child for child in children]
        linear_maps = [linear for name in names if (linear := _linear_map(plan, name)) is not None]
        if len(linear_maps) == len(names):
            *makers, taker = linear_maps
            if all(maker.outputs == taker.inputs for maker in makers):
                yield UnitGroup(taker.inputs, tuple(Producer(name) for name in names[:-1]), (names[-1],))


def _query_key_of(plan: NestPlan, owner: str, can_be_ordered: bool) -> Iterator[UnitGroup]:
    def group(units: int, *producers: Producer) -> UnitGroup:
        return UnitGroup(units, producers, pads=True, can_be_ordered=can_be_ordered)

    for query_name, key_name, width in _QUERY_KEY:
        units = getattr(plan.modules[owner], width, None)
        query, key = _linear_map(plan, f"{owner}.{query_name}"), _linear_map(plan, f"{owner}.{key_name}")
        if isinstance(units, int) and query is not None and key is not None:
            heads = query.outputs // units, key.outputs // units
            yield group(units, Producer(f"{owner}.{query_name}", heads[0]), Producer(f"{owner}.{key_name}", heads[1]))
    packed = _linear_map(plan, f"{owner}.c_attn")  # GPT-2 packs query, key and value
    units = getattr(plan.modules[owner], "head_dim", None)
    if packed is not None and isinstance(units, int):
        count = packed.inputs // units
        if packed.outputs == 3 * packed.inputs:
            yield group(units, Producer(f"{owner}.c_attn", 2 * count, packed.inputs, stacked=2))
        else:  # cross-attention has a separate layer for the query
            yield group(units, Producer(f"{owner}.q_attn", count), Producer(f"{owner}.c_attn", count, packed.inputs))
