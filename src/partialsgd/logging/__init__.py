"""Logging: the metrics of a run as JSON lines and TensorBoard events, and the paper's figures drawn from them."""

from __future__ import annotations

from partialsgd.logging.figures import plot_criteria as plot_criteria
from partialsgd.logging.figures import plot_losses as plot_losses
from partialsgd.logging.metrics_log import MetricsLog as MetricsLog
from partialsgd.logging.metrics_log import read as read
from partialsgd.logging.metrics_log import record as record

__all__ = ["MetricsLog", "plot_criteria", "plot_losses", "read", "record"]
