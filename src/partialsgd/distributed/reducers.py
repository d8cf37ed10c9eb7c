"""One DistributedDataParallel for each set of parameters that steps send, all over the same module."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from partialsgd.parameters import Parameters

_MOST = 32
"""The sets that keep their reducers, if there are more: each reducer has buffers as large as its set."""

Key: TypeAlias = tuple[frozenset[str], str]
"""The names of the parameters, and how their gradients are sent."""


@final
class Reducers:
    """Makes reducers when they are first needed, and discards those that an error has left half way."""

    def __init__(self, module: nn.Module, names: Parameters, options: Mapping[str, Any]) -> None:
        self._module, self._names, self._options = module, names, options
        self._made: OrderedDict[Key, DistributedDataParallel] = OrderedDict()
        self._kinds: dict[Key, set[tuple[torch.dtype, torch.device]]] = {}
        self._prepared: Key | None = None
        """The reducer of a forward pass whose backward pass has not begun."""

    def __getitem__(self, key: Key) -> DistributedDataParallel:
        return self._made[key]

    def make(
        self, key: Key, register: Callable[[DistributedDataParallel], None] | None = None, *, init_sync: bool = False
    ) -> DistributedDataParallel:
        """Return the reducer of a set; if it is new, `register` adds its hook."""
        kinds = {(p.dtype, p.device) for p in (self._names[name] for name in key[0])}
        if self._kinds.get(key, kinds) != kinds:
            self.discard(key)  # the model was moved, and the buckets are of another type or device
        if key not in self._made:
            parameters = {self._names[name] for name in key[0]}
            options = {"bucket_cap_mb": _bucket_size(parameters), **self._options, "init_sync": init_sync}
            if key[1] == "PowerSGD":
                options["bucket_cap_mb"] = 1 + (_bytes(parameters) >> 20)  # one bucket: see `hooks`
            # The first one gives all processes the values of the first, those of frozen parameters too.
            reducer = _reducer_of(self._module, set(self._names.values()) if init_sync else parameters, options)
            if register is not None:
                register(reducer)
            self._made[key], self._kinds[key] = reducer, kinds
            if len(self._made) > _MOST:
                self.discard(next(iter(self._made)))
        self._made.move_to_end(key)
        return self._made[key]

    def run(self, key: Key, *args: Any, sync: bool, **kwargs: Any) -> Any:
        """Run the module; its backward pass reduces the gradients of the set if `sync` is True."""
        if self._prepared not in (None, key):
            self.discard(self._prepared)  # its backward never came: it would answer to the one of this pass
        reducer = self._made[key]
        reducer.require_backward_grad_sync = sync
        if sync:
            self._prepared = key
        outputs = reducer(*args, **kwargs)
        if sync:
            for leaf in tree_leaves(outputs):
                if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                    leaf.register_hook(self._begin_backward)  # type: ignore[no-untyped-call]  # untyped in torch
        return outputs

    def is_silent(self, key: Key) -> bool:
        """True if a forward pass sends nothing: neither buffers, nor how the buckets are built after the first pass."""
        reducer = self._made[key]
        return reducer._has_rebuilt_buckets and not reducer.modules_buffers

    def forget_use(self, key: Key) -> None:
        """Forget which parameters took part in backward passes of other sets, which this reducer has seen too."""
        if self._options.get("find_unused_parameters"):
            self._made[key].reducer._reset_state()

    def discard(self, key: Key | None) -> None:
        if key is not None and (reducer := self._made.pop(key, None)) is not None:
            del self._kinds[key]
            reducer._remove_autograd_hooks()  # type: ignore[no-untyped-call]  # untyped in torch
        if self._prepared == key:
            self._prepared = None

    def _begin_backward(self, gradient: Tensor) -> None:
        self._prepared = None


def _bucket_size(parameters: Collection[nn.Parameter]) -> int:
    """Megabytes of a bucket, from 1 to torch's 25: with about 16 buckets, most are sent while backward still runs."""
    return min(25, max(1, _bytes(parameters) >> 24))


def _bytes(parameters: Collection[nn.Parameter]) -> int:
    return sum(p.numel() * p.element_size() for p in parameters)


def _reducer_of(
    module: nn.Module, parameters: Collection[nn.Parameter], options: Mapping[str, Any]
) -> DistributedDataParallel:
    """DistributedDataParallel that reduces the gradients of these parameters only."""
    names = [
        f"{path}.{leaf}"
        for path, inner in module.named_modules()
        for leaf, parameter in inner.named_parameters(recurse=False)
        if parameter not in parameters
    ]
    ignored = [*names, *(name.removeprefix(".") for name in names)]  # torch writes the root's own as ".name"
    attribute = "_ddp_params_and_buffers_to_ignore"
    before = getattr(module, attribute, None)
    setattr(module, attribute, [*ignored, *(before or ())])
    try:
        return DistributedDataParallel(module, **options)
    finally:
        if before is None:
            delattr(module, attribute)
        else:
            setattr(module, attribute, before)
