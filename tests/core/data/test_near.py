import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.data.near import Phrases, words

WORDS = [f"w{n}" for n in range(400)]


def phrases_of(documents: dict[str, list[str]], length: int = 5, budget: int = 1 << 20) -> Phrases:
    phrases = Phrases(length, budget)
    for name, said in documents.items():
        phrases.add(name, said)
    return phrases


def spans(said: list[str], length: int = 5) -> set[tuple[str, ...]]:
    return {tuple(said[n : n + length]) for n in range(max(1, len(said) - length + 1))}


def test_words_are_compared_without_case_and_layout() -> None:
    assert words("Sum(a,b)\n  = C") == ["sum", "(", "a", ",", "b", ")", "=", "c"]
    assert words("東京は é") == ["東", "京", "は", "é"]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), min_size=1, max_size=8))
def test_phrases_are_hashed_one_to_one(texts: list[list[str]]) -> None:
    phrases = phrases_of({str(n): said for n, said in enumerate(texts)})
    for n, said in enumerate(texts):
        assert len(phrases.kept[str(n)]) == len(spans(said))
        for m, other in enumerate(texts):
            common = np.intersect1d(phrases.kept[str(n)], phrases.kept[str(m)])
            assert len(common) == len(spans(said) & spans(other))


@settings(max_examples=50)
@given(st.randoms(use_true_random=False), st.sampled_from([0.05, 0.3]))
def test_no_document_shares_more_with_other_groups_whatever_the_order(draw: random.Random, share: float) -> None:
    pieces = [[f"{n}.{m}" for m in range(12)] for n in range(10)]
    documents = {
        f"d{n}": [word for piece in draw.choices(pieces, k=draw.randrange(1, 6)) for word in piece] for n in range(12)
    }
    groups = phrases_of(documents).groups(share)
    found = {name: spans(said) for name, said in documents.items()}
    for name, own in found.items():
        group = groups.get(name, name)
        others = set().union(*(found[other] for other in found if groups.get(other, other) != group), set())
        assert len(own & others) < share * len(own)
    assert all(first == min(n for n, of in groups.items() if of == first) for first in groups.values())
    shuffled = list(documents)
    draw.shuffle(shuffled)
    assert phrases_of({name: documents[name] for name in shuffled}).groups(share) == groups


def test_documents_without_common_phrases_are_in_no_group() -> None:
    documents = {f"d{n}": [f"{n}.{m}" for m in range(50)] for n in range(20)}
    assert phrases_of(documents).groups(0.05) == {}
    assert Phrases(5).groups(0.05) == {}


def test_memory_is_bounded_and_a_sample_finds_the_same_groups() -> None:
    draw = random.Random(0)
    documents = {f"d{n:02}": [f"{draw.random()}" for _ in range(3000)] for n in range(20)}
    documents |= {f"e{n:02}": [*documents[f"d{n:02}"][:2000], *WORDS] for n in range(10)}
    wanted = {name: f"d{name[1:]}" for n in range(10) for name in (f"d{n:02}", f"e{n:02}")}
    everything, sample = phrases_of(documents), phrases_of(documents, budget=8000)
    assert sum(map(len, sample.kept.values())) <= 8000 < sum(map(len, everything.kept.values()))
    assert everything.groups(0.3) == sample.groups(0.3) == wanted
    backwards = phrases_of(dict(reversed(documents.items())), budget=8000)
    assert backwards.kept.keys() == sample.kept.keys()
    assert all(np.array_equal(backwards.kept[name], kept_P) for name, kept_P in sample.kept.items())


@pytest.mark.parametrize("shared", [100, 200, 300])
def test_copies_are_found_by_their_jaccard_index(shared: int) -> None:
    other = [*WORDS[:shared], *(f"v{n}" for n in range(400 - shared))]
    index = len(spans(WORDS) & spans(other)) / len(spans(WORDS) | spans(other))
    phrases = phrases_of({"b": WORDS, "a": other, "c": WORDS[:200]})
    assert phrases.copies(index + 0.01).keys() <= {"c"}
    (found,) = (value for name, value in phrases_of({"b": WORDS, "a": other}).copies(index - 0.01).items())
    assert found[1] == pytest.approx(index)


def test_of_copies_the_longest_stays_whatever_the_order() -> None:
    documents = {"long": [*WORDS, "more"], "short": WORDS, "half": WORDS[:200], "alone": WORDS[::-1]}
    for names in (list(documents), list(reversed(documents))):
        dropped = phrases_of({name: documents[name] for name in names}).copies(0.8)
        assert dropped == {"short": ("long", pytest.approx(396 / 397))}
