"""Algorithm 1 for PyTorch: the driver, the gradients of a step, and the masked update."""
