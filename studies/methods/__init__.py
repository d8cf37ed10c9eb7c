"""Every method of the registry, trained on the same tasks: `python -m studies.methods`."""
