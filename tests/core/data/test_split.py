import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.data import Document
from arcforge_core.data.split import key_hash, scan, unique
from arcforge_core.errors import DataError


def documents(*texts: str) -> list[Document]:
    return [Document(f"doc{n}", text, "test") for n, text in enumerate(texts)]


def test_the_hash_of_a_key_never_changes() -> None:
    assert key_hash("json/decoder.py") == 0x3B2E3CB3D29D57A5
    many = [key_hash(f"key{n}") for n in range(4000)]
    assert abs(sum(h < 2**64 * 0.05 for h in many) / 4000 - 0.05) < 0.015


def test_a_document_keeps_its_side_when_others_come() -> None:
    few = documents(*(f"text {n}" for n in range(100)))
    more = few + [Document(f"new{n}", f"new {n}", "test") for n in range(100)]
    first, second = scan(few, 0.1), scan(more, 0.1)
    assert [first.is_heldout(d) for d in few] == [second.is_heldout(d) for d in few]
    assert 0 < sum(map(first.is_heldout, few)) < 30


@given(st.lists(st.sampled_from(["", "a", "b", "cé", "dd", "e", "f"]), min_size=2, max_size=30))
def test_copies_never_straddle_the_split(texts: list[str]) -> None:
    kept = list(unique(documents(*texts)))
    assert sorted(d.text for d in kept) == sorted(set(texts) - {""})
    if len(kept) < 2:
        return
    split = scan(documents(*texts), 0.3)
    assert (split.num_documents, split.empty) == (len(kept), texts.count(""))
    assert split.duplicates == len(texts) - len(kept) - split.empty
    assert split.num_bytes == sum(len(d.text.encode()) for d in kept)
    assert 0 < sum(map(split.is_heldout, kept)) < len(kept)


def test_parts_of_held_out_documents_are_left_out() -> None:
    whole = documents(*(f"text {n}" for n in range(100)))
    parts = [Document(f"{d.key}:0", f"part of {d.text}", "test", part_of=d.key) for d in whole]
    split = scan(whole + parts, 0.1)
    assert split.limit == scan(whole, 0.1).limit, "parts move no document to the other side"
    kept = list(split.kept(whole + parts))
    held = {d.key for d in whole if split.is_heldout(d)}
    assert held
    assert {d.part_of for d in kept if d.part_of} == {d.key for d in whole} - held
    assert (split.num_documents, split.duplicates) == (len(kept), 0)
    assert split.num_bytes == sum(len(d.text) for d in kept)


@pytest.mark.parametrize("texts", [(), ("", "")])
def test_an_empty_corpus_is_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match=rf"corpus is empty: {len(texts)} documents"):
        scan(documents(*texts), 0.1)


def test_a_single_document_cannot_be_split() -> None:
    with pytest.raises(DataError, match=r"data\.heldout=0\.1: the corpus is a single document"):
        scan(documents("only"), 0.1)
    assert scan(documents("only"), 0.0).limit == 0


def grams(text: str, split: Callable[[str], list[str]] = str.split) -> set[tuple[str, ...]]:
    words = split(text)
    return {tuple(words[n : n + 13]) for n in range(max(1, len(words) - 12))}


def planted(draw: random.Random, originals: int, copies: int) -> list[Document]:
    """Texts of random words, and copies of some in which up to a tenth of the words differ, shortened or embedded."""

    def text(count: int) -> list[str]:
        return [f"w{draw.randrange(10**6)}" for _ in range(count)]

    whole = [text(draw.randrange(100, 600)) for _ in range(originals)]
    made = []
    for _ in range(copies):
        copied = [word if draw.random() > 0.1 * draw.random() else "changed" for word in draw.choice(whole)]
        cut = copied[: draw.randrange(len(copied) // 2, len(copied) + 1)]
        made.append(draw.choice([copied, cut, text(len(cut) // 2) + cut + text(len(cut) // 2)]))
    found = [Document(f"d{draw.randrange(10**9)}", " ".join(words), "test") for words in whole + made]
    draw.shuffle(found)
    return found


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([0.05, 0.3]))
def test_near_copies_never_straddle_the_split(seed: int, heldout: float) -> None:
    draw = random.Random(seed)
    corpus = planted(draw, originals=30, copies=draw.randrange(40))
    split = scan(iter(corpus), heldout)
    held = set().union(*(grams(d.text) for d in corpus if split.is_heldout(d)))
    trained = set().union(*(grams(d.text) for d in corpus if not split.is_heldout(d)))
    assert held and trained
    assert len(held & trained) < 0.01 * len(held)
    draw.shuffle(corpus)
    again = scan(iter(corpus), heldout)
    assert {d.key for d in corpus if again.is_heldout(d)} == {d.key for d in corpus if split.is_heldout(d)}


def test_a_group_of_near_copies_is_of_one_source_or_several_and_keeps_its_side() -> None:
    """Documents without near copies stay where the hash of their key puts them."""
    draw = random.Random(0)
    single = [Document(f"s{n}", " ".join(f"{n}.{draw.random()}" for _ in range(50)), "files") for n in range(200)]
    copies = [Document(f"other/{d.key}", f"{d.text} and more", "hub") for d in single[:100]]
    split = scan(single + copies, 0.2)
    sides = {d.key: split.is_heldout(d) for d in single + copies}
    assert all(sides[d.key] == sides[f"other/{d.key}"] for d in single[:100])
    assert all(sides[d.key] == (key_hash(d.key) < 0.2 * 2**64) for d in single[100:])
    assert 10 < sum(sides[d.key] for d in single[:100]) < 30, "a group is held out as often as a document"
    assert len(split.moved) == 200


def test_a_large_group_is_trained_on_and_a_corpus_of_near_copies_is_split_with_a_word(
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = " ".join(f"c{n}" for n in range(200))
    large = [Document(f"large{n}", f"{common} {n}", "test") for n in range(20)]
    single = [Document(f"s{n}", " ".join(f"{n}.{m}" for m in range(200)), "test") for n in range(100)]
    for heldout in (0.05, 0.5, 0.9):
        split = scan(single + large, heldout)
        assert not any(map(split.is_heldout, large))
        assert any(map(split.is_heldout, single))
    assert not capsys.readouterr().err
    split = scan(large, 0.2)
    assert 0 < sum(map(split.is_heldout, large)) < 20
    assert "all 20 documents are near copies of one another" in capsys.readouterr().err


def test_a_text_that_quotes_held_out_text_is_held_out() -> None:
    whole = documents(*(f"text {n}" for n in range(100)))
    held = next(d.key for d in whole if scan(whole, 0.1).is_heldout(d))
    quoting = [Document(f"q{d.key}", f"quotes {d.key}", "test", text_of=(d.key, held)) for d in whole]
    split = scan(whole + quoting, 0.1)
    assert all(map(split.is_heldout, quoting))
    lone = Document("q", "quotes", "test", text_of=("doc0",))
    assert split.is_heldout(lone) == split.is_heldout(whole[0])
