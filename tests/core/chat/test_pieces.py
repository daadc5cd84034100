import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.chat.pieces import Pieces, Tag, TagSearch
from arcforge_core.testing.chat_cases import pieces_of
from arcforge_core.testing.small_models import small_tokenizer
from arcforge_core.tokenizer.tokenizer import TextStream, Tokenizer

TOKENIZER = small_tokenizer()
DEFINITION = json.loads(TOKENIZER.definition)
DECODERS = [DEFINITION["decoder"], {"type": "Fuse"}]
NOT_BYTE_BY_BYTE = Tokenizer(json.dumps(DEFINITION | {"decoder": {"type": "Sequence", "decoders": DECODERS}}))
"""Gives the same texts, but through the library's stream."""
TAGS = ("<a>", "</a>", "<|user|>")


def merged(pieces):
    found = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


@given(st.text("<a/>|user", max_size=30), st.sets(st.integers(0, 30), max_size=5))
def test_tags_are_found_wherever_the_text_is_cut(text, cuts):
    def found(parts):
        search = TagSearch(TAGS)
        return merged([*(piece for part in parts for piece in search.push(part)), search.flush()])

    whole = found([text])
    assert [piece for piece in found(pieces_of(text, cuts)) if piece] == [piece for piece in whole if piece]
    assert "".join(piece.name if isinstance(piece, Tag) else piece for piece in whole) == text


def test_text_is_held_back_only_while_it_may_be_a_tag():
    search = TagSearch(TAGS)
    assert [list(search.push(part)) for part in ("x<", "b<a", ">", "</", "a>")] == [
        ["x"], ["<b"], [Tag("<a>")], [], [Tag("</a>")],
    ]  # fmt: skip


def test_without_tags_nothing_is_held_back():
    assert list(TagSearch(()).push("<a>")) == ["<a>"]


def test_a_tag_that_is_no_token_is_found_in_the_text_of_ids():
    pieces = Pieces(TAGS, TOKENIZER)
    ids = [*TOKENIZER.encode("x<a>y<|user|>"), TOKENIZER.special["<|user|>"]]
    assert merged([*pieces.of_ids(ids), *pieces.rest()]) == ["x", Tag("<a>"), "y<|user|>", Tag("<|user|>")]


def test_a_tag_is_not_put_together_across_a_token_that_is_one():
    pieces = Pieces(TAGS, TOKENIZER)
    ids = [*TOKENIZER.encode("<"), TOKENIZER.special["<|user|>"], *TOKENIZER.encode("a>")]
    assert merged([*pieces.of_ids(ids), *pieces.rest()]) == ["<", Tag("<|user|>"), "a>"]


@given(st.lists(st.integers(0, TOKENIZER.vocab_size), max_size=12), st.sampled_from([TOKENIZER, NOT_BYTE_BY_BYTE]))
def test_a_stream_of_ids_is_their_text(ids, tokenizer):
    one, all_ = TextStream(tokenizer), TextStream(tokenizer)
    text = "".join(map(one.push, ids)) + one.flush()
    assert text == all_.push_all(ids) + all_.flush() == tokenizer.decode(ids)


@pytest.mark.parametrize("text", ["漢字", "🙂é"])
def test_a_character_comes_when_its_last_byte_does(text):
    stream = TextStream(TOKENIZER)
    ids = TOKENIZER.encode(text)
    parts = [stream.push(id_) for id_ in ids]
    assert len(ids) > len(text) and [part for part in parts if part] == list(text)
    assert stream.flush() == ""


def test_a_stream_is_as_new_after_a_flush():
    stream = TextStream(TOKENIZER)
    first, *rest = TOKENIZER.encode("漢")
    assert (stream.push(first), stream.flush()) == ("", "\ufffd")
    assert "".join(map(stream.push, [first, *rest])) == "漢"
