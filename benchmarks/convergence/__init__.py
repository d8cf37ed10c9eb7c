"""Criteria 1 to 3 over whole trainings: Figures 2 to 4, and one more. `python -m benchmarks.convergence`."""
