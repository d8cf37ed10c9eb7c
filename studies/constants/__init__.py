"""Estimates of the constants of Theorem 1 (L, M, σ², F_0); see docs/criteria.md."""

from __future__ import annotations

from studies.constants.curvature import Curvature as Curvature
from studies.constants.findings import Findings as Findings
from studies.constants.findings import estimate as estimate
from studies.constants.findings import masks_of as masks_of
from studies.constants.findings import measure as measure
from studies.constants.findings import secant as secant
from studies.constants.gradient_noise import Estimate as Estimate
from studies.constants.gradient_noise import Point as Point

__all__ = ["Curvature", "Estimate", "Findings", "Point", "estimate", "masks_of", "measure", "secant"]
