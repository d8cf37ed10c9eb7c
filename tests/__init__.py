"""Tests: a folder for each package, and `test_<module>.py` here for the modules at its root.

Laws: `contracts.py` puts every method of the registry through the laws of `partialsgd.testing.contracts`, and
`nested/contracts.py` the methods that train levels; `methods/laws.py` collects the settings in which they are tried.

Shared by many files: `training.py` (small networks in training), `zoo.py` and `architectures.py` (networks to nest),
`optimizer_zoo.py` (optimizers), `functions.py` (functions with known constants), `reference.py` (Algorithm 1 written a
second time), `switchable.py` (a network with a network inside, by hand), and `processes.py` (real processes, which
`two_processes.py` and `sharded_processes.py` give their work).
"""
