"""Layers that hold several sizes of themselves."""
