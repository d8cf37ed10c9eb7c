"""Meters: the paper's convergence criteria, measured while training.

A meter, a guard or a method of your own can use `criteria_of` on a pair of gradients and `latest` on what was measured.
"""

from __future__ import annotations

from partialsgd.meters.alerts import Alerts as Alerts
from partialsgd.meters.criteria import Criteria as Criteria
from partialsgd.meters.criteria import Summary as Summary
from partialsgd.meters.criteria import criteria_of as criteria_of
from partialsgd.meters.criteria import latest as latest
from partialsgd.meters.criteria_meter import CriteriaMeter as CriteriaMeter

__all__ = ["Alerts", "Criteria", "CriteriaMeter", "Summary", "criteria_of", "latest"]
