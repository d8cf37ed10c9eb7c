"""Processes that die at random moments, under torchrun and under torchft, and what is left of the training."""
