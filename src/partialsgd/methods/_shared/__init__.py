"""Helpers that several methods share."""
