"""How well rows are told apart: AUC, accuracy, loss."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from partialsgd._util.snapshots import Modes
from partialsgd.lab.recipes.tabular.features import Rows
from partialsgd.lab.recipes.tabular.network import inputs_of
from partialsgd.lab.training.task import Numbers
from partialsgd.nested import Nested


@torch.no_grad()
def outputs(network: Nested, level: str, rows: Rows) -> Tensor:
    """The logit of each row, in evaluation mode, on the CPU."""
    device, modes = next(network.parameters()).device, Modes(network)
    network.eval()
    try:
        with network.at(level):
            logits: Tensor = network(*(column.to(device) for column in inputs_of(rows)))
            return logits.double().cpu()
    finally:
        modes.restore()


def numbers(logits: Tensor, labels: Tensor) -> Numbers:
    from sklearn.metrics import roc_auc_score

    labels = labels.double()
    return {
        "loss": float(F.binary_cross_entropy_with_logits(logits, labels)),
        "AUC": float(roc_auc_score(labels.numpy(), logits.numpy())),
        "accuracy": float(((logits > 0) == (labels > 0)).double().mean()),
    }
