"""The description of a model in config.json, and levels as Hugging Face models that `from_pretrained` reads."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import partialsgd
from partialsgd._util.extras import missing
from partialsgd.export import states, untrusted_config
from partialsgd.nested.extract.hf_config import Unsaveable, first_change

Description = dict[str, Any]


def describe(model: nn.Module) -> Description:
    """Return the class of a model, and for a Hugging Face model also its configs, from which it can be rebuilt."""
    description: Description = {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
    if is_hugging_face(model):
        description["transformers"] = type(model).__name__
        description["config"] = _config_as_json(model.config)
        generation = getattr(model, "generation_config", None)
        description["generation"] = None if generation is None else _config_as_json(generation)
    return description


def is_hugging_face(model: nn.Module) -> bool:
    """True if `transformers` itself has the class; a user's subclass cannot be found by its name."""
    config = getattr(model, "config", None)
    has_config = hasattr(config, "to_dict") and hasattr(config, "model_type")
    return has_config and getattr(sys.modules.get("transformers"), type(model).__name__, None) is type(model)


def rebuild(description: Description, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Build a fresh model of a class of `transformers`, and of nothing else: a name in a file imports no code.

    What the config says about code is ignored, and sizes beyond those of the saved tensors are refused.
    """
    name = description.get("transformers")
    if name is None:
        raise ValueError(
            f"the checkpoint holds a {description['class']}, which only its own code can build: "
            "load(directory, model) with a freshly built one, not nested"
        )
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise missing(f"to build a {name}, transformers is needed", "lab") from error
    model_class = getattr(transformers, name, None)
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise ValueError(
            f"transformers {transformers.__version__} has no model class {name!r}: install the version that "
            "config.json names, or load(directory, model) with a freshly built one"
        )
    config, generation = (untrusted_config.without_code(description[key]) for key in ("config", "generation"))

    def build() -> nn.Module:
        untyped: Any = model_class
        model: nn.Module = untyped(untyped.config_class.from_dict(copy.deepcopy(config)))
        return model

    untrusted_config.require_fitting(config, build, tensors)
    with torch.random.fork_rng(devices=[]):  # the weights that it draws are overwritten
        model = build()
    if generation is not None:
        model.generation_config = transformers.GenerationConfig.from_dict(generation)
    return model


def versions(model: nn.Module) -> dict[str, str]:
    """Return the versions of the packages that write a file."""
    own = {"partialsgd": partialsgd.__version__, "torch": str(torch.__version__)}
    return {**own, "transformers": sys.modules["transformers"].__version__} if is_hugging_face(model) else own


def require_same_class(extracted: nn.Module, level: str) -> None:
    """Refuse a level that is not again a model of its own Hugging Face class."""
    save = getattr(extracted, "save_pretrained", None)
    if save is None or isinstance(save, Unsaveable):
        reason = f"{type(extracted).__name__} is not a Hugging Face model" if save is None else save.reason
        raise ValueError(
            f'the level {level!r} cannot be loaded by from_pretrained: {reason}; use format="safetensors" or "onnx", '
            'or for layers of low rank "transformers_low_rank"'
        )


def save_pretrained(extracted: Any, directory: Path) -> None:
    """Save the model and compare it with what `from_pretrained` reads: some classes do not store all weights."""
    copies = _untied_state_dict(extracted)
    extracted.save_pretrained(directory, **({"state_dict": copies} if copies else {}))
    with torch.random.fork_rng(devices=[]):
        loaded = type(extracted).from_pretrained(directory, dtype=extracted.dtype).state_dict()
    if (name := first_change(extracted.state_dict(), loaded)) is not None:
        raise ValueError(
            f"{name!r} changes by save_pretrained and from_pretrained: {type(extracted).__name__} does not store "
            'it, or computes it itself; use format="safetensors"'
        )


def _untied_state_dict(extracted: Any) -> dict[str, Tensor] | None:
    """Return the state dict with copies of tensors that the class does not tie itself, or None if there are none."""
    tied_by_class = getattr(extracted, "all_tied_weights_keys", None)
    if tied_by_class is None:
        return None
    ties = states.find_ties(extracted.state_dict(keep_vars=True))
    names = set(ties) - set(tied_by_class) - set(tied_by_class.values())
    return {n: t.clone() if n in names else t for n, t in extracted.state_dict().items()} if names else None


def _config_as_json(config: Any) -> Description:
    """Return a config as JSON gives it back: keys that are numbers become strings."""
    description: Description = json.loads(config.to_json_string(use_diff=False))
    return description
