"""Sentences in, sentences out: a Transformer of every size."""
