"""Extracted Hugging Face models: a config from which their class builds them again, or a `save_pretrained` that raises.

No table says which field of which config holds a size. The fields that hold an old size are set to the new one, one
after the other, and kept where a model built from the config becomes more like the extracted one.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, final

import torch
from torch import Tensor, nn

from partialsgd.nested.example_inputs import Call, is_close, tensors_of

Kept = Mapping[str, tuple[tuple[int, ...], int]]
"""For each list of blocks, by name, the blocks that it still has and their number before."""
_SAVING = ("save_pretrained", "push_to_hub")
_STATES = ("training", "gradient_checkpointing")  # attributes that a config does not decide


@final
class Unsaveable:
    """Stands in for `save_pretrained` where `from_pretrained` would load another network."""

    def __init__(self, reason: str, hint: str) -> None:
        self.reason, self.hint = reason, hint

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError(f"from_pretrained would load another network: {self.reason}; {self.hint}")


def refuse_saving(model: nn.Module, reason: str, hint: str) -> None:
    """Make `save_pretrained` and `push_to_hub` raise in a model and in the models inside it."""
    for module in model.modules():
        for name in _SAVING:
            if hasattr(module, name):
                vars(module)[name] = Unsaveable(reason, hint)


def allow_saving(model: nn.Module) -> None:
    """Undo `refuse_saving`."""
    for module in model.modules():
        for name in _SAVING:
            if isinstance(vars(module).get(name), Unsaveable):
                del vars(module)[name]


def make_saveable(extracted: nn.Module, kept: Kept, hint: str, run: Callable[[], Any], *, is_original: bool) -> None:
    """Fit the config of each Hugging Face model in an extracted level, or refuse to save it.

    `run` calls the extracted level. `is_original` says that it has the architecture that the model had before `nest`.
    """
    calls: dict[nn.Module, tuple[Call, list[Tensor]]] = {}

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Any) -> None:
        calls[module] = (args, kwargs), list(tensors_of(outputs))

    models: dict[str, nn.Module] = {}
    with ExitStack() as after:
        for name, module in extracted.named_modules():
            is_inside = any(not outer or name.startswith(f"{outer}.") for outer in models)
            if hasattr(module, "save_pretrained") and not is_inside:
                models[name] = module
                after.callback(module.register_forward_hook(record, with_kwargs=True).remove)
        run()
    for name, model in models.items():
        prefix = f"{name}." if name else ""
        own_lists = {key.removeprefix(prefix): value for key, value in kept.items() if key.startswith(prefix)}
        reason = _fit(model, own_lists, calls.get(model), is_original)
        if reason is not None:
            refuse_saving(model, reason, hint)


def _fit(model: Any, kept: Kept, call: tuple[Call, list[Tensor]] | None, is_original: bool) -> str | None:
    """Give the model a config that describes it; return why its class loads another network, or None."""
    class_name = type(model).__name__
    config = getattr(model, "config", None)
    fresh = _built(model, config)
    if fresh is None:  # at the full level, saving is as good as it was before `nest`
        return None if is_original else f"a {class_name} cannot be built from a config alone"
    fresh, differences = _search(model, config, fresh, kept)
    if call is None:
        return f"{class_name} did not run on the example"
    if not _adopt_config(model, fresh, *call):
        return f"{class_name} computes something else with a config of its sizes"
    return next(iter(differences.values())) if differences else _reload_difference(model, *call)


def _adopt_config(model: nn.Module, fresh: nn.Module, call: Call, outputs: list[Tensor]) -> bool:
    """Give the model and the models inside it the configs of another one, unless it then computes something else."""
    args, kwargs = call
    theirs = dict(fresh.named_modules())
    configs = {
        m: (m.config, theirs[n].config) for n, m in model.named_modules() if n in theirs and hasattr(m, "config")
    }
    for module, (_, new) in configs.items():
        module.config = new
    try:
        is_same = _all_close(outputs, tensors_of(model(*args, **kwargs)))
    except Exception:  # whatever the code of the class raises for a config that does not fit
        is_same = False
    for module, (old, _) in () if is_same else configs.items():
        module.config = old
    return is_same


def _search(model: nn.Module, config: Any, fresh: nn.Module, kept: Kept) -> tuple[nn.Module, dict[str, str]]:
    """Change one field after the other while the model that the config describes becomes more like the given one."""
    differences, changes, is_better = _differences(model, fresh, set()), set[tuple[Any, Any]](), True
    while is_better:
        is_better = False
        for path, old, new in _candidates(model, fresh, config, kept):
            trial = copy.deepcopy(config)
            trial_fresh = _built(model, trial, path, new)
            if trial_fresh is None:
                continue
            is_list = isinstance(new, list)
            trial_changes = changes if is_list else changes | {(old, new)}
            left = _differences(model, trial_fresh, trial_changes)
            # A list with an entry for each layer is shortened with them, also if the model reads no further.
            needs_no_more = len(left) == len(differences) and is_list and "layer" in path[-1]
            is_better = len(left) < len(differences) or needs_no_more
            if is_better:
                config, fresh, differences, changes = trial, trial_fresh, left, trial_changes
                break
    return fresh, differences


def _candidates(
    model: nn.Module, fresh: nn.Module, config: Any, kept: Kept
) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield fields of the config, each with its value and one that it may have in the extracted model."""
    theirs = fresh.state_dict()
    pairs = [(theirs[key].shape, value.shape) for key, value in model.state_dict().items() if key in theirs]
    sizes = {size for old, new in pairs if len(old) == len(new) for size in zip(old, new, strict=True)}
    new_sizes = dict.fromkeys(size for size in sizes if size[0] != size[1])
    lengths = {(total, len(indices)): indices for indices, total in kept.values() if len(indices) < total}
    fields = list(_fields(config))
    for path, value in fields:
        for old, new in (*new_sizes, *lengths):
            if value == old and not isinstance(value, bool):
                yield path, value, new
        for (total, _), indices in lengths.items():
            if isinstance(value, (list, tuple)) and len(value) == total:
                yield path, value, [value[i] for i in indices]
    for path, value in fields:  # a size that the class computes from others, unless the config has it
        if value is None:
            yield from ((path, old, new) for old, new in new_sizes)


def _fields(config: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the fields of a config and of the configs inside it."""
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            yield from (((name, *path), inner) for path, inner in _fields(value))
        elif not name.startswith("_"):
            yield (name,), value


def _built(model: nn.Module, config: Any, path: tuple[str, ...] = (), value: Any = None) -> nn.Module | None:
    """Set a field of the config and build a model without values; None if its class does not accept that."""
    try:
        if path:
            setattr(functools.reduce(getattr, path[:-1], config), path[-1], value)
        with torch.device("meta"):
            return type(model)(copy.deepcopy(config))
    except Exception:  # whatever the code of the class raises for a config that does not fit
        return None


def _differences(model: nn.Module, fresh: nn.Module, changes: set[tuple[Any, Any]]) -> dict[str, str]:
    """Return the tensors and attributes in which two models differ, each with a sentence.

    `changes` are the old and new sizes in the config: some modules remember the old one and do not use it.
    """
    class_name, differences = type(model).__name__, {}
    own, theirs = model.state_dict(), fresh.state_dict()
    for key in {**own, **theirs}:
        if key not in theirs:
            what = "no Hugging Face class has low rank, padded heads or added layers"
            differences[key] = f"{what}, and a {class_name} has no {key!r}"
        elif key not in own or own[key].shape != theirs[key].shape:
            differences[key] = f"a {class_name} has {'another size of' if key in own else 'also'} {key!r}"
    # By numbers, texts and flags a layer knows its place, such as the kind of its attention.
    modules = dict(model.named_modules())
    for name, module in fresh.named_modules():
        attributes = vars(modules[name]) if type(modules.get(name)) is type(module) else {}
        for attribute, value in attributes.items():
            if isinstance(value, (int, str)) and not attribute.startswith("_") and attribute not in _STATES:
                other = getattr(module, attribute, value)
                if other != value and (value, other) not in changes:
                    sentence = f"{attribute} of {name!r} would be {other!r} and not {value!r}"
                    differences[f"{name}:{attribute}"] = sentence
    return differences


def _reload_difference(model: Any, call: Call, outputs: list[Tensor]) -> str | None:
    """Do in memory what `save_pretrained` and `from_pretrained` do; return what is different then, or None."""
    class_name, (args, kwargs) = type(model).__name__, call
    unsaved = getattr(model, "_keys_to_ignore_on_save", None) or ()
    saved = model.state_dict()
    first = next(model.parameters())
    try:
        with torch.random.fork_rng(devices=[]):
            config = type(model.config).from_dict(json.loads(model.config.to_json_string()))
            loaded = type(model)(config).to(first.device, first.dtype).eval()
        loaded.load_state_dict({key: value for key, value in saved.items() if key not in unsaved}, strict=False)
        got = list(tensors_of(loaded(*args, **kwargs)))
    except Exception as error:
        return f"{class_name} does not accept its config ({error})"
    if (key := first_change(saved, loaded.state_dict())) is not None:
        return f"{key!r} changes: {class_name} does not store it, or computes it itself"
    return None if _all_close(outputs, got) else f"a {class_name} of this config computes something else"


def first_change(saved: Mapping[str, Tensor], loaded: Mapping[str, Tensor]) -> str | None:
    """Return the first key whose tensor is not in both state dicts with the same values."""
    for key in {**saved, **loaded}:
        if key not in saved or key not in loaded:
            return key
        if not torch.equal(saved[key].to(loaded[key]).nan_to_num(), loaded[key].nan_to_num()):
            return key
    return None


def _all_close(outputs: list[Tensor], others: Iterable[Tensor]) -> bool:
    others = list(others)
    return len(outputs) == len(others) and all(map(is_close, outputs, others))
