from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.engine import Token
from arcforge_core.testing.small_models import TOKENIZER_SIZE, small_tokenizer
from arcforge_serving.server.shared.detokenize import Piece, Reader, StopWatch

TOKENIZER = small_tokenizer()
EOS = TOKENIZER.eos_id
TEXTS = st.text(alphabet="ab c<é日😀", max_size=12)
STOPS = st.lists(st.text(alphabet="ab cé日😀", min_size=1, max_size=4), max_size=3)
SPECIAL = st.sampled_from([TOKENIZER.special["</think>"], TOKENIZER.special["<|user|>"]])


def tokens(ids):
    return [Token(id_, -0.5 * n, []) for n, id_ in enumerate(ids)]


def cut(data, ids):
    """Cuts ids into pieces of any size."""
    while ids:
        size = data.draw(st.integers(1, len(ids)))
        yield ids[:size]
        ids = ids[size:]


def read(data, ids, stops=(), hidden=()):
    reader, pieces = Reader(TOKENIZER, stops, hidden), []
    for part in cut(data, tokens(ids)):
        pieces += reader.push(part)
        assert not any(stop in joined(pieces) for stop in stops)
    return [*pieces, *reader.finish()]


def joined(pieces):
    return "".join(piece.text for piece in pieces)


@given(st.lists(st.integers(0, TOKENIZER_SIZE - 1), max_size=20), st.data())
def test_any_ids_give_what_decoding_them_gives(ids, data):
    pieces = read(data, ids)
    assert joined(pieces) == TOKENIZER.decode(ids)
    assert [token for piece in pieces for token in piece.tokens] == tokens(ids)
    assert all(piece.whole for piece in pieces)


@given(TEXTS, st.data())
def test_no_character_is_ever_broken(text, data):
    for piece in read(data, TOKENIZER.encode(text)):
        assert "\ufffd" not in piece.text
        assert len(piece.text.encode()) == sum(len(TOKENIZER.token_bytes(t.id)) for t in piece.tokens)


@given(TEXTS, STOPS, st.lists(SPECIAL, max_size=2), st.data())
def test_the_text_ends_before_the_stop_string_that_is_complete_first(text, stops, specials, data):
    ids = TOKENIZER.encode(text)
    for special in specials:
        at = data.draw(st.integers(0, len(ids)))
        ids = [*ids[:at], special, *ids[at:]]
    watch = StopWatch(TOKENIZER, stops, ())
    ends = [n for n in range(1, len(ids) + 1) if watch(ids[:n])]
    whole = [TOKENIZER.decode(ids[:n]) for n in range(len(ids) + 1)]
    complete = [n for n in range(len(ids) + 1) if any(stop in whole[n] for stop in stops)]
    assert ends[:1] == complete[:1]
    ids = ids[: ends[0]] if ends else ids  # as the engine does
    text = TOKENIZER.decode(ids)
    found = [text.find(stop) for stop in stops if stop in text]
    pieces = read(data, ids, stops)
    assert joined(pieces) == text[: min(found, default=None)]
    assert [token for piece in pieces for token in piece.tokens] == tokens(ids)
    kept = [piece for piece in pieces if piece.whole]
    assert TOKENIZER.decode([t.id for piece in kept for t in piece.tokens]) == joined(kept)


def test_ids_that_are_not_text_count_as_tokens_and_show_nothing():
    ids = [*TOKENIZER.encode("a"), EOS, *TOKENIZER.encode("b"), EOS]
    reader = Reader(TOKENIZER, (TOKENIZER.decode([EOS]),), {EOS})
    pieces = reader.push(tokens(ids)) + reader.finish()
    assert joined(pieces) == "ab"
    assert sum(len(piece.tokens) for piece in pieces) == 4
    watch = StopWatch(TOKENIZER, (TOKENIZER.decode([EOS]), "ab"), {EOS})
    assert [watch(ids[:n]) for n in range(1, 4)] == [False, False, True]


def test_a_character_whose_end_never_comes_is_shown_at_the_end():
    first, *_ = TOKENIZER.encode("日")
    reader = Reader(TOKENIZER)
    assert reader.push(tokens([first])) == []
    assert reader.finish() == [Piece(tuple(tokens([first])), "\ufffd")]


def test_what_may_become_a_stop_string_is_held_back_and_no_more():
    reader = Reader(TOKENIZER, ("stop",))
    assert joined(reader.push(tokens(TOKENIZER.encode("a sto")))) == "a "
    assert joined(reader.push(tokens(TOKENIZER.encode("re s")))) == "store "
    assert joined(reader.finish()) == "s"
