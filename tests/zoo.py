"""Networks to nest: an MLP, ResNet-18, torch's Transformer and tiny configurations of six Hugging Face families."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from partialsgd import Depth, LayerSum, LowRank, Width
from partialsgd.lab.recipes.images.resnet import resnet18

TOKENS = 50


@dataclass(frozen=True)
class Network:
    """A way to build a network, inputs for it, and the names that specs need."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], dict[str, Any]]
    low_rank: tuple[str, ...]
    lists: tuple[str, ...] = ()
    is_pre_norm: bool = True
    has_norms: bool = False
    query_key: bool = False
    sums: str = ""


def mlp() -> nn.Module:
    layers = [nn.Linear(6, 9), nn.Sigmoid(), nn.Linear(9, 7), nn.BatchNorm1d(7), nn.ReLU(), nn.Linear(7, 3)]
    return nn.Sequential(*layers)


def encoder(*, norm_first: bool = True) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)


_BERT: dict[str, Any] = dict(
    hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=25, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)  # fmt: skip
_LLAMA: dict[str, Any] = dict(
    vocab_size=TOKENS, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    intermediate_size=25,
)  # fmt: skip
_MARIAN: dict[str, Any] = dict(
    vocab_size=TOKENS, d_model=16, encoder_layers=3, decoder_layers=3, encoder_ffn_dim=25, decoder_ffn_dim=21,
    encoder_attention_heads=2, decoder_attention_heads=2, dropout=0.0, pad_token_id=1, eos_token_id=0,
    decoder_start_token_id=1, forced_eos_token_id=None, max_position_embeddings=32,
)  # fmt: skip
_ENDS: dict[str, Any] = dict(bos_token_id=0, eos_token_id=1, pad_token_id=0)
_OPT: dict[str, Any] = dict(
    vocab_size=TOKENS, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=32, **_ENDS
)  # fmt: skip
HUGGING_FACE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForSequenceClassification", dict(vocab_size=TOKENS, **_BERT)),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", dict(
        vocab_size=TOKENS, n_embd=16, n_layer=3, n_head=2, n_positions=32, n_inner=25, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=0, eos_token_id=1,
    )),
    "llama": ("LlamaConfig", "LlamaForCausalLM", _LLAMA),
    "t5": ("T5Config", "T5ForConditionalGeneration", dict(
        vocab_size=TOKENS, d_model=16, d_kv=6, d_ff=25, num_layers=3, num_decoder_layers=3, num_heads=2,
        dropout_rate=0.0, feed_forward_proj="relu", decoder_start_token_id=0,
    )),
    "marian": ("MarianConfig", "MarianMTModel", _MARIAN),
    "vit": ("ViTConfig", "ViTForImageClassification", dict(image_size=8, patch_size=4, **_BERT)),
    # The following are only saved and loaded.
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", dict(vocab_size=TOKENS, **_BERT)),
    "electra": ("ElectraConfig", "ElectraForTokenClassification", dict(vocab_size=TOKENS, embedding_size=8, **_BERT)),
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM", dict(
        vocab_size=TOKENS, dim=16, n_layers=3, n_heads=2, hidden_dim=25,
    )),
    "gpt_neo": ("GPTNeoConfig", "GPTNeoForCausalLM", dict(
        vocab_size=TOKENS, hidden_size=16, num_layers=4, num_heads=2, intermediate_size=25, window_size=4,
        attention_types=[[["global", "local"], 2]], max_position_embeddings=32, **_ENDS,
    )),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", dict(intermediate_size=25, **_OPT)),
    "opt": ("OPTConfig", "OPTForCausalLM", dict(ffn_dim=25, word_embed_proj_dim=16, **_OPT)),
    "bloom": ("BloomConfig", "BloomForCausalLM", dict(vocab_size=TOKENS, hidden_size=16, n_layer=3, n_head=2, **_ENDS)),
    "mistral": ("MistralConfig", "MistralForCausalLM", _LLAMA),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", dict(head_dim=4, **_LLAMA)),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", dict(head_dim=4, sliding_window=4, **_LLAMA)),
    "phi": ("PhiConfig", "PhiForCausalLM", {**_LLAMA, "num_key_value_heads": 4, **_ENDS}),
    "bart": ("BartConfig", "BartForConditionalGeneration", _MARIAN),
    "deit": ("DeiTConfig", "DeiTForImageClassification", dict(image_size=8, patch_size=4, **_BERT)),
    "dinov2": ("Dinov2Config", "Dinov2ForImageClassification", dict(
        image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=3, num_attention_heads=2, mlp_ratio=2,
    )),
}  # fmt: skip


def hugging_face(name: str, **settings: Any) -> nn.Module:
    """A tiny model of a Hugging Face family, with some settings of its config changed."""
    import transformers

    config_class, model_class, known = HUGGING_FACE[name]
    model: nn.Module = getattr(transformers, model_class)(getattr(transformers, config_class)(**{**known, **settings}))
    return model


bert, gpt2, llama = (partial(hugging_face, name) for name in ("bert", "gpt2", "llama"))
t5, marian, vit = (partial(hugging_face, name) for name in ("t5", "marian", "vit"))


def conv1d(outputs: int, inputs: int) -> nn.Module:
    """Hugging Face's linear layer with a transposed weight, here with larger weights than it starts with."""
    from transformers.pytorch_utils import Conv1D

    layer = Conv1D(outputs, inputs)
    nn.init.normal_(layer.weight, std=0.3)
    nn.init.normal_(layer.bias)
    return layer


def tokens(rows: int) -> torch.Tensor:
    return torch.randint(2, TOKENS, (rows, 7), generator=torch.Generator().manual_seed(rows))


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]), dtype=torch.float64)


def _ids(rows: int) -> dict[str, Any]:
    return {"input_ids": tokens(rows)}


def _pairs(rows: int) -> dict[str, Any]:
    return {"input_ids": tokens(rows), "decoder_input_ids": tokens(rows).flip(1)[:, :5]}


ZOO = {
    "mlp": Network(mlp, lambda n: {"input": normal(n, 6)}, ("0", "2"), sums="2", has_norms=True),
    "resnet18": Network(
        lambda: resnet18(width=4),
        lambda n: {"images": normal(n, 3, 8, 8)},
        ("stages.*.conv1", "stages.*.conv2"),
        has_norms=True,
        sums="stages.1.0.conv1",
    ),
    "encoder": Network(
        encoder, lambda n: {"src": normal(n, 5, 8)}, ("*.linear1", "*.linear2"), ("layers",), sums="*.linear1"
    ),
    "post_norm_encoder": Network(
        lambda: encoder(norm_first=False),
        lambda n: {"src": normal(n, 5, 8)},
        ("*.linear1", "*.linear2"),
        ("layers",),
        is_pre_norm=False,
        sums="*.linear1",
    ),
    "bert": Network(
        bert,
        _ids,
        ("*.query", "*.key", "intermediate.dense"),
        ("encoder.layer",),
        is_pre_norm=False,
        query_key=True,
        sums="*.intermediate.dense",
    ),
    "gpt2": Network(gpt2, _ids, ("*.c_attn", "*.c_fc"), ("transformer.h",), query_key=True, sums="*.c_fc"),
    "llama": Network(
        llama, _ids, ("*.q_proj", "*.k_proj", "*.down_proj"), ("model.layers",), query_key=True, sums="*.o_proj"
    ),
    "t5": Network(t5, _pairs, ("*.wi", "*.wo", "*.q"), ("encoder.block", "decoder.block"), query_key=True, sums="*.wo"),
    "t5_gated": Network(
        partial(t5, feed_forward_proj="gated-gelu"), _pairs, ("*.wi_0", "*.wi_1", "*.wo"), query_key=True, sums="*.wo"
    ),
    "marian": Network(
        marian,
        _pairs,
        ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj"),
        ("encoder.layers", "decoder.layers"),
        is_pre_norm=False,
        query_key=True,
        sums="*.fc1",
    ),
    "vit": Network(
        vit,
        lambda n: {"pixel_values": normal(n, 3, 8, 8)},
        ("*.fc1", "projection"),
        ("layers",),
        query_key=True,
        sums="*.fc2",
    ),
}


def again(layer: nn.Module) -> nn.Module:
    """A layer of the same signature, of another start."""
    other = copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-0.5).add_(0.01)
    return other


def specs_for(network: Network) -> dict[str, dict[str, Any]]:
    """Every kind of nesting that the network allows, as arguments of `nest`."""
    low = network.low_rank
    kinds: dict[str, dict[str, Any]] = {
        "low_rank": {"spec": LowRank(1 / 4, where=low)},
        "low_rank_matched": {"spec": LowRank(1 / 4, where=low, init="matched")},
        "low_rank_zero": {"spec": LowRank(1 / 4, where=low, init="zero")},
        "ranks": {"spec": LowRank((1 / 8, 1 / 2), where=low)},
        "ranks_own": {"spec": LowRank((1 / 8, 1 / 2), where=low, full="own")},
        "width": {"spec": Width(1 / 2), "norms": "shared"},
        "widths": {"spec": Width((1 / 4, 1 / 2), order="norm"), "norms": "shared"},
        "layer_sum_old": {"spec": LayerSum(network.sums, again)},
        "layer_sum_new": {"spec": LayerSum(network.sums, again, core="new")},
    }
    if network.has_norms:
        kinds |= {
            "width_separate": {"spec": Width(1 / 2)},
            "widths_separate": {"spec": Width((1 / 4, 1 / 2), order="norm")},
        }
    if network.query_key:
        kinds["query_key"] = {"spec": Width((1 / 4, 1 / 2), query_key=True, order="norm")}
    if network.lists:
        kinds["depth"] = {"spec": Depth(network.lists, keep=1)}
        kinds["depth_even"] = {"spec": Depth(network.lists, keep=2, pick="even")}
        kinds["depth_and_rank"] = {
            "levels": {
                "small": [Depth(network.lists, keep=2), LowRank(1 / 8, where=low)],
                "medium": [LowRank(1 / 2, where=low)],
            }
        }
        kinds["depth_and_width"] = {
            "levels": {"small": [Depth(network.lists, keep=2), Width(1 / 4)], "medium": [Width(1 / 2)]}
        }
    return kinds


CASES = [(name, kind) for name, network in ZOO.items() for kind in specs_for(network)]
