"""Transformers by structure: where the hidden units of the feed-forward networks lie, and query and key."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from partialsgd.nested.layers.kinds import Form, form_of
from partialsgd.nested.planning.groups import Group, Producer
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
_QUERY_KEY = (
    ("query", "key", "attention_head_size"),  # BERT
    ("q_proj", "k_proj", "head_dim"),  # Llama, Marian, ViT
    ("q", "k", "key_value_proj_dim"),  # T5
)


def feed_forward(site: NestPlan) -> list[Group]:
    """The feed-forward networks in layers of `transformers` and of torch.nn."""
    return [group for name, owner in _known_layers(site) for group in _feed_forward_of(site, name, owner)]


def query_key(site: NestPlan) -> list[Group]:
    """Query and key of each head. Rotary embeddings tie a unit to its place, so there the order stays."""
    rotary = any("Rotary" in type(module).__name__ for module in site.modules.values())
    groups = [g for name, owner in _known_layers(site) for g in _query_key_of(site, name, owner, not rotary)]
    packed = [name for name, module in site.modules.items() if isinstance(module, nn.MultiheadAttention)]
    if packed:
        raise ValueError(f"query_key=True: {packed[0]!r} is an nn.MultiheadAttention, whose query and key are packed")
    if not groups:
        raise ValueError(f"query_key=True: no attention of a known structure in {type(site.model).__name__}")
    return groups


def _known_layers(site: NestPlan) -> Iterator[tuple[str, nn.Module]]:
    for name, module in site.modules.items():
        of_torch = isinstance(module, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer))
        if of_torch or type(module).__module__.startswith("transformers."):
            yield name, module


def _feed_forward_of(site: NestPlan, name: str, owner: nn.Module) -> Iterator[Group]:
    for children in _FEED_FORWARD:
        names = [f"{name}.{child}" if name else child for child in children]
        forms = [form_of(site.modules[n]) for n in names if n in site.modules]
        if len(forms) == len(names) and all(isinstance(form, Form) for form in forms):
            *made, taken = [form for form in forms if isinstance(form, Form)]
            if all(form.outputs == taken.inputs for form in made):
                yield Group(taken.inputs, tuple(Producer(n) for n in names[:-1]), (names[-1],))


def _query_key_of(site: NestPlan, name: str, owner: nn.Module, can_be_ordered: bool) -> Iterator[Group]:
    def group(units: int, *producers: Producer) -> Group:
        return Group(units, producers, pads=True, can_be_ordered=can_be_ordered)

    for query, key, width in _QUERY_KEY:
        units = getattr(owner, width, None)
        forms = [form_of(site.modules.get(f"{name}.{child}", owner)) for child in (query, key)]
        if isinstance(units, int) and all(isinstance(form, Form) for form in forms):
            heads = [form.outputs // units for form in forms if isinstance(form, Form)]
            yield group(units, Producer(f"{name}.{query}", heads[0]), Producer(f"{name}.{key}", heads[1]))
    packed = form_of(site.modules.get(f"{name}.c_attn", owner))  # GPT-2: query, key and value in one
    units = getattr(owner, "head_dim", None)
    if isinstance(packed, Form) and isinstance(units, int):
        count = packed.inputs // units
        if packed.outputs == 3 * packed.inputs:
            yield group(units, Producer(f"{name}.c_attn", 2 * count, packed.inputs, stacked=2))
        else:  # attention to another sequence: the query has a layer of its own
            yield group(units, Producer(f"{name}.q_attn", count), Producer(f"{name}.c_attn", count, packed.inputs))
