"""Rows of a table: a wide and a deep network, and their sum."""
