"""A run that is over: its whole network, for a new one to start with or to learn from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from torch import nn

from partialsgd.export import files, states
from partialsgd.lab.recipes.translation import model, tokens
from partialsgd.lab.recipes.translation.settings import Translation
from partialsgd.lab.runs import sidecar_files as beside
from partialsgd.lab.runs.run import Run
from partialsgd.lab.training import data_hash as digests
from partialsgd.lab.training.errors import NotThere
from partialsgd.nested import Nested
from partialsgd.nested.switch import FULL

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Option: TypeAlias = Literal["start", "teacher"]
"""The setting that names the run."""
Networks: TypeAlias = Mapping[Option, nn.Module]

NONE: Networks = MappingProxyType({})

_DIRECTION = ("source", "target")
_SIZES = ("norm", "layers", "d_model", "ffn", "heads", "tie", "longest")


def family(run: Run, directory: Path) -> tuple[Nested, Tokenizer]:
    """The network of a translation with the weights of a checkpoint, and its tokenizer. The corpus is not read."""
    settings: Any = run.settings
    tokenizer = tokens.ready((run.path / beside.TOKENIZER).read_text(encoding="utf-8"))
    network = model.family(model.build(settings, tokenizer.get_vocab_size()), settings)
    record, tensors = files.read(directory)
    states.fill(network.model, record["state"], tensors)
    return network, tokenizer


def networks(settings: Translation, tokenizer: Tokenizer) -> Networks:
    """Those that the settings name, each plain, with its best weights; making them draws random numbers."""
    options: tuple[Option, ...] = ("start", "teacher")
    return {option: whole(option, settings, tokenizer) for option in options if getattr(settings, option) is not None}


def whole(option: Option, settings: Translation, tokenizer: Tokenizer) -> nn.Module:
    """It must read and write the pieces that this training has. One to start with must have its sizes too."""
    try:
        run = Run.open(getattr(settings, option))
    except NotThere as error:
        raise NotThere(f"--{option}: {error}") from error
    told = run.settings
    if not isinstance(told, Translation):
        raise ValueError(f"--{option}: {run.path} is a run of {told.recipe}; give one of {settings.recipe}")
    if run.summary is None:
        raise ValueError(
            f"--{option}: {run.path} is not at its end, and its best weights may still change; first "
            f"`partialsgd resume {run.path}`"
        )
    if told.alone not in (None, FULL):
        raise ValueError(
            f"--{option}: {run.path} trained the level {told.alone!r} by itself, and the {FULL} network is needed; "
            "give a run of --nest none, or of a family"
        )
    _require_alike(option, run, told, settings, _DIRECTION + (_SIZES if option == "start" else ()))
    if told.longest < settings.longest:
        raise ValueError(
            f"--{option}: {run.path} has longest {told.longest}, and this training longest {settings.longest}, which "
            f"is too long for it; give --longest {told.longest}"
        )
    network, theirs = family(run, run.best)
    _require_same_tokenizer(option, run, theirs, tokenizer)
    return network.extract(FULL).eval()


def digest(network: nn.Module) -> str:
    """A hash of the weights."""
    return digests.of_tensors(*(tensor for _, tensor in sorted(network.state_dict().items())))


def _require_alike(option: str, run: Run, told: Translation, settings: Translation, names: tuple[str, ...]) -> None:
    for name in names:
        theirs, ours = getattr(told, name), getattr(settings, name)
        if theirs != ours:
            raise ValueError(
                f"--{option}: {run.path} has {name} {theirs}, and this training {name} {ours}; give the same, "
                "or another run"
            )


def _require_same_tokenizer(option: str, run: Run, theirs: Tokenizer, ours: Tokenizer) -> None:
    if theirs.to_str() != ours.to_str():
        one, two = (f"{t.get_vocab_size():,} pieces, hash {digests.of_texts(t.to_str())[:8]}" for t in (theirs, ours))
        raise ValueError(
            f"--{option}: the tokenizer of {run.path} ({one}) is not that of these data ({two}); train both with the "
            "same data and --vocabulary"
        )
