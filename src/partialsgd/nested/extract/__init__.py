"""Extraction: one level of a nested model as a plain module."""
