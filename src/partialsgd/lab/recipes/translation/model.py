"""The paper's Transformer from `transformers`: the class of Marian (post-norm) or of MBart (pre-norm)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MBartConfig, MBartForConditionalGeneration
from transformers.modeling_utils import PreTrainedModel

import partialsgd as ps
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.recipes.translation.tokens import EOS, PAD
from partialsgd.lab.training.recipe_tools import MakeSpec, nest_model
from partialsgd.nested import Nested


def build(settings: Translation, vocabulary: int) -> PreTrainedModel:
    """Make a network of the settings' size, initialised as in fairseq."""
    model: PreTrainedModel = _marian(settings, vocabulary) if settings.norm == "post" else _mbart(settings, vocabulary)
    model.generation_config = _generation(settings)
    initialise(model)
    return model


def nest(plain: nn.Module, settings: Translation) -> Nested:
    """Nest the network: in the layers that the paper chose, or with fewer blocks in encoder and decoder."""
    layers = ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj")
    blocks = ("encoder.layers", "decoder.layers")
    specs: dict[str, MakeSpec] = {
        "low-rank": lambda ratios: ps.LowRank(ratios, where=layers, init=settings.init),
        "width": lambda ratios: ps.Width(ratios, query_key=True),
        "depth": lambda ratios: ps.Depth(blocks, keep=ratios),
    }
    return nest_model(plain, settings, specs, seed=settings.seed)


@torch.no_grad()
def initialise(model: PreTrainedModel) -> None:
    """Initialise linear layers by Xavier (1/√2 of it for query, key, value), embeddings by N(0, 1/d), biases by 0."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            gain = 1 / math.sqrt(2) if name.endswith(("q_proj", "k_proj", "v_proj")) else 1.0
            nn.init.xavier_uniform_(module.weight, gain)
            nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.Embedding, nn.Linear)) and module.weight.requires_grad:
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
            if getattr(module, "padding_idx", None) is not None:
                module.weight[PAD] = 0


def _sizes(settings: Translation, vocabulary: int) -> dict[str, Any]:
    return {
        "vocab_size": vocabulary,
        "max_position_embeddings": settings.longest,
        "d_model": settings.d_model,
        "encoder_layers": settings.layers,
        "decoder_layers": settings.layers,
        "encoder_ffn_dim": settings.ffn,
        "decoder_ffn_dim": settings.ffn,
        "encoder_attention_heads": settings.heads,
        "decoder_attention_heads": settings.heads,
        "dropout": settings.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "activation_function": "relu",
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": EOS,
        "decoder_start_token_id": EOS,
        "forced_eos_token_id": None,
    }


def _marian(settings: Translation, vocabulary: int) -> PreTrainedModel:
    config = MarianConfig(
        **_sizes(settings, vocabulary),
        decoder_vocab_size=vocabulary,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=settings.tie,
    )
    return MarianMTModel(config)


def _mbart(settings: Translation, vocabulary: int) -> PreTrainedModel:
    """MBart ties all three embeddings or none. Here the encoder has its own, and no unused fourth one is left."""
    model = MBartForConditionalGeneration(MBartConfig(**_sizes(settings, vocabulary), tie_word_embeddings=False))
    model.model.shared = model.model.encoder.embed_tokens
    if settings.tie:
        model.lm_head.weight = model.model.decoder.embed_tokens.weight
    return model


def _generation(settings: Translation) -> GenerationConfig:
    """A beam search that ends when it has `num_beams` finished hypotheses, as in fairseq."""
    return GenerationConfig(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        num_beams=settings.beam,
        length_penalty=settings.lenpen if settings.beam > 1 else 1.0,
        early_stopping=settings.beam > 1,
        max_length=settings.longest + 1,  # plus the start token
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )
