"""Support for models wrapped in DistributedDataParallel."""
