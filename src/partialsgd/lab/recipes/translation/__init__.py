"""The translation recipe: a Transformer that translates, at every size."""
