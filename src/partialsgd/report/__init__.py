"""Seeing a run: its metrics, one JSON line a step, the paper's figures drawn from them, and a page of it all."""

from __future__ import annotations

from partialsgd.report.figures import plot_criteria as plot_criteria
from partialsgd.report.figures import plot_losses as plot_losses
from partialsgd.report.metrics import MetricsLog as MetricsLog
from partialsgd.report.page import write_page as write_page
from partialsgd.report.records import read as read
from partialsgd.report.records import record as record

__all__ = ["MetricsLog", "plot_criteria", "plot_losses", "read", "record", "write_page"]
