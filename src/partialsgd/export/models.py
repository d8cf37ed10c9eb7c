"""What a network is: the name of its class, and for Hugging Face models all it takes to build it again."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import torch
from torch import nn

import partialsgd

Said = dict[str, Any]


def describe(model: nn.Module) -> Said:
    """The class for information; of a Hugging Face model the class by name and the configurations."""
    said: Said = {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
    if is_hugging_face(model):
        said["transformers"] = type(model).__name__
        said["config"] = _as_json(model.config)
        generation = getattr(model, "generation_config", None)
        said["generation"] = None if generation is None else _as_json(generation)
    return said


def is_hugging_face(model: nn.Module) -> bool:
    """Whether `transformers` itself has the class: what is the user's own cannot be found by name."""
    config = getattr(model, "config", None)
    has_config = hasattr(config, "to_dict") and hasattr(config, "model_type")
    return has_config and getattr(sys.modules.get("transformers"), type(model).__name__, None) is type(model)


def rebuild(said: Said) -> nn.Module:
    """A fresh network of a class of `transformers`, and of nothing else: a name in a file imports no code."""
    if "transformers" not in said:
        raise ValueError(
            f"the checkpoint is of a {said['class']}, which only its own code can build: "
            "load(directory, model) with a freshly built one, not nested"
        )
    transformers = _transformers(said["transformers"])
    kind = _class(transformers, said["transformers"])
    with torch.random.fork_rng(devices=[]):  # the weights that it draws are overwritten
        model = kind(kind.config_class.from_dict(said["config"]))
    if said["generation"] is not None:
        model.generation_config = transformers.GenerationConfig.from_dict(said["generation"])
    assert isinstance(model, nn.Module)  # a PreTrainedModel is one
    return model


def versions(model: nn.Module) -> dict[str, str]:
    """What wrote a file."""
    said = {"partialsgd": partialsgd.__version__, "torch": str(torch.__version__)}
    return {**said, "transformers": sys.modules["transformers"].__version__} if is_hugging_face(model) else said


def _as_json(config: Any) -> Said:
    """Keys of a dict may be numbers; in a file they are strings, and both readings must be equal."""
    said: Said = json.loads(config.to_json_string(use_diff=False))
    return said


def _class(transformers: Any, name: str) -> Any:
    kind = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise ValueError(
            f"transformers {transformers.__version__} has no model class {name!r}: install the version that "
            "config.json names, or load(directory, model) with a freshly built one"
        )
    return kind


def _transformers(wanted: str) -> Any:
    try:
        return import_module("transformers")
    except ImportError as error:
        raise ImportError(f"to build a {wanted}, transformers is needed: pip install partialsgd[lab]") from error
