"""Budgets: the sizes of a level's layers, chosen by what their units are worth and what they cost."""
