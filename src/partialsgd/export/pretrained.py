"""A level as a model of its own Hugging Face class, which `from_pretrained` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from partialsgd.export import models, states
from partialsgd.nested.extract.hf_config import fit_config
from partialsgd.nested.switch import FULL


def require_native(plain: nn.Module, level: str) -> None:
    reason = fit_config(plain)
    # The full level is the model's own class, also of families whose sizes we cannot put into a configuration.
    if reason is not None and not (level == FULL and models.is_hugging_face(plain)):
        raise ValueError(
            f'the level {level!r} cannot be loaded by from_pretrained: {reason}; use format="safetensors" or "onnx"'
        )


def write(plain: Any, stage: Path) -> None:
    """Read it back too: some classes do not store weights that they make themselves, as they were at the start."""
    apart = _tied_by_hand(plain)
    plain.save_pretrained(stage, **({"state_dict": apart} if apart else {}))
    with torch.random.fork_rng(devices=[]):
        back = type(plain).from_pretrained(stage, dtype=plain.dtype).state_dict()
    ours = plain.state_dict()
    for name in {**ours, **back}:
        if name not in ours or name not in back or not _are_equal(ours[name], back[name]):
            raise ValueError(
                f"{name!r} is not the same after save_pretrained and from_pretrained: {type(plain).__name__} has no "
                'such weight, or makes it itself; use format="safetensors"'
            )


def _tied_by_hand(plain: Any) -> dict[str, Tensor] | None:
    """The state dict with copies of what the class does not tie itself and so would not find again, if there is any."""
    known = getattr(plain, "all_tied_weights_keys", None)
    names = (
        set()
        if known is None
        else set(states.ties(plain.state_dict(keep_vars=True))) - set(known) - set(known.values())
    )
    return {name: t.clone() if name in names else t for name, t in plain.state_dict().items()} if names else None


def _are_equal(ours: Tensor, theirs: Tensor) -> bool:
    ours = ours.to(theirs)
    return bool(((ours == theirs) | (ours.isnan() & theirs.isnan())).all())
