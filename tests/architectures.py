"""Architectures of `transformers`, built small from their configs, and what each spec does with them.

`python -m tests.architectures` tries all and stores the results, with names those alone; `--docs` writes them into
docs/nested.md.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from partialsgd import Depth, LowRank, Width, nest

# What a small network has, in whatever field of a config holds it.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "char_vocab_size", "entity_vocab_size"), 60),
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "d_embed", "emb_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("projection_dim", "entity_emb_size", "embedding_size", "encoder_hidden_size", "conv_dim_out"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "num_hidden_groups", "num_block_records"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads",), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "multi_query_group_num"), 2),
    **dict.fromkeys(("intermediate_size", "d_ff", "n_inner", "hidden_dim", "ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "d_inner", "ffn_hidden_size", "shared_expert_intermediate_size"), 48),
    **dict.fromkeys(("moe_intermediate_size", "ffn_expert_dim"), 24),
    **dict.fromkeys(("d_kv", "head_dim", "d_head", "attention_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_source_positions"), 64),
    **dict.fromkeys(("max_target_positions",), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_top_k", "moe_topk"), 2),
    **dict.fromkeys(("pad_token_id", "bos_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id", "decoder_start_token_id", "forced_eos_token_id"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    "image_size": 32,
    "patch_size": 8,
    "layerdrop": 0.0,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "resnet": dict(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 1, 1]),
    "regnet": dict(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 1, 1], groups_width=4),
    "convnext": dict(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 1, 1], patch_size=4),
    "convnextv2": dict(hidden_sizes=[8, 16, 24, 32], depths=[2, 2, 1, 1], patch_size=4),
    "swin": dict(embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=2, image_size=32),
    "swinv2": dict(embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=2, image_size=32),
    "segformer": dict(
        hidden_sizes=[8, 16, 24, 32], depths=[2, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], patch_sizes=[7, 3, 3, 3],
    ),
    "pvt": dict(hidden_sizes=[8, 16, 24, 32], depths=[2, 1, 1, 1], num_attention_heads=[1, 2, 2, 4], image_size=64),
    "poolformer": dict(hidden_sizes=[8, 16, 24, 32], depths=[2, 1, 1, 1], patch_size=7),
    "mobilenet_v2": dict(depth_multiplier=0.35, image_size=32),
    "mobilenet_v1": dict(depth_multiplier=0.25, image_size=32),
    "efficientnet": dict(width_coefficient=0.25, depth_coefficient=0.5, hidden_dim=320, image_size=32),
    "mobilevit": dict(
        hidden_sizes=[16, 24, 32], neck_hidden_sizes=[8, 8, 16, 16, 24, 32, 48], patch_size=2, image_size=64,
    ),
    "levit": dict(
        image_size=64, hidden_sizes=[16, 24, 32], num_attention_heads=[2, 2, 4], depths=[2, 1, 1], key_dim=[8, 8, 8],
    ),
    "cvt": dict(embed_dim=[8, 16, 32], num_heads=[1, 2, 4], depth=[1, 1, 2]),
    "focalnet": dict(
        embed_dim=8, depths=[1, 2], focal_levels=[1, 1], focal_windows=[3, 3], patch_size=4, hidden_sizes=[8, 16],
    ),
    **{name: dict(
        conv_dim=(16, 16), conv_stride=(5, 4), conv_kernel=(10, 4), num_feat_extract_layers=2,
        num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
    ) for name in ("wav2vec2", "hubert", "wavlm")},
    "deepseek_v3": dict(num_key_value_heads=4),
    "nemotron": dict(num_key_value_heads=2),
    "gptj": dict(rotary_dim=4),
    "codegen": dict(rotary_dim=4),
    "esm": dict(vocab_size=60, pad_token_id=0, mask_token_id=2, token_dropout=False),
    "siglip": dict(projection_size=32),
    "whisper": dict(num_mel_bins=16, max_source_positions=20),
    "albert": dict(embedding_size=16, num_hidden_groups=1),
    "electra": dict(embedding_size=16),
    "mamba": dict(state_size=4, expand=2, time_step_rank=4),
    "falcon": dict(new_decoder_architecture=False, multi_query=True),
    "gpt_neo": dict(attention_types=[[["global", "local"], 1]], window_size=4),
    "longformer": dict(attention_window=[4, 4], type_vocab_size=1),
    "big_bird": dict(block_size=4, num_random_blocks=1, attention_type="original_full"),
    "deberta-v2": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8),
    "xlnet": dict(d_inner=48),
    "mpt": dict(n_heads=4, expansion_ratio=2, max_seq_len=64),
    "dbrx": dict(attn_config=dict(kv_n_heads=2), ffn_config=dict(ffn_hidden_size=24, moe_num_experts=4, moe_top_k=2)),
}  # fmt: skip
AXES = ("LowRank", "Width", "Depth")
FIRST = (
    *("bert", "roberta", "distilbert", "albert", "electra", "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom"),
    *("llama", "mistral", "qwen2", "qwen3", "gemma2", "phi", "phi3", "falcon", "mpt", "mixtral", "qwen3_moe", "mamba"),
    *("t5", "mt5", "bart", "marian", "pegasus", "vit", "deit", "dinov2", "beit", "swin", "segformer", "convnext"),
    *("resnet", "mobilenet_v2", "efficientnet", "wav2vec2", "whisper", "clip"),
)
"""The architectures that the code was written with."""
LATER = (
    *("biogpt", "blenderbot", "camembert", "codegen", "cohere", "ctrl", "deberta-v2", "data2vec-text", "ernie", "esm"),
    *("exaone4", "fnet", "gemma", "glm4", "gpt_bigcode", "granite", "gpt_oss", "m2m_100", "megatron-bert"),
    *("modernbert", "olmo2", "olmoe", "openai-gpt", "regnet", "roformer", "siglip", "stablelm", "starcoder2", "swinv2"),
    *("xglm",),
)
"""Architectures that were tried once, after the code was finished."""
LAST = ("deepseek_v3", "ijepa", "mbart", "nemotron", "olmo", "persimmon", "qwen2_moe", "rembert", "squeezebert", "umt5")
"""Architectures that were tried once, after concatenations, splits and groups were added."""


def build(name: str) -> nn.Module:
    """A small model of a type of `transformers`, from the seed 0."""
    import transformers

    config = _shrunk(transformers.AutoConfig.for_model(name), OWN.get(name, {}))
    torch.manual_seed(0)
    model: nn.Module = transformers.AutoModel.from_config(config)
    return model


def _shrunk(config: Any, own: dict[str, Any]) -> Any:
    fields = {**SMALL, **own}
    names = {*vars(config), *getattr(config, "attribute_map", {})}
    for name in names:
        value = getattr(config, name, None)
        if hasattr(value, "to_dict"):
            _shrunk(value, own)
        elif name in fields and (name in own or (isinstance(value, int) and not isinstance(value, bool))):
            setattr(config, name, fields[name])
        elif "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
        elif name == "layer_types" and value:
            setattr(config, name, list(value)[:2])
    config.use_cache = False
    return config


def block_list(model: nn.Module) -> str | None:
    """The first list of blocks of one class."""
    for name, module in model.named_modules():
        blocks = list(module.children())
        is_list = type(module) in (nn.ModuleList, nn.Sequential)
        if is_list and len(blocks) > 1 and len({type(block) for block in blocks}) == 1 and list(blocks[0].children()):
            return name
    return None


def outcome(name: str, axis: str) -> tuple[str, str]:
    """("ok", a description) or ("refused", the reason) or ("failed", the error) for one architecture and axis."""
    model = build(name).eval()
    layers = block_list(model)
    if axis == "Depth" and layers is None:
        return "refused", "it has no list of blocks of one class"
    spec = {"LowRank": LowRank(1 / 4), "Width": Width(1 / 2), "Depth": Depth(layers or "", keep=1)}[axis]
    try:
        nested = nest(model, spec)
    except ValueError as error:
        return "refused", str(error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            small = nested.extract("core")
            nested.extract("full")
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"
    assert sum(p.numel() for p in small.parameters()) == nested.size("core")
    share = nested.size("core") / nested.size("full")
    return "ok", f"{share:.0%}"


def table(names: tuple[str, ...]) -> dict[str, dict[str, tuple[str, str]]]:
    results: dict[str, dict[str, tuple[str, str]]] = {}
    for name in names:
        results[name] = {}
        for axis in AXES:
            start = time.perf_counter()
            try:
                result = outcome(name, axis)
            except Exception as error:
                result = "failed", f"{type(error).__name__}: {error}"
            results[name][axis] = result
            print(
                f"{name:16} {axis:8} {result[0]:8} {time.perf_counter() - start:5.1f} s  {result[1][:300]}", flush=True
            )
    return results


STORED = Path(__file__).with_name("architectures.json")
PAGE = Path(__file__).parents[1] / "docs" / "nested.md"
BEGIN, END = "<!-- architectures: python -m tests.architectures --docs -->", "<!-- end -->"


def page() -> str:
    """The results that are stored, as a table for each set of architectures."""
    stored = json.loads(STORED.read_text())
    lines = []
    for title, names in (
        ("written with", FIRST),
        ("tried on once, when it was finished", LATER),
        ("tried on once, when it also followed concatenations, splits and groups", LAST),
    ):
        counts = {axis: [stored[name][axis][0] for name in names].count("ok") for axis in AXES}
        shown = ", ".join(f"{axis} {count}" for axis, count in counts.items())
        lines += [
            f"Of {len(names)} architectures that the code was {title}, so many are nested and extracted: {shown}.",
            "",
        ]
        others = [(name, axis, stored[name][axis]) for name in names for axis in AXES if stored[name][axis][0] != "ok"]
        if others:
            lines += ["| architecture | spec | outcome |", "| --- | --- | --- |"]
            lines += [f"| {name} | {axis} | {status}: {_plain(reason)} |" for name, axis, (status, reason) in others]
            lines.append("")
        lines += [f"All of them: {', '.join(names)}.", ""]
    return "\n".join(lines)


def _plain(reason: str) -> str:
    words = " ".join(reason.replace("|", "/").split())
    return words if len(words) < 200 else words[:200] + " …"


def main(arguments: list[str]) -> None:
    """Try the architectures that are named, or all; store the results, or write them into the docs."""
    if arguments == ["--docs"]:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{page()}\n{END}{rest.split(END, 1)[1]}")
        return
    results = table(tuple(arguments) or (*FIRST, *LATER, *LAST))
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    STORED.write_text(json.dumps({**stored, **results}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
