"""What a method must keep, as tests that any method can be put through: see `partialsgd.testing.contracts`."""
