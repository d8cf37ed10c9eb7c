"""What needs no network: the translation of the nearest training phrase, copied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from partialsgd.lab.recipes.translation.corpus import Pair

RULE = "the translation of the training phrase with the largest cosine of tf-idf over n-grams of 1 to 4 words"
LARGEST = 200_000
"""Training pairs that are looked at; of a larger corpus that many, evenly spaced."""

_BLOCK = 64  # lines compared at once: that many numbers for each training pair


def copied(train: Sequence[Pair], lines: Sequence[str]) -> list[str]:
    """For each line the target of its nearest source in `train`; of equals, the first."""
    if not train:
        raise ValueError("there is no training phrase to copy from")
    known = spaced(train, LARGEST)
    vectors, sought = _tf_idf([source for source, _ in known], lines)
    return [known[place][1] for place in _nearest(vectors, sought)]


def spaced(pairs: Sequence[Pair], most: int) -> Sequence[Pair]:
    return pairs if len(pairs) <= most else [pairs[i * len(pairs) // most] for i in range(most)]


def _tf_idf(known: Sequence[str], sought: Sequence[str]) -> tuple[Any, Any]:
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = r"\w+|[^\w\s]"  # and signs, as BLEU counts them
    vectorizer = TfidfVectorizer(token_pattern=words, ngram_range=(1, 4), lowercase=False, dtype=np.float32)
    return vectorizer.fit_transform(known), vectorizer.transform(sought)


def _nearest(vectors: Any, sought: Any) -> list[int]:
    places: list[int] = []
    for start in range(0, sought.shape[0], _BLOCK):
        cosines = (sought[start : start + _BLOCK] @ vectors.T).toarray()
        places.extend(int(place) for place in cosines.argmax(axis=1))
    return places
