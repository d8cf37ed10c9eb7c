"""Lightning with a method of partial SGD: one callback, for automatic optimization and its validation.

Lightning stays in charge: it accumulates, clips, schedules, casts, logs and saves. The callback gives the trainer two
loops of its own for as long as it runs: one makes the gradients that a step needs, one validates every level.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.loops.utilities import _block_parallel_sync_behavior
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from partialsgd._util.snapshots import RandomState
from partialsgd.engine.arguments import require_method
from partialsgd.engine.masked_update import Outside
from partialsgd.engine.nonfinite import Nonfinite
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.integrations.micro_batches import MicroBatches
from partialsgd.integrations.updating_optimizer import LoopScaler, UpdatingOptimizer
from partialsgd.method import Meter, Method
from partialsgd.nested import Nested
from partialsgd.parameters import unwrap

__all__ = ["PartialSGDCallback"]


@final
class PartialSGDCallback(Callback):
    """Trains by a method: `Trainer(callbacks=[PartialSGDCallback(ps.methods.alternating())])`.

    The options are those of `PartialSGD`. `fit`, `validate` and `test` run every level of a nested model in the
    module: what is logged as `val_loss` is the full level's, and `core_val_loss` that of the level `core`.
    """

    def __init__(
        self,
        method: Method = Method(),  # noqa: B008  # frozen: one plain method serves all
        *,
        seed: int = 0,
        meter: Meter | None = None,
        outside: Outside = "hold",
        nonfinite: Nonfinite | None = None,
    ) -> None:
        require_method(method)
        self.sgd: PartialSGD | None = None
        """The `PartialSGD` of the training; None before it begins."""
        self.micro_batches = MicroBatches()
        """`micro_batches.gradient_pass` is the pass that runs, for a loss that reads its level or teacher."""
        self._method = method
        self._options: dict[str, Any] = {"seed": seed, "meter": meter, "outside": outside, "nonfinite": nonfinite}
        self._saved: dict[str, Any] | None = None
        self._substituted: list[tuple[Any, str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            self._require_supported(trainer, pl_module)
            epoch_loop = trainer.fit_loop.epoch_loop
            self._substitute(epoch_loop, "automatic_optimization", _PartialOptimization)
            self._substitute(epoch_loop, "val_loop", _EveryLevelLoop)
        self._substitute(trainer, "validate_loop", _EveryLevelLoop)
        self._substitute(trainer, "test_loop", _EveryLevelLoop)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        for owner, name, original in self._substituted:
            setattr(owner, name, original)
        self._substituted = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        (optimizer,) = trainer.strategy.optimizers  # automatic optimization has one
        model = trainer.strategy.model
        assert model is not None  # set up before the training begins
        before = self.sgd
        is_same = before is not None and before.parameters.model is unwrap(model)
        method = before.method if before is not None and is_same else self._method  # a method is bound once
        wrapper = UpdatingOptimizer(optimizer)
        scaler, precision = None, trainer.precision_plugin
        if isinstance(precision, MixedPrecision) and precision.scaler is not None:  # "16-mixed"
            self._substituted.append((precision, "scaler", precision.scaler))
            precision.scaler = LoopScaler(precision.scaler)
            scaler = precision.scaler.scaler
        wrapper.sgd = self.sgd = PartialSGD(model, optimizer, method, scaler=scaler, **self._options)
        if self._saved is not None:
            self.sgd.load_state_dict(self._saved)
            self._saved = None
        self.micro_batches = MicroBatches(lambda: _block_parallel_sync_behavior(trainer.strategy, block=True))
        trainer.strategy.optimizers = [wrapper]

    def state_dict(self) -> dict[str, Any]:
        return self._saved or {} if self.sgd is None else self.sgd.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._saved = state_dict  # the optimizer does not exist yet; see on_train_start

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        if trainer.state.fn == TrainerFn.FITTING and not checkpoint.get("callbacks", {}).get(self.state_key):
            raise ValueError(
                "the checkpoint has no state of a PartialSGDCallback, so t and the memory of the method would be lost; "
                "to start anew from its weights, load them into the module and call fit without ckpt_path"
            )

    def _require_supported(self, trainer: Trainer, module: LightningModule) -> None:
        if not module.automatic_optimization:
            raise ValueError(
                "PartialSGDCallback works with automatic optimization; with automatic_optimization = False build a "
                "PartialSGD in on_train_start and call its step in training_step"
            )

    def _substitute(self, owner: Any, name: str, loop_class: type) -> None:
        """Give the trainer a loop of our class that shares all state with its own."""
        loop = getattr(owner, name)
        self._substituted.append((owner, name, loop))
        substitute: Any = object.__new__(loop_class)
        substitute.__dict__ = loop.__dict__
        setattr(owner, name, substitute)


@final
class _PartialOptimization(_AutomaticOptimization):
    """Runs forward and backward once for each gradient that the step needs."""

    def run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> dict[str, Any]:
        trainer = self.trainer
        callbacks: Any = getattr(trainer, "callbacks", ())  # which Lightning's Trainer has, and its stub has not
        callback = next(c for c in callbacks if isinstance(c, PartialSGDCallback))
        assert callback.sgd is not None  # made when the training began
        outputs: dict[str, Any] = {}

        def forward_backward(micro_batch: tuple[int, Any]) -> Tensor:
            number, arguments = micro_batch
            closure = self._make_closure(arguments, optimizer, number)
            with self._logged(callback.micro_batches.is_first_pass):
                closure()
            result = closure.consume_result()
            if callback.micro_batches.is_first_pass:
                outputs.update(result.asdict() if result.loss is not None else {})
            return torch.zeros(()) if result.closure_loss is None else result.closure_loss.detach()

        last = trainer.strategy.handles_gradient_accumulation or not trainer.fit_loop._should_accumulate()
        with _block_parallel_sync_behavior(trainer.strategy, block=not last):
            callback.micro_batches.add(callback.sgd, (batch_idx, kwargs), forward_backward, last=last)
        if last:
            self._optimizer_step(batch_idx, lambda: outputs.get("loss"))
        return outputs

    @contextmanager
    def _logged(self, is_first_pass: bool) -> Iterator[None]:
        """Keep what is logged, if this is the first gradient of the step; the others are at another point."""
        epoch_loop = self.trainer.fit_loop.epoch_loop
        results = epoch_loop._results
        try:
            if not is_first_pass:
                epoch_loop._results = _ResultCollection(training=True)
                epoch_loop._results.batch, epoch_loop._results.batch_size = results.batch, results.batch_size
            yield
        finally:
            epoch_loop._results = results


@final
class _EveryLevelLoop(_EvaluationLoop):
    """Runs the other levels first, without callbacks, so that callbacks see the numbers of every level at the end."""

    def run(self) -> Any:
        trainer: Any = self.trainer
        nested = _only_nested(trainer.lightning_module)
        if nested is None:
            return super().run()
        before = RandomState(nested)  # each level sees the same batches, and the training goes on as with one level
        others: list[Any] = []
        for level in nested.levels:
            if level != nested.level:
                with nested.at(level), self._named_after(level):
                    others.append(super().run())
                before.restore()
        outputs = super().run()
        for of_level in others:
            for one, more in zip(outputs, of_level, strict=True):
                one.update(more)
        return outputs

    @contextmanager
    def _named_after(self, level: str) -> Iterator[None]:
        trainer: Any = self.trainer
        callbacks, results, verbose = trainer.callbacks, self._results, self.verbose
        try:
            trainer.callbacks, self._results, self.verbose = [], _ResultsOfLevel(level), False
            yield
        finally:
            trainer.callbacks, self._results, self.verbose = callbacks, results, verbose


@final
class _ResultsOfLevel(_ResultCollection):
    """Puts the name of a level before the names that are logged."""

    def __init__(self, level: str) -> None:
        super().__init__(training=False)
        self.level = level

    def log(self, fx: str, name: str, *args: Any, **options: Any) -> None:
        super().log(fx, f"{self.level}_{name}", *args, **options)


def _only_nested(module: LightningModule) -> Nested | None:
    nested_models = [m for m in module.modules() if isinstance(m, Nested)]
    return nested_models[0] if len(nested_models) == 1 else None
