"""Inspection: FLOPs, measured cost and a drawing of the levels."""
