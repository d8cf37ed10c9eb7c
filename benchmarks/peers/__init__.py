"""Ours beside whittle and Torch-Pruning, in an environment of their own."""
