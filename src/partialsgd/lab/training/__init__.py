"""The training loop: settings, batches, learning rate, evaluation, checkpoints."""
