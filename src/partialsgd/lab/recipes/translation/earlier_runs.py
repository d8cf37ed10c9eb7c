"""Finished runs whose full network a new run starts from (--start) or learns from (--teacher)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from partialsgd.lab.recipes.translation import model, tokens
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs.run import Run
from partialsgd.lab.runs.use_run import load_weights
from partialsgd.lab.training.errors import NotThere
from partialsgd.lab.training.recipe_tools import hash_tensors, hash_texts
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


def load_model(run: Run, directory: Path) -> tuple[Nested, Tokenizer]:
    """Load the nested model and the tokenizer of a translation run without reading its corpus."""
    settings: Any = run.settings
    tokenizer = tokens.from_json((run.path / TOKENIZER).read_text(encoding="utf-8"))
    network = model.nest(model.build(settings, tokenizer.get_vocab_size()), settings)
    load_weights(network, directory)
    return network, tokenizer


def load_networks(settings: Translation, tokenizer: Tokenizer) -> Networks:
    """Load the runs that the settings name. This draws random numbers: seed the generator afterwards."""
    options = [option for option in settings.earlier_runs if getattr(settings, option) is not None]
    return {option: load_full_network(option, settings, tokenizer) for option in options}


def load_full_network(option: str, settings: Translation, tokenizer: Tokenizer) -> nn.Module:
    """Load one earlier run. Its tokenizer must be the same, and for --start its sizes too."""
    try:
        run = Run.open(getattr(settings, option))
    except NotThere as error:
        raise NotThere(f"--{option}: {error}") from error
    earlier = run.settings
    if not isinstance(earlier, Translation):
        raise ValueError(f"--{option}: {run.path} is a run of {earlier.recipe}; give one of {settings.recipe}")
    if run.summary is None:
        raise ValueError(
            f"--{option}: {run.path} is not finished, and its best weights may still change; first run "
            f"`partialsgd resume {run.path}`"
        )
    if earlier.alone not in (None, FULL):
        raise ValueError(
            f"--{option}: {run.path} trained only the level {earlier.alone!r}, but its {FULL} network is needed; give "
            "a run of --nest none, or one that trained all levels"
        )
    for name in _MUST_AGREE[option]:
        if getattr(earlier, name) != getattr(settings, name):
            raise ValueError(
                f"--{option}: {run.path} has {name} {getattr(earlier, name)}, and this training has {name} "
                f"{getattr(settings, name)}; use the same, or another run"
            )
    if earlier.longest < settings.longest:
        raise ValueError(
            f"--{option}: {run.path} has longest {earlier.longest}, which is less than this training's longest "
            f"{settings.longest}; give --longest {earlier.longest}"
        )
    network, its_tokenizer = load_model(run, run.best)
    _require_same_tokenizer(option, run, its_tokenizer, tokenizer)
    return network.extract(FULL).eval()


def weights_hash(network: nn.Module) -> str:
    return hash_tensors(*(tensor for _, tensor in sorted(network.state_dict().items())))


def _require_same_tokenizer(option: str, run: Run, first: Tokenizer, second: Tokenizer) -> None:
    if first.to_str() != second.to_str():
        one, two = (
            f"{tokenizer.get_vocab_size():,} tokens, hash {hash_texts(tokenizer.to_str())[:8]}"
            for tokenizer in (first, second)
        )
        raise ValueError(
            f"--{option}: the tokenizer of {run.path} ({one}) is not that of these data ({two}); train both with the "
            "same data and --vocabulary"
        )
