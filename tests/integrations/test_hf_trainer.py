"""The Trainer with a method: plain is the Trainer to the bit, every level is evaluated, and it resumes to the bit."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import partialsgd as ps

transformers = pytest.importorskip("transformers", reason="of the extra [trainer]")

from partialsgd.integrations import PartialTrainer, PartialTrainerMixin  # noqa: E402  # after the skip
from tests.integrations import bert  # noqa: E402  # after the skip

ROOT = Path(__file__).parents[2]
METHODS = {"sam": (ps.methods.sam(rho=0.05), 2), "dropout": (ps.methods.dropout(keep=0.9), 1)}
each_method = pytest.mark.parametrize(("method", "gradients"), METHODS.values(), ids=METHODS)


@pytest.fixture(autouse=True)
def _same_torch_afterwards() -> Iterator[None]:
    """The Trainer seeds the global generator, and accelerate keeps one precision for the process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    with torch.random.fork_rng():
        yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Recorded(PartialTrainer):
    """Keeps its start, its batches and the number of forward passes."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.loss_is_scaled_for_ga = False  # BERT's loss is a batch's mean; transformers#47688 takes it for a sum
        self.batches: list[dict[str, Tensor]] = []
        self.forwards: list[int] = []

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], items: Any = None) -> Tensor:
        if not self.batches:
            self.start, self.random = copy.deepcopy(model), torch.get_rng_state()
        self.batches.append(inputs)
        self.forwards.append(0)
        return super().training_step(model, inputs, items)

    def compute_loss(self, *args: Any, **options: Any) -> Any:
        self.forwards[-1] += 1
        return super().compute_loss(*args, **options)


def scripted(metrics: list[float]) -> Any:
    """A `compute_metrics` that gives these numbers one after the other."""
    numbers = iter(metrics)
    return lambda prediction: {"score": next(numbers)}


# --- plain


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
def test_the_plain_method_is_the_trainer(tmp_path: Path, bf16: bool) -> None:
    def trained(trainer_class: Any, **options: Any) -> Any:
        told = bert.arguments(tmp_path, bf16=bf16, eval_strategy="steps", eval_steps=5, save_strategy="no")
        trainer = trainer_class(bert.network(), told, train_dataset=bert.data(), eval_dataset=bert.data(8), **options)
        trainer.train()
        return trainer

    ours, theirs = trained(PartialTrainer, method=ps.methods.plain()), trained(transformers.Trainer)
    timed = ("runtime", "per_second")
    for mine, other in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        assert mine.keys() == other.keys()
        assert all(mine[key] == other[key] for key in mine if not any(word in key for word in timed))
    assert not bert.differing(ours.model, theirs.model)


def scaling_gradients(trainer: Any, init_scale: float) -> Any:
    """Give the Trainer what accelerate gives it for fp16 on a GPU, float16 and a gradient scaler, on the CPU."""
    accelerator = trainer.accelerator
    accelerator.state._mixed_precision, accelerator.native_amp = "fp16", True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=3)
    return trainer


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
@pytest.mark.parametrize("steps", [bert.STEPS, 4], ids=["whole", "resumed"])
def test_the_plain_method_is_the_trainer_with_fp16_and_steps_that_overflow(
    tmp_path: Path, steps: int, optim: str
) -> None:
    """The first step overflows and is left out; the schedule waits for it, as with the Trainer, unless it is fused."""

    def trained(trainer_class: Any, folder: Path) -> Any:
        for resume in (False, True):
            told = bert.arguments(folder, logging_steps=1, max_steps=bert.STEPS if resume else steps, optim=optim)
            trainer = trainer_class(bert.network(), told, train_dataset=bert.data())
            scaling_gradients(trainer, 2.0**21).train(resume_from_checkpoint=resume)
        return trainer

    ours, theirs = trained(PartialTrainer, tmp_path / "ours"), trained(transformers.Trainer, tmp_path / "theirs")
    rates = [[log["learning_rate"] for log in t.state.log_history if "loss" in log] for t in (ours, theirs)]
    assert rates[0] == rates[1] and rates[0][0] > rates[0][-1]
    assert (rates[0][0] == rates[0][1]) == (optim == "adamw_torch")
    assert ours.sgd.t < ours.state.global_step == bert.STEPS
    assert ours.accelerator.scaler.get_scale() == theirs.accelerator.scaler.get_scale() != 2.0**21
    assert not bert.differing(ours.model, theirs.model)


SCALED = [ps.methods.extragradient(eta=0.5), ps.methods.dropout(keep=0.9)]  # SAM would not notice another scale


@pytest.mark.parametrize("method", SCALED, ids=lambda method: method.name)
def test_a_scaled_gradient_is_unscaled_before_it_is_read_masked_and_clipped(tmp_path: Path, method: ps.Method) -> None:
    models = []
    for scale in (1.0, 1024.0):
        told = bert.arguments(tmp_path, save_strategy="no", max_steps=2, optim="sgd", learning_rate=0.1)
        trainer = PartialTrainer(bert.network(), told, method=method, train_dataset=bert.data())
        scaling_gradients(trainer, scale).train()
        assert trainer.sgd.t == 2
        models.append(trainer.model)
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-4)


def test_the_plain_method_trains_a_family_as_the_trainer_does_and_evaluating_levels_changes_nothing(
    tmp_path: Path,
) -> None:
    told = {"save_strategy": "no", "eval_strategy": "steps", "eval_steps": 5}
    ours = PartialTrainer(
        model=bert.family(), args=bert.arguments(tmp_path, **told), train_dataset=bert.data(), eval_dataset=bert.data(8)
    )
    ours.train()
    # What a user had to tell the Trainer about a nested model.
    told |= {"remove_unused_columns": False, "label_names": ["labels"]}
    data = [{k: v for k, v in row.items() if k != "weight"} for row in bert.data()]
    family = bert.family()
    family.accepts_loss_kwargs = True  # else it refuses a plain Trainer
    theirs = transformers.Trainer(
        model=family, args=bert.arguments(tmp_path, **told), train_dataset=data, eval_dataset=data[:8]
    )
    theirs.train()
    assert not bert.differing(ours.model, theirs.model)


# --- methods


@each_method
def test_a_step_is_step_with_clip_norm(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    from transformers import get_scheduler

    told = bert.arguments(tmp_path, logging_steps=1, save_strategy="no")
    trainer = Recorded(bert.network(), told, method=method, train_dataset=bert.data())
    trainer.train()
    assert trainer.sgd.t == trainer.state.global_step == bert.STEPS
    # One gradient: each micro-batch runs when it comes. Two: all micro-batches run when the last one is there.
    assert trainer.forwards == ([1, 1] if gradients == 1 else [0, 4]) * bert.STEPS
    logs = [log for log in trainer.state.log_history if "loss" in log]
    model = trainer.start
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    scheduler = get_scheduler("linear", optimizer, 0, bert.STEPS)
    sgd = ps.PartialSGD(model, optimizer, method, seed=trainer.args.seed, clip_norm=trainer.args.max_grad_norm)
    torch.set_rng_state(trainer.random)
    for t, log in enumerate(logs):
        assert log["learning_rate"] == optimizer.param_groups[0]["lr"]
        step = sgd.step(partial(accumulated, model, trainer.batches[2 * t : 2 * t + 2]))
        assert log["loss"] == pytest.approx(float(step.loss), rel=1e-3)
        scheduler.step()
    assert not bert.differing(model, trainer.model)


class Distilling(Recorded):
    """As in docs/loops.md."""

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        if self.model.teacher is not None:
            loss = (loss + ps.soft_cross_entropy(outputs.logits, self.model.teacher.logits)) / 2
        return (loss, outputs) if return_outputs else loss


def test_distillation_is_that_of_a_loop(tmp_path: Path) -> None:
    told = bert.arguments(tmp_path, save_strategy="no", lr_scheduler_type="constant", max_steps=4)
    method = ps.methods.alternating(distill=True)
    trainer = Distilling(bert.family(), told, method=method, train_dataset=bert.data(), eval_dataset=bert.data(8))
    trainer.train()
    assert trainer.evaluate().keys() >= {"eval_core_loss", "eval_full_loss"}
    model, taught = trainer.start, []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    sgd = ps.PartialSGD(model, optimizer, ps.methods.alternating(distill=True), seed=told.seed, clip_norm=1.0)

    def distilling(batches: list[dict[str, Tensor]], g: Any) -> Tensor:
        for batch in batches:
            outputs = model(**batch)
            loss = outputs.loss
            if g.teacher is not None:
                taught.append(g.level)
                loss = (loss + ps.soft_cross_entropy(outputs.logits, g.teacher.logits)) / 2
            (loss / len(batches)).backward()
        return loss

    torch.set_rng_state(trainer.random)
    for t in range(4):
        sgd.step(partial(distilling, trainer.batches[2 * t : 2 * t + 2]))
    assert taught == ["core"] * 4 and not bert.differing(model, trainer.model)


def test_cached_distillation_is_refused_with_what_to_use(tmp_path: Path) -> None:
    told = bert.arguments(tmp_path, save_strategy="no", max_steps=2)
    method = ps.methods.alternating(distill="cached")
    with pytest.raises(RuntimeError, match=r"under the Trainer or Lightning use distill=True"):
        PartialTrainer(bert.family(), told, method=method, train_dataset=bert.data()).train()


def accumulated(model: nn.Module, batches: list[dict[str, Tensor]]) -> Tensor:
    total = torch.zeros(())
    for batch in batches:
        loss = model(**batch).loss / len(batches)
        loss.backward()
        total += loss.detach()
    return total


def test_micro_batches_that_a_rule_reads_one_by_one_are_kept_apart(tmp_path: Path) -> None:
    seen = []

    def mask(context: ps.Context) -> ps.Mask:
        seen.append(len(context.gradients))
        return ps.masks.everything(context.parameters)

    told = bert.arguments(tmp_path, save_strategy="no", max_steps=2)
    trainer = PartialTrainer(bert.network(), told, method=ps.Method(mask, name="apart"), train_dataset=bert.data())
    trainer.train()
    assert seen == [2, 2]


# --- every level


def test_every_level_is_evaluated_as_the_extracted_one_and_the_best_of_a_level_is_loaded(tmp_path: Path) -> None:
    nested, data = bert.family(), bert.data(8, seed=2)
    scores = [*(3.0, 0.1), *(1.0, 0.3), *(2.0, 0.2)]  # full, then core, at each of three evaluations
    told = {"eval_strategy": "steps", "eval_steps": 4, "load_best_model_at_end": True}
    told |= {"metric_for_best_model": "core_score", "greater_is_better": True}
    trainer = PartialTrainer(
        model=nested,
        args=bert.arguments(tmp_path, **told),
        method=ps.methods.alternating(),
        train_dataset=bert.data(),
        eval_dataset=data,
        compute_metrics=scripted(scores),
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "eval_loss" in log]
    assert [log["eval_core_score"] for log in logs] == [0.1, 0.3, 0.2]
    assert [log["eval_full_score"] for log in logs] == [log["eval_score"] for log in logs] == [3.0, 1.0, 2.0]
    best = tmp_path / "checkpoint-8"
    assert trainer.state.best_model_checkpoint == str(best)
    assert not bert.differing(nested, ps.export.load(best))
    assert bert.differing(nested, ps.export.load(tmp_path / "checkpoint-12"))

    trainer.compute_metrics = None
    metrics, inputs = trainer.evaluate(), torch.stack([row["input_ids"] for row in data])
    labels = torch.tensor([row["labels"] for row in data])
    for level in nested.levels:
        with torch.no_grad():
            loss = nested.extract(level).eval()(inputs, labels=labels).loss
        assert metrics[f"eval_{level}_loss"] == pytest.approx(float(loss), rel=1e-4)
    assert metrics["eval_loss"] == metrics["eval_full_loss"] != metrics["eval_core_loss"]
    with nested.at("core"):
        assert trainer.predict(data).metrics["test_loss"] == metrics["eval_core_loss"]


@pytest.mark.parametrize("name", ["plain", "alternating"])
def test_a_family_needs_to_be_told_nothing(tmp_path: Path, name: str) -> None:
    """Columns that BERT does not take, gradient checkpointing and noise on the embeddings."""
    nested = bert.family()
    told = {"gradient_checkpointing": True, "neftune_noise_alpha": 5.0, "save_strategy": "no", "max_steps": 4}
    trainer = PartialTrainer(
        model=nested, args=bert.arguments(tmp_path, **told), method=getattr(ps.methods, name)(),
        train_dataset=bert.data(), eval_dataset=bert.data(8),
    )  # fmt: skip
    trainer.train()
    assert nested.is_gradient_checkpointing and trainer.label_names == ["labels"]
    assert trainer.sgd.t == 4 and {"eval_core_loss", "eval_full_loss", "eval_loss"} <= trainer.evaluate().keys()


def test_label_smoothing_shifts_the_labels_of_a_causal_model(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, set_seed

    def loss(nested: bool) -> float:
        set_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=2))
        rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in bert.data(8)]
        told = bert.arguments(tmp_path, label_smoothing_factor=0.1)
        given = ps.nest(model, levels={}) if nested else model
        return PartialTrainer(model=given, args=told, eval_dataset=rows).evaluate()["eval_loss"]

    assert loss(nested=True) == loss(nested=False)


def test_seq2seq_generates_at_every_level(tmp_path: Path) -> None:
    from transformers import (
        BartConfig,
        BartForConditionalGeneration,
        GenerationConfig,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        set_seed,
    )

    class PartialSeq2SeqTrainer(PartialTrainerMixin, Seq2SeqTrainer):
        pass

    set_seed(0)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    tokens = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = BartConfig(vocab_size=16, d_model=16, encoder_attention_heads=2, decoder_attention_heads=2,
                        max_position_embeddings=16, forced_eos_token_id=None, **sizes, **tokens)  # fmt: skip
    nested = ps.nest(BartForConditionalGeneration(config), ps.Width(1 / 4))
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in bert.data(16)]
    common = bert.arguments(tmp_path, save_strategy="no", max_steps=2).to_dict()
    kept = ("max_steps", "learning_rate", "per_device_train_batch_size", "use_cpu", "disable_tqdm", "save_strategy")
    generation = GenerationConfig(max_length=7, do_sample=False, **tokens)
    told = Seq2SeqTrainingArguments(
        str(tmp_path), predict_with_generate=True, generation_config=generation, report_to="none",
        dataloader_pin_memory=False, **{name: common[name] for name in kept},
    )  # fmt: skip
    seen = []
    trainer = PartialSeq2SeqTrainer(
        model=nested, args=told, method=ps.methods.alternating(), train_dataset=rows, eval_dataset=rows[:4],
        compute_metrics=lambda p: seen.append(p.predictions) or {"length": float(p.predictions.shape[1])},
    )  # fmt: skip
    trainer.train()
    metrics = trainer.evaluate()
    assert metrics["eval_core_length"] == metrics["eval_full_length"] == 7
    inputs = torch.stack([row["input_ids"] for row in rows[:4]])
    for level, predictions in zip(("full", "core"), seen, strict=True):
        with nested.at(level):
            generated = nested.generate(inputs, max_length=7)
        assert torch.equal(generated, torch.as_tensor(predictions)[:, : generated.shape[1]])


# --- checkpoints


@each_method
def test_it_resumes_to_the_bit(tmp_path: Path, method: ps.Method, gradients: int) -> None:
    def trained(**options: Any) -> Any:
        trainer = PartialTrainer(bert.network(), bert.arguments(tmp_path), method=method, train_dataset=bert.data())
        trainer.train(**options)
        return trainer

    whole = trained()
    parts = trained(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert parts.sgd.t == parts.state.global_step == bert.STEPS
    assert parts.state.log_history[:-1] == whole.state.log_history[:-1]  # the last one tells the time
    assert not bert.differing(whole.model, parts.model)
    assert not any(b"partialsgd" in file.read_bytes() for file in tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("kills", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_a_family_that_is_killed_and_resumed_is_the_same_to_the_bit(tmp_path: Path, kills: str) -> None:
    """One process and two, with SIGKILL in the middle of the training or of a checkpoint."""
    command = [sys.executable, "-m", "tests.integrations.killed_trainer", str(tmp_path), kills]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": same") == (3 if kills == "some" else 6)


def test_a_checkpoint_without_the_state_of_the_method_is_refused(tmp_path: Path) -> None:
    told = bert.arguments(tmp_path, max_steps=4)
    transformers.Trainer(bert.network(), told, train_dataset=bert.data()).train()
    trainer = PartialTrainer(bert.network(), told, method=ps.methods.sam(), train_dataset=bert.data())
    with pytest.raises(ValueError, match=r"no complete checkpoint of a PartialTrainer"):
        trainer.train(resume_from_checkpoint=True)
    with pytest.raises(FileNotFoundError, match=r"partialsgd\.safetensors does not exist.*plain Trainer"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_another_family_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    told = bert.arguments(tmp_path, max_steps=4)
    PartialTrainer(bert.family(), told, method=ps.methods.alternating(), train_dataset=bert.data()).train()
    other = ps.nest(bert.network(), ps.LowRank(1 / 8))
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    trainer = PartialTrainer(other, told, method=ps.methods.alternating(), train_dataset=bert.data())
    with pytest.raises(ValueError, match="not the one saved"):
        trainer.train(resume_from_checkpoint=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())
    weights = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert not any(name.startswith("model.") for name in weights)  # the keys of the model that was nested


def test_a_plain_trainer_that_is_given_a_nested_model_is_told_of_ours(tmp_path: Path) -> None:
    told = bert.arguments(tmp_path, save_strategy="no", max_steps=2)
    for trainer_class in (transformers.Trainer, transformers.Seq2SeqTrainer):
        with pytest.raises(TypeError, match=r"Use PartialTrainer\(model=nested, method=.* nested.extract\(level\)"):
            trainer_class(bert.family(), told, train_dataset=bert.data())
    assert not hasattr(bert.family(), "no_such_name")  # other names that libraries ask for are answered as before
    method = ps.methods.alternating()
    ours = PartialTrainer(None, told, model_init=bert.family, method=method, train_dataset=bert.data())
    ours.train()
    assert ours.sgd.t == 2


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"call it: methods\.alternating\(\)"):
        PartialTrainer(bert.family(), bert.arguments(tmp_path), method=ps.methods.alternating)
    with pytest.raises(TypeError, match=r"got 'alternating'; write methods\.alternating\(\)"):
        PartialTrainer(bert.family(), bert.arguments(tmp_path), method="alternating")
    with pytest.raises(AttributeError, match=r"neither Nested nor the BertForSequenceClassification inside it has"):
        _ = bert.family().no_such_name
