"""Text that other tools cut and escaped is joined again: as Moses' own detokeniser does it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacremoses import MosesDetokenizer

from partialsgd.lab.recipes.translation.corpus import MOSES, has_bpe, join_bpe, join_moses, share_alone

# What the detokeniser looks at, and words: of these every line is made.
WORDS = (
    *("it", "&apos;s", "students", "&apos;", "&quot;", "``", "''", "`", "„", "“", "(", ")", "[", "]", "&#91;", "&#93;"),
    *(",", ".", "?", "!", ":", ";", "%", "...", "?!", "\\", "{", "}", "¿", "¡", "$", "€", "$(", "12", "3.5", "Straße"),
    *(
        "l&apos;",
        "homme",
        "d&apos;",
        "1&apos;",
        "&lt;b&gt;",
        "&amp;",
        "&amp;apos;",
        "&#124;",
        "@-@",
        "é",
        "-",
        "--",
        "'t",
    ),
    *("x,", "M.", "&apos;12", "'", '"', "s"),
)


@pytest.mark.parametrize("language", ["en", "de", "fr", "it"])
@given(words=st.lists(st.sampled_from(WORDS), max_size=14))
def test_a_line_is_joined_as_by_moses(language: str, words: list[str]) -> None:
    if language == "fr":  # where Moses has a space before these even after an opening mark
        words = [word for word in words if word not in {*"?!:;%\\"}]
    assert join_moses(" ".join(words), language) == MosesDetokenizer(lang=language).detokenize(words)


@pytest.mark.parametrize(
    ("language", "tokenised", "text"),
    [
        ("en", "i don &apos;t know , she said .", "i don't know, she said."),
        ("en", "&quot; why ? &quot; ( he asked )", '"why?" (he asked)'),
        ("en", "the students &apos; books", "the students' books"),
        ("de", "ein &quot; Zitat &quot; : 20 % , 5 € !", 'ein "Zitat": 20%, 5 €!'),
        ("fr", "l&apos; homme dit : oui ! vraiment ?! ( ? )", "l'homme dit : oui ! vraiment?! (?)"),
        ("de", "west @-@ afrikanisch &amp; &lt; 3 &gt; &#91; x &#93;", "west-afrikanisch & < 3 > [x]"),
    ],
)
def test_examples(language: str, tokenised: str, text: str) -> None:
    assert join_moses(tokenised, language) == text


def test_moses_is_known_by_marks_that_stand_alone() -> None:
    """Not by dots within an abbreviation or a number, not by an ellipsis, not by French question marks."""
    assert share_alone(["so , 1,000 of them .", "dr. no , mr. x ...", "x ,"]) == 1.0 >= MOSES
    assert share_alone(["So, 1,000 of them.", "Vraiment ? Oui !", "Dr. No ..."]) == 0.0
    assert share_alone(["a , b, c"]) == 0.5 < MOSES
    assert share_alone(["a, b", *["a , b ."] * 5]) == 10 / 11 >= MOSES
    assert share_alone(["no marks at all", "", "。"]) == share_alone([]) == 0.0


def test_bpe_is_known_by_its_marks_in_a_hundredth_of_the_lines() -> None:
    assert has_bpe(["a", *["lang@@ uage"] * 1, *["b"] * 98])
    assert not has_bpe(["lang@@ uage", *["b"] * 100])
    assert not has_bpe(["an address @@home", "x@@"]) and not has_bpe([])


@given(st.lists(st.text("abc", min_size=1, max_size=4), min_size=1), st.data())
def test_cut_words_are_joined_again(words: list[str], data: st.DataObject) -> None:
    places = [data.draw(st.integers(0, len(word) - 1)) for word in words]
    cut = [f"{word[:k]}@@ {word[k:]}" if k else word for word, k in zip(words, places, strict=True)]
    assert join_bpe(" ".join(cut)) == " ".join(words)


def test_a_mark_at_the_end_of_a_line_goes() -> None:
    assert join_bpe("a langu@@") == "a langu"
    assert join_bpe("a@@b c") == "a@@b c"
