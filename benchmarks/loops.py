"""Tokens a second and memory under Hugging Face's Trainer and Lightning, with a plain method ÷ without partialsgd.

python -m benchmarks.loops [--rounds 15] [--steps 20] [--threads 2]   # 0.98 of the tokens a second is the limit

The two run in turns, in shuffled order, on fresh copies of the same GPT-2; only steps are timed, not the first ones.
A figure is the median of the ratios within each round, with an interval of 95 % confidence. Memory is the peak of what
torch allocates in three steps with accumulation, optimizer state included.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial as bound
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.harness import estimate
from benchmarks.live_bytes import peak_of
from benchmarks.machine import Company
from partialsgd._util.malloc import keep_freed_memory

LIMIT = 0.98
LENGTH, BATCH, VOCABULARY = 64, 8, 512
_WARM_UP = 3

Run = Callable[[int], list[float]]
"""Trains for so many steps, and returns the moments at which they ended."""


def network() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4, use_cache=False)
    return GPT2LMHeadModel(config)


def texts(rows: int) -> Tensor:
    return torch.randint(VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(0))


def trainer(*, partial: bool, micro_batches: int = 1) -> Run:
    """A run of the Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from partialsgd.integrations import PartialTrainer

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.moments: list[float] = []

        def on_step_end(self, *args: Any, **others: Any) -> None:
            self.moments.append(time.perf_counter())

    def run(steps: int) -> list[float]:
        clock = Clock()
        rows = texts(steps * BATCH * micro_batches)
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                max_steps=steps,
                per_device_train_batch_size=BATCH,
                gradient_accumulation_steps=micro_batches,
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            )
            data: Any = [{"input_ids": row, "labels": row} for row in rows]
            make = PartialTrainer if partial else Trainer
            make(network(), arguments, train_dataset=data, callbacks=[clock]).train()
        return clock.moments

    return run


def lightning(*, partial: bool, micro_batches: int = 1) -> Run:
    """A run of Lightning."""
    import lightning as pl
    from torch.utils.data import DataLoader

    from partialsgd.integrations import PartialSGDCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.moments = network(), list[float]()

        def training_step(self, batch: Tensor, number: int) -> Any:
            model: Any = self.network
            return model(input_ids=batch, labels=batch).loss

        def on_train_batch_end(self, *args: Any) -> None:
            self.moments.append(time.perf_counter())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)

    def run(steps: int) -> list[float]:
        module = Module()
        quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_checkpointing"), False)
        fitting = pl.Trainer(
            accelerator="cpu",
            max_steps=steps,
            accumulate_grad_batches=micro_batches,
            gradient_clip_val=1.0,
            enable_model_summary=False,
            callbacks=[PartialSGDCallback()] if partial else [],
            **quiet,
        )
        data: Any = texts(steps * BATCH * micro_batches)  # a list serves as a Dataset
        fitting.fit(module, DataLoader(data, batch_size=BATCH))
        return module.moments[micro_batches - 1 :: micro_batches]

    return run


def tokens_a_second(run: Run, steps: int) -> float:
    moments = run(steps + _WARM_UP)
    return steps * BATCH * LENGTH / (moments[-1] - moments[-1 - steps])


def measure(rounds: int, steps: int) -> Table:
    company, order = Company(), random.Random(0)
    table = Table("loop", "tokens a second ÷ without", "95 % interval", "limit", "memory ÷ without", "tokens a second")
    for name, make in (("Hugging Face Trainer", trainer), ("Lightning", lightning)):
        runs = {ours: make(partial=ours) for ours in (False, True)}
        ratios, speeds = [], []
        for _ in range(rounds):
            turns = [False, True]
            order.shuffle(turns)
            speed = {ours: tokens_a_second(runs[ours], steps) for ours in turns}
            ratios.append(speed[True] / speed[False])
            speeds.append(speed[True])
        three_steps = [bound(make(partial=ours, micro_batches=2), 3) for ours in (True, False)]
        peaks = [peak_of(run) for run in three_steps]
        ratio = estimate(ratios)
        interval, speed_of_ours = f"{ratio.low:.3f} – {ratio.high:.3f}", f"{sorted(speeds)[len(speeds) // 2]:,.0f}"
        table.add_row(name, f"{ratio.value:.3f}", interval, f"≥ {LIMIT}", f"{peaks[0] / peaks[1]:.3f}", speed_of_ours)
    share = company.share()
    table.caption = "" if share is None else f"others used {share:.0%} of the machine meanwhile"
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    Console(width=140).print(measure(options.rounds, options.steps))


if __name__ == "__main__":
    main()
