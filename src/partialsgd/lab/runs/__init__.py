"""Run directories: what a training writes, and what can be done with it afterwards."""
