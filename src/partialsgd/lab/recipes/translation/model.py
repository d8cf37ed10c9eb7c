"""The paper's Transformer from `transformers`, new or from a finished run (--start, --teacher).

It is the class of Marian (post-norm) or of MBart (pre-norm)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, MarianConfig, MarianMTModel, MBartConfig, MBartForConditionalGeneration
from transformers.modeling_utils import PreTrainedModel

import partialsgd as ps
from partialsgd.lab.recipes.translation import tokens
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.recipes.translation.tokens import EOS, PAD
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import load_weights
from partialsgd.lab.training.errors import NotThere
from partialsgd.lab.training.recipe_tools import MakeSpec, hash_tensors, hash_texts, nest_model
from partialsgd.nested import Nested
from partialsgd.nested.switch import FULL

if TYPE_CHECKING:
    from tokenizers import Tokenizer


Networks: TypeAlias = Mapping[str, nn.Module]
"""Full networks of earlier runs by the setting that names the run: "start" or "teacher"."""

TOKENIZER = "tokenizer.json"

_MUST_AGREE = {
    "start": ("source", "target", "norm", "layers", "d_model", "ffn", "heads", "tie", "longest"),
    "teacher": ("source", "target"),
}


def build(settings: Translation, vocabulary: int) -> PreTrainedModel:
    """Make a network of the settings' size, initialised as in fairseq."""
    model: PreTrainedModel = (marian if settings.norm == "post" else _mbart)(settings, vocabulary)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # transformers does not annotate it
        num_beams=settings.beam,
        length_penalty=settings.lenpen if settings.beam > 1 else 1.0,
        early_stopping=settings.beam > 1,  # when it has `num_beams` finished hypotheses, as in fairseq
        max_length=settings.longest + 1,  # plus the start token
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=EOS,
    )
    initialise(model)
    return model


def nest(
    plain: nn.Module, settings: Translation, example: Any = None, losses: Sequence[Callable[[], Tensor]] = ()
) -> Nested:
    """Nest the network: in the layers that the paper chose, or with fewer blocks in encoder and decoder."""
    layers = ("*.fc1", "*.fc2", "*.q_proj", "*.k_proj")
    blocks = ("encoder.layers", "decoder.layers")
    specs: dict[str, MakeSpec] = {
        "low-rank": lambda ratios: ps.LowRank(ratios, where=layers, init=settings.init, full=settings.full),
        "width": lambda ratios: ps.Width(ratios, query_key=settings.query_key),
        "depth": lambda ratios: ps.Depth(blocks, keep=ratios),
    }
    return nest_model(plain, settings, specs, seed=settings.seed, example=example, losses=losses)


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
    sides = {"layers": settings.layers, "ffn_dim": settings.ffn, "attention_heads": settings.heads}
    return {
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()},
        "vocab_size": vocabulary,
        "max_position_embeddings": settings.longest,
        "d_model": settings.d_model,
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


def marian(settings: Translation, vocabulary: int) -> PreTrainedModel:
    own_embeddings = {"decoder_vocab_size": vocabulary, "share_encoder_decoder_embeddings": False}
    sizes = {**_sizes(settings, vocabulary), **own_embeddings, "tie_word_embeddings": settings.tie}
    return MarianMTModel(MarianConfig(**sizes))


def _mbart(settings: Translation, vocabulary: int) -> PreTrainedModel:
    """MBart ties all three embeddings or none. Here the encoder has its own, and no unused fourth one is left."""
    model = MBartForConditionalGeneration(MBartConfig(**_sizes(settings, vocabulary), tie_word_embeddings=False))
    model.model.shared = model.model.encoder.embed_tokens
    if settings.tie:
        model.lm_head.weight = model.model.decoder.embed_tokens.weight
    return model


def load_model(run: Run, directory: Path) -> tuple[Nested, Tokenizer]:
    """Load the nested model and the tokenizer of a translation run without reading its corpus."""
    settings: Any = run.settings
    text = run.read_text(TOKENIZER)
    try:
        tokenizer = tokens.from_json(text)
    except Exception as error:  # tokenizers raises nothing more special
        raise ValueError(f"{run.path / TOKENIZER} is not a tokenizer: {error}; restore it from a copy") from error
    network = nest(build(settings, tokenizer.get_vocab_size()), settings)
    return load_weights(network, directory), tokenizer


def load_full_network(option: str, settings: Translation, tokenizer: Tokenizer) -> nn.Module:
    """Load one earlier run. Its tokenizer must be the same, and for --start its sizes too."""
    try:
        run = Run.open(getattr(settings, option))
    except NotThere as error:
        raise NotThere(f"--{option}: {error}") from error
    earlier = run.settings

    def wrong_run(reason: str) -> ValueError:
        return ValueError(f"--{option}: {run.path} {reason}")

    if not isinstance(earlier, Translation):
        raise wrong_run(f"is a run of {earlier.recipe}; give one of {settings.recipe}")
    if run.summary is None:
        resume = f"first run `partialsgd resume {run.path}`"
        raise wrong_run(f"is not finished, and its best weights may still change; {resume}")
    if earlier.alone not in (None, FULL):
        other = "give a run of --nest none, or one that trained all levels"
        raise wrong_run(f"trained only the level {earlier.alone!r}, but its {FULL} network is needed; {other}")
    for name in _MUST_AGREE[option]:
        before, now = getattr(earlier, name), getattr(settings, name)
        if before != now:
            raise wrong_run(f"has {name} {before}, and this training has {name} {now}; use the same, or another run")
    if earlier.longest < settings.longest:
        limit = f"this training's longest {settings.longest}; give --longest {earlier.longest}"
        raise wrong_run(f"has longest {earlier.longest}, which is less than {limit}")
    network, its_tokenizer = load_model(run, run.best)
    if its_tokenizer.to_str() != tokenizer.to_str():
        its, this = (
            f"{each.get_vocab_size():,} tokens, hash {hash_texts(each.to_str())[:8]}"
            for each in (its_tokenizer, tokenizer)
        )
        raise ValueError(
            f"--{option}: the tokenizer of {run.path} ({its}) is not that of these data ({this}); train both with the "
            "same data and --vocabulary"
        )
    return network.extract(FULL).eval()


def weights_hash(network: nn.Module) -> str:
    return hash_tensors(*(tensor for _, tensor in sorted(network.state_dict().items())))
