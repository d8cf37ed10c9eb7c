"""Ratios against the fastest form we know of the same thing: `make bench`."""
