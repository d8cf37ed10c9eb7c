"""The laws that every training method must keep, as tests for any method: see `partialsgd.testing.contracts`."""
