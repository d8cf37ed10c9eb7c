"""Knowledge of torch optimizers that an exact masked step needs."""
