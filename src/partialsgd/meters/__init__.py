"""Meters: the paper's convergence criteria, measured while training."""

from __future__ import annotations

from partialsgd.meters.alerts import Alerts as Alerts
from partialsgd.meters.criteria import Criteria as Criteria
from partialsgd.meters.criteria import Summary as Summary
from partialsgd.meters.criteria_meter import CriteriaMeter as CriteriaMeter

__all__ = ["Alerts", "Criteria", "CriteriaMeter", "Summary"]
