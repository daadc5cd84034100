import pytest
from hypothesis import given
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
