import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.errors import DataError
from arcforge_core.eval.long_context.fitting import Filler, insert, largest


@given(limit=st.integers(0, 100_000), least=st.integers(0, 50), scale=st.floats(0.05, 3.0), base=st.integers(0, 100))
@settings(deadline=None)
def test_largest_finds_the_last_that_fits_in_few_calls(limit, least, scale, base):
    calls = []

    def measure(n):
        calls.append(n)
        return base + int(n * scale)

    found = largest(measure, limit, least)
    assert len(calls) <= 12
    if found is None:
        assert measure(least) > limit
    else:
        assert found >= least and measure(found) <= limit
        assert measure(found) == limit or measure(found + 1) > limit


def test_largest_gets_over_what_adds_no_tokens():
    """Thousands of blanks may be one token."""
    assert largest(lambda n: min(n, 10) + max(0, n - 5000), 12, 0) == 5002


def test_filler_goes_through_all_documents_before_it_repeats():
    texts = [f"text {n}\nend {n}\n" for n in range(9)]
    text = Filler(texts, random.Random(0)).take(500)
    assert text.startswith(("text", "end"))
    for n in range(9):
        assert 3 <= text.count(f"end {n}") <= 5


def test_filler_begins_the_same_for_every_size():
    filler = Filler(["some words\nand more\n", "others\n"], random.Random(3))
    long = filler.take(200)
    assert len(long) == 200 and long.startswith(filler.take(17))
    assert Filler(["some words\nand more\n", "others\n"], random.Random(3)).take(200) == long


def test_filler_needs_text():
    with pytest.raises(DataError, match="no text"):
        Filler([" ", "\n"], random.Random(0))


@given(
    words=st.lists(st.text("abc", min_size=1, max_size=8), min_size=1, max_size=60),
    depths=st.lists(st.floats(0, 1), max_size=5),
)
def test_insert_leaves_words_whole_and_everything_in_order(words, depths):
    filler = " ".join(words)
    needles = [(depth, f"<{n}>") for n, depth in enumerate(depths)]
    text = insert(filler, needles)
    order = sorted(range(len(depths)), key=lambda n: depths[n])
    places = [text.index(f"<{n}>") for n in order]
    assert places == sorted(places)
    for n in range(len(depths)):
        text = text.replace(f"<{n}>", "|")
    assert text.replace("|", "") == filler
    assert text.replace("|", " ").split() == words


def test_insert_cuts_where_there_are_no_words():
    assert insert("x" * 200, [(0.5, "!")]) == "x" * 100 + "!" + "x" * 100
