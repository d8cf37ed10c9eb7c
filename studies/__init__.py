"""Trainings that were run to learn something: the paper's tables, every method, and the criteria on real data."""
