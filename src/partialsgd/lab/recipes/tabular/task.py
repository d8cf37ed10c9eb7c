"""Wide and deep: data, network, loss and numbers of a training on the rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import partialsgd as ps
from partialsgd.engine.gradient_pass import GradientPass
from partialsgd.lab.recipes.tabular import adult, baseline, breast_cancer, scores
from partialsgd.lab.recipes.tabular.batches import RowBatches
from partialsgd.lab.recipes.tabular.features import Features, Rows, features
from partialsgd.lab.recipes.tabular.network import Deep, Wide, inputs_of, wide_and_deep
from partialsgd.lab.recipes.tabular.settings import Tabular
from partialsgd.lab.recipes.tabular.tables import Tables
from partialsgd.lab.training import data_hash as digests
from partialsgd.lab.training import rates, timing
from partialsgd.lab.training.task import Batches, Numbers, Split, Task
from partialsgd.nested import Nested
from partialsgd.nested.inspect.flops import count


@final
class TabularTask:
    """What the loop trains."""

    unit: str = "rows"
    score: str = "AUC"

    def __init__(self, settings: Tabular, tables: Tables, encoder: Features, network: Nested) -> None:
        self.settings, self.encoder, self.network = settings, encoder, network
        self.train, self.valid, self.test = (encoder.encode(t) for t in (tables.train, tables.valid, tables.test))
        deep, wide = (network.model.get_submodule(part) for part in ("core", "extension"))
        self.optimizers: Sequence[Optimizer] = [
            torch.optim.AdamW(deep.parameters(), settings.lr_deep, weight_decay=settings.weight_decay),
            torch.optim.Adagrad(wide.parameters(), settings.lr_wide),
        ]
        self.batches: Batches = RowBatches(self.train, size=settings.batch, seed=settings.seed)
        self._row_flops: dict[str, int] = {}

    def notes(self) -> list[str]:
        sizes = (len(rows.labels) for rows in (self.train, self.valid, self.test))
        return ["{:,} rows to train with, {:,} to validate, {:,} to test".format(*sizes)]

    def digest(self) -> str:
        return digests.of_tensors(*self.train, *self.valid, *self.test)

    def rate(self, t: int, total: int) -> float:
        return rates.cosine(total, self.settings.warm_up)(t)

    def loss(self, model: nn.Module, batch: Rows, g: GradientPass) -> Tensor:
        """Cross-entropy with the labels, or with what a teacher says."""
        g.outputs = logits = model(*inputs_of(batch))
        teacher = g.teacher
        targets = batch.labels if teacher is None else teacher.float().sigmoid()
        return F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="sum")

    def glance(self, level: str) -> Numbers:
        return self.scores(level, "valid")

    def merit(self, glances: Mapping[str, Numbers]) -> float:
        """The mean AUC of the levels."""
        return sum(numbers["AUC"] for numbers in glances.values()) / len(glances)

    def scores(self, level: str, split: Split) -> Numbers:
        """Loss, AUC and accuracy."""
        rows = self.valid if split == "valid" else self.test
        return scores.numbers(scores.outputs(self.network, level, rows), rows.labels)

    def extras(self) -> dict[str, Any]:
        """Beside the levels: a logistic regression on the same features, on the test rows."""
        found = baseline.logistic_regression(self.train, self.test, len(self.encoder.crossed))
        return {"logistic regression": [{name: round(value, 4) for name, value in found.items()}]}

    def flops(self, level: str, batch: Rows) -> int:
        """Looking up an embedding is none, as torch counts; the rest is done for each row."""
        if level not in self._row_flops:
            device = next(self.network.parameters()).device
            with self.network.at(level):
                one = count(self.network.model, *(column[:1].to(device) for column in self.example()))
            self._row_flops[level] = one.training
        return self._row_flops[level] * len(batch.labels)

    def example(self) -> tuple[Tensor, ...]:
        return inputs_of(Rows(*(column[:4] for column in self.train)))

    def seconds(self, plain: nn.Module) -> float:
        """A deep part by itself takes its own share of the inputs."""
        one = tuple(column[:1] for column in self.example())
        args, _ = self.network.inputs_of("core" if isinstance(plain, Deep) else "full", (one, {}))
        device = next(plain.parameters()).device
        return timing.latency(plain, *(column.to(device) for column in args))


def build(settings: Tabular) -> Task:
    """Data read, weights drawn."""
    options = (settings.valid_share, settings.seed)
    tables = breast_cancer.read(*options) if settings.data is None else adult.read(settings.data, *options)
    schema, encoder = tables.schema, features(tables.train, tables.schema, settings.buckets)
    sizes = {"embedding": settings.embedding, "hidden": settings.hidden, "layers": settings.layers}
    torch.manual_seed(settings.seed)
    deep = Deep(len(schema.numbers), len(schema.categories), len(encoder.words), **sizes)
    wide = Wide(len(schema.numbers), len(encoder.crossed))
    return TabularTask(settings, tables, encoder, ps.nest(wide_and_deep(deep, wide)))
