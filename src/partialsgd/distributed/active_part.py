"""Data parallel that sends only what moves: `data_parallel`.

torch's DistributedDataParallel reduces a fixed list of parameters. Here each set of parameters that a step needs (a
level of a nested model, a block of layers) has a DistributedDataParallel of its own over the same module, made when it
is first needed. Elements of a tensor are chosen by a communication hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from partialsgd.distributed.compression import Compression
from partialsgd.distributed.hooks import Outgoing, register_hook
from partialsgd.distributed.pass_agreement import PassAgreement
from partialsgd.distributed.reducers import Key, Reducers
from partialsgd.engine.data_parallel import GradientsToSend, SendsActivePart, running_pass
from partialsgd.nested.nested import Nested
from partialsgd.parameters import Parameters, unwrap


def data_parallel(model: nn.Module, *, compression: Compression | None = None, **options: Any) -> DataParallel:
    """Train the model on all processes of a group; each step sends the gradients inside its mask and nothing else.

    Give the result to `PartialSGD`, and call it in the closure. `options` are those of DistributedDataParallel;
    `gradient_as_bucket_view=True` is the default here. `compression` is what `compress(…)` returns.
    """
    return DataParallel(model, compression, options)


@final
class DataParallel(SendsActivePart):
    """A model on all processes of a group, as `data_parallel` makes it; `module` is the model itself."""

    def __init__(self, model: nn.Module, compression: Compression | None, options: Mapping[str, Any]) -> None:
        super().__init__()
        if isinstance(model, DistributedDataParallel | SendsActivePart):
            raise ValueError("the model is data parallel already; give data_parallel the model inside it")
        if options.get("static_graph"):
            raise ValueError("static_graph=True is not for steps that send different parts; leave it out")
        if compression is not None and options.get("find_unused_parameters"):
            raise ValueError(
                "with compression each parameter of a level must take part in its passes, and "
                "find_unused_parameters=True is for those that do not; leave one of the two out"
            )
        if compression is not None:
            compression.attach(unwrap(model))
        self.module = model
        self.names = Parameters(model)
        self._nested = [module for module in unwrap(model).modules() if isinstance(module, Nested)]
        self._used_at: dict[tuple[str, ...], frozenset[str]] = {}
        self._reducers = Reducers(model, self.names, {"gradient_as_bucket_view": True, **options})
        whole = self._reducers.make((self._trainable(self.names), ""), init_sync=True)
        self.process_group = whole.process_group
        self.gradient_as_bucket_view = bool(whole.gradient_as_bucket_view)
        self._agreement = PassAgreement(whole.process_group)
        self._outgoing = Outgoing({p: name for name, p in self.names.items()}, whole.process_group, compression)
        self._syncs = True
        self._unsynced: frozenset[str] = frozenset()
        self._ran: list[Key] = []
        """The reducers of this pass."""
        self._compared: set[Key] = set()
        """Those of which the processes have compared in this pass what they send."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.module(*args, **kwargs)  # so that one process may evaluate alone
        if self._outgoing.gradients is None:
            self._require_known()
            if self.is_driven:
                return _without_backward(self.module(*args, **kwargs))
        key = self._key()
        names, _ = key
        if self._syncs and (left := [n for n in self._unsynced - names if self.names[n].grad is not None]):
            raise RuntimeError(
                f"{min(left)!r} was accumulated under no_sync() and takes no part in the pass that averages; "
                "end with a pass that uses it, such as one of the largest level"
            )
        self._reducers.make(key, lambda reducer: register_hook(reducer, key[1], self._outgoing))
        if not any(self.names[name].grad is not None for name in self._unsynced):
            self._reducers.forget_use(key)
        self._unsynced = frozenset() if self._syncs else self._unsynced | names
        require_agreement = None
        if self._syncs and key not in self._compared:
            require_agreement = self._agreement.ask(key, self._outgoing)
            self._compared.add(key)
        self._ran.append(key)
        if require_agreement is not None and not self._reducers.is_silent(key):
            require_agreement()
        outputs = self._reducers.run(key, *args, sync=self._syncs, **kwargs)
        if require_agreement is not None:
            require_agreement()
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of micro-batches without sending them; the first pass outside sends their sum."""
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    @property
    def is_unsynced(self) -> bool:
        return bool(self._unsynced)

    @property
    def unsent(self) -> Mapping[str, Tensor]:
        compression = self._outgoing.compression
        return {} if compression is None else compression.unsent

    @unsent.setter
    def unsent(self, unsent: Mapping[str, Tensor]) -> None:
        if self._outgoing.compression is not None:
            self._outgoing.compression.unsent = dict(unsent)

    def sending(self, gradients: GradientsToSend) -> AbstractContextManager[None]:
        return _Sending(self, gradients)

    def check_trained(self, weights: list[float], *, is_read: bool) -> None:
        if self._outgoing.compression is None:
            return
        if is_read:
            raise NotImplementedError(
                "a rule, a meter or a guard reads the gradient that this step trains with, and compression sends only "
                "a part of it; leave out the meter, the guard, the method that chooses by this gradient, or compression"
            )
        if len(set(weights)) > 1:
            raise NotImplementedError(
                f"the gradients of this step have the weights {weights}, and compression keeps one memory for all of "
                "them; use equal weights, or no compression"
            )

    def end_step(self, *, moved: bool) -> None:
        self._unsynced = frozenset()
        if self._outgoing.compression is not None:
            self._outgoing.compression.end_step(moved=moved)

    def begin_pass(self, gradients: GradientsToSend) -> None:
        self._outgoing.gradients, self._ran, self._compared = gradients, [], set()

    def finish_pass(self) -> None:
        """Check that all was averaged that had to be, and drop the gradients that were not sent."""
        if not self._ran:
            if self._outgoing.gradients is not None and self._outgoing.gradients.trained is not None:
                raise RuntimeError(
                    "no forward pass went through the data parallel model, so the gradients of the processes differ; "
                    "call what data_parallel(model) returned, not the model inside it"
                )
            return
        if not self._unsynced:
            for key in dict.fromkeys(self._ran):
                self._require_reduced(key)
        sent = frozenset[str]().union(*(names for names, _ in self._ran))
        for name, parameter in self.names.items():
            if name not in sent:
                parameter.grad = None

    def leave_pass(self, *, failed: bool) -> None:
        """After a failure the reducers still wait for gradients that will not come: they are made anew."""
        if failed:
            for key in self._ran:
                self._reducers.discard(key)
            self._unsynced = frozenset()
        self._ran, self._outgoing.gradients = [], None

    def _require_known(self) -> None:
        """Raise inside a pass of a `PartialSGD` that was given the model without this wrapper."""
        parameters = None if torch.compiler.is_compiling() else running_pass.get()
        if parameters is not None and not set(parameters.values()).isdisjoint(self.names.values()):
            raise RuntimeError(
                "PartialSGD does not know that the model is data parallel, so that processes may decide differently; "
                "wrap the model first, and build PartialSGD(data_parallel(model), …)"
            )

    def _require_reduced(self, key: Key) -> None:
        try:
            self._reducers[key]._check_reducer_finalized()  # type: ignore[no-untyped-call]  # untyped in torch
        except RuntimeError as error:
            idle = [name for name in self.names if name in key[0] and self.names[name].grad is None]
            raise RuntimeError(
                f"{', '.join(map(repr, idle)) or 'a parameter'} took no part in this pass, so that gradients were not "
                "averaged; pass find_unused_parameters=True to data_parallel"
            ) from error

    def _trainable(self, names: Iterable[str]) -> frozenset[str]:
        """Without those that are frozen: a reducer leaves them out for ever, and they may be unfrozen."""
        return frozenset(name for name in names if self.names[name].requires_grad)

    def _key(self) -> Key:
        """The parameters to send, and how: all their numbers, some (packed), or compressed."""
        levels = tuple(nested.level for nested in self._nested)
        if levels not in self._used_at:
            unused = {p for nested in self._nested for p in nested.parameters()}
            unused -= {p for nested in self._nested for p in nested.parameters(level=nested.level)}
            self._used_at[levels] = frozenset(name for name, p in self.names.items() if p not in unused)
        names, gradients, compression = self._used_at[levels], self._outgoing.gradients, self._outgoing.compression
        names = self._trainable(names)
        if gradients is None:
            if compression is not None:
                raise RuntimeError("compression has to know the step: train by PartialSGD(data_parallel(…), …)")
            return names, ""
        mask = gradients.mask
        is_packed = mask is not None and not mask.partial.keys().isdisjoint(names)
        # A random mask of elements may leave out other small tensors at each step, so that its sets would be too many.
        # One that lets nothing move sends everything: the engine needs a gradient.
        if mask is not None and not is_packed:
            names = frozenset(name for name in names if mask.entries[name] is not False) or names
        if compression is not None and gradients.trained is not None:
            compression.check(names, is_packed=is_packed)
            return names, compression.hook_name
        return names, "packed" if is_packed else ""


def _without_backward(outputs: Any) -> Any:
    """The outputs of an evaluation, which did not prepare to average gradients: a backward pass through them raises."""
    for leaf in tree_leaves(outputs):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            leaf.register_hook(_refuse_backward)  # type: ignore[no-untyped-call]  # untyped in torch
    return outputs


def _refuse_backward(gradient: Tensor) -> None:
    raise RuntimeError(
        "the forward pass of this backward ran outside of a step, so that its gradients are not averaged over the "
        "processes; run both inside the closure or `with g:`, or call `.module` for gradients of this process alone"
    )


@final
class _Sending:
    """One pass of `PartialSGD`. Leaving it may be interrupted, and repeated."""

    def __init__(self, model: DataParallel, gradients: GradientsToSend) -> None:
        self._model, self._gradients = model, gradients

    def __enter__(self) -> None:
        self._model.begin_pass(self._gradients)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = True
        try:
            if kind is None:
                self._model.finish_pass()
            failed = kind is not None
        finally:
            self._model.leave_pass(failed=failed)
