"""Hugging Face's Trainer with a method of partial SGD, for nested models and for plain ones.

The Trainer stays in charge: it accumulates, clips, schedules, casts, logs, saves and resumes. Only its step becomes
that of `PartialSGD`; its evaluation runs every level, and its checkpoints hold the nested model and the method's state.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.generic import can_return_loss, find_labels

from partialsgd._util.files import write_text
from partialsgd._util.snapshots import RandomState
from partialsgd.engine.arguments import require_method
from partialsgd.engine.masked_update import Outside
from partialsgd.engine.nonfinite import Nonfinite
from partialsgd.engine.partial_sgd import PartialSGD
from partialsgd.export import checkpoints
from partialsgd.integrations import hf_checkpoint
from partialsgd.integrations.micro_batches import MicroBatches
from partialsgd.integrations.updating_optimizer import LoopScaler, UpdatingOptimizer, updating
from partialsgd.method import Meter, Method
from partialsgd.nested import Nested

_Trainer: Any = object  # Trainer, or a subclass of it, comes after the mix-in

__all__ = ["PartialTrainer", "PartialTrainerMixin"]


class PartialTrainerMixin(_Trainer):  # type: ignore[misc]  # its base is Any
    """Adds `method=` to a Trainer; put it first: `class Mine(PartialTrainerMixin, Seq2SeqTrainer): pass`.

    `method` is what `PartialSGD` takes, and so are `meter`, `outside` and `nonfinite`; all other arguments are the
    Trainer's. The seed of the method is `args.seed`.

    `evaluate` runs every level of a nested model: `eval_core_loss`, `eval_full_loss` and so on, and `eval_loss` for the
    current level, which is the full one unless `with nested.at(level):` surrounds it. `predict` runs the current level.
    """

    optimizer: Any
    label_smoother: Any
    _signature_columns: Any

    def __init__(
        self,
        *args: Any,
        method: Method = Method(),  # noqa: B008  # frozen: one plain method serves all
        meter: Meter | None = None,
        outside: Outside = "hold",
        nonfinite: Nonfinite | None = None,
        **options: Any,
    ) -> None:
        require_method(method)
        self.sgd: PartialSGD | None = None
        """The `PartialSGD` of the training; None before `train()`."""
        self.micro_batches = MicroBatches()
        """`micro_batches.gradient_pass` is the pass that runs, for a `compute_loss` that reads its level or teacher."""
        self._method, self._meter = method, meter
        self._policies: dict[str, Any] = {"outside": outside, "nonfinite": nonfinite}
        self._evaluates_levels = False
        self._level_metrics: dict[str, dict[str, float]] = {}
        _answer_for(options.get("model", args[0] if args else None))
        super().__init__(*args, **options)
        self._require_supported()
        if isinstance(self.model, Nested):
            self._inspect(self.model)

    def _require_supported(self) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ValueError("PartialTrainer runs in one process or under DistributedDataParallel, not FSDP, DeepSpeed")

    def _inspect(self, nested: Nested) -> None:
        """Read labels, arguments and kind of loss from the model inside, which the Trainer looks for in the class."""
        model: Any = nested.model
        arguments = inspect.signature(model.forward).parameters
        if self.args.label_names is None:
            self.label_names = find_labels(type(model))  # type: ignore[no-untyped-call]  # transformers'
        self.can_return_loss = can_return_loss(type(model))  # type: ignore[no-untyped-call]  # transformers'
        self._signature_columns = list(dict.fromkeys([*arguments, "label", "label_ids", *self.label_names]))
        if self.label_smoother is not None and type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
            self.label_smoother = partial(self.label_smoother, shift_labels=True)
        if "generation_config" in vars(nested):  # Seq2SeqTrainer has set it on the nested model
            model.generation_config = vars(nested).pop("generation_config")

    def call_model_init(self, *args: Any, **options: Any) -> Any:
        model = super().call_model_init(*args, **options)
        _answer_for(model)
        return model

    # The step

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        self.optimizer = super().create_optimizer(*args, **options)
        if updating(self.optimizer) is None:
            self.optimizer = UpdatingOptimizer(self.optimizer)
        return self.optimizer

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        model, optimizer = prepared[0], updating(self.optimizer)
        assert optimizer is not None  # made by create_optimizer
        scaler = None
        if self.accelerator.scaler is not None:  # with fp16, on a device that has it
            self.accelerator.scaler = self.optimizer.scaler = LoopScaler(self.accelerator.scaler)
            scaler = self.accelerator.scaler.scaler
        if optimizer.sgd is None:  # else train() was called before: the optimizer goes on, and so does the method
            optimizer.sgd = PartialSGD(
                model, optimizer.optimizer, self._method, seed=self.args.seed, scaler=scaler, meter=self._meter,
                **self._policies,
            )  # fmt: skip
        self.sgd = optimizer.sgd
        self.micro_batches = MicroBatches(partial(self.accelerator.no_sync, model=model))
        self.sgd.zero_grad()
        if resume_from_checkpoint is not None:
            self.sgd.load_state_dict(hf_checkpoint.read(Path(resume_from_checkpoint)))
        return prepared

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        assert self.sgd is not None  # made before the first step
        run = partial(super().training_step, model, num_items_in_batch=num_items_in_batch)
        loss = self.micro_batches.add(self.sgd, inputs, run, last=self.accelerator.sync_gradients)
        return torch.zeros((), device=self.args.device) if loss is None else loss

    # Every level

    def evaluate(self, *args: Any, **options: Any) -> Any:
        self._evaluates_levels = True
        try:
            return super().evaluate(*args, **options)
        finally:
            self._evaluates_levels = False

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        run = partial(super().evaluation_loop, dataloader, description, prediction_loss_only, ignore_keys)
        nested = self.model
        if not isinstance(nested, Nested) or not self._evaluates_levels:
            return run(metric_key_prefix)
        before = RandomState(nested)  # each level sees the same batches, and the training goes on as with one level
        output = run(metric_key_prefix)
        after = RandomState(nested)
        metrics: dict[str, float] = {}
        for level in nested.levels:
            own = _without_prefix(output.metrics, metric_key_prefix)
            if level != nested.level:
                before.restore()
                with nested.at(level):
                    own = _without_prefix(run(f"{metric_key_prefix}_{level}").metrics, f"{metric_key_prefix}_{level}")
            metrics.update({f"{metric_key_prefix}_{level}_{name}": value for name, value in own.items()})
            self._level_metrics[level] = {n: v for n, v in own.items() if isinstance(v, (int, float))}
        after.restore()
        return output._replace(metrics={**output.metrics, **metrics})

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        """Train as the Trainer does; True resumes from the last checkpoint that is complete."""
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(hf_checkpoint.last_complete(Path(str(self.args.output_dir))))
        return super().train(resume_from_checkpoint, *args, **options)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save a nested model so that `Nested.from_pretrained` reads the folder; nothing is pickled."""
        nested = self.model
        if not isinstance(nested, Nested):
            super()._save(output_dir, state_dict)
            return
        path = Path(str(output_dir or self.args.output_dir))
        checkpoints.save(nested, path, metrics=self._level_metrics)
        processing: Any = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if processing is not None:
            processing.save_pretrained(path)
        write_text(path / "training_args.json", self.args.to_json_string())

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        assert self.sgd is not None  # a checkpoint is saved while training
        state = self.sgd.state_dict()
        if self.args.should_save:
            hf_checkpoint.write(Path(output_dir), state)
        self.accelerator.wait_for_everyone()  # the file that is written next says that the checkpoint is complete

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        nested = self.model if model is None else model
        if isinstance(nested, Nested):
            checkpoints.restore(nested, resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        if isinstance(self.model, Nested):
            checkpoints.restore(self.model, str(self.state.best_model_checkpoint))
        else:
            super()._load_best_model()


class PartialTrainer(PartialTrainerMixin, Trainer):
    """`Trainer` with `method=`: `PartialTrainer(model=nested, args=args, method=ps.methods.alternating(), …)`."""


def _without_prefix(metrics: Mapping[str, Any] | None, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(f"{prefix}_"): value for name, value in (metrics or {}).items()}


def _answer_for(model: Any) -> None:
    """Let a nested model say whether the loss takes the number of items; without an answer it refuses any Trainer."""
    if isinstance(model, Nested):
        arguments = inspect.signature(model.model.forward).parameters.values()
        takes_more = any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments)
        answer: Any = getattr(model.model, "accepts_loss_kwargs", takes_more)
        model.accepts_loss_kwargs = answer
