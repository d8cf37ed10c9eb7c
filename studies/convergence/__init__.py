"""The convergence criteria over whole trainings on real data: `python -m studies.convergence`."""
