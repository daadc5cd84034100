import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from arcforge_core.data.tokenizer import SPECIAL_TOKENS, Tokenizer, train_tokenizer
from arcforge_core.errors import DataError

CODE = 'def add(left, right):\n    """Return the sum."""\n    return left + right\n\n\nclass Pair:\n    x = 10\n'
TEXTS = [CODE * 3 + f"name_{word} = call({word})\r\n" * 4 for word in ["alpha", "beta", "gamma", "delta", "café"]]
TRAINED = train_tokenizer(TEXTS, 340)

texts = st.text() | st.lists(
    st.sampled_from([*SPECIAL_TOKENS, "\r\n", "\n", "\t", "    ", " ", "x1", "é", "漢字", "\x00", "\u2028", "'s"])
).map("".join)


@given(texts)
def test_any_text_survives_the_round_trip(text: str) -> None:
    ids = TRAINED.encode(text)
    assert TRAINED.decode(ids) == text
    assert not set(ids) & set(TRAINED.special.values())


@given(texts)
def test_the_byte_table_counts_every_byte(text: str) -> None:
    assert TRAINED.byte_lengths_V is not None
    assert TRAINED.byte_lengths_V[TRAINED.encode(text)].sum() == len(text.encode())


@given(texts)
def test_bytes_of_tokens_are_those_of_the_text(text: str) -> None:
    assert b"".join(map(TRAINED.token_bytes, TRAINED.encode(text))) == text.encode()
    assert [TRAINED.token_bytes(id_) for id_ in TRAINED.special.values()] == [t.encode() for t in TRAINED.special]
    assert TRAINED.token_bytes(TRAINED.vocab_size) == b""
    definition = json.loads(TRAINED.definition)
    definition["decoder"] = None  # not byte-level: the text is all there is to know
    assert Tokenizer(json.dumps(definition)).token_bytes(TRAINED.encode("x")[0]) == b"x"


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_are_one_id_only_when_allowed(token: str) -> None:
    assert TRAINED.encode(token, allow_special=True) == [TRAINED.special[token]]
    assert len(TRAINED.encode(token)) > 1
    assert TRAINED.decode([TRAINED.special[token]]) == token


def test_special_tokens_take_the_last_ids_in_glm_order() -> None:
    assert [TRAINED.special[t] for t in SPECIAL_TOKENS] == list(range(320, 340))
    assert (TRAINED.vocab_size, TRAINED.eos_id, TRAINED.bos_id) == (340, 320, 324)


def test_digits_are_single_and_indentation_is_one_token() -> None:
    assert len(TRAINED.encode("2024")) == 4
    indented = TRAINED.encode("):\n    return")
    assert TRAINED.decode(indented[:1]) == "):\n    "


def test_a_batch_is_what_single_texts_give() -> None:
    assert TRAINED.encode_batch(TEXTS) == [TRAINED.encode(t) for t in TEXTS]


def test_training_is_deterministic() -> None:
    assert train_tokenizer(TEXTS, 340).sha256 == TRAINED.sha256
    assert train_tokenizer(TEXTS[:2], 320).sha256 != train_tokenizer(TEXTS[2:], 320).sha256


def test_a_vocabulary_larger_than_the_text_supports_is_refused() -> None:
    with pytest.raises(DataError, match=r"vocab_size=5000: .* supports only 3\d\d entries"):
        train_tokenizer(TEXTS, 5000)


def test_saved_and_loaded_alike(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        loaded = Tokenizer.load(path)
        assert loaded.sha256 == TRAINED.sha256
        assert (loaded.special, loaded.eos_id, loaded.bos_id) == (TRAINED.special, TRAINED.eos_id, TRAINED.bos_id)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert plain.encode(CODE).ids == TRAINED.encode(CODE)
    # as in GLM's own file, tags survive `skip_special_tokens` and roles do not
    assert plain.decode(plain.encode("<|user|><think>x").ids, skip_special_tokens=True) == "<think>x"


def word_level(**settings: str) -> Tokenizer:
    model = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "héllo": 2, "[UNK]": 3}, unk_token="[UNK]"))
    model.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(model.to_str(), dict(settings))


def test_a_foreign_tokenizer_brings_its_own_ends() -> None:
    foreign = word_level()
    assert (foreign.bos_id, foreign.eos_id, foreign.vocab_size) == (0, 1, 4)
    assert foreign.encode("héllo") == [2]
    assert foreign.byte_lengths_V is None
    assert word_level(eos_token="[UNK]").eos_id == 3


@pytest.mark.parametrize("content", ["{", json.dumps({"version": "1.0"})])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match="not a usable tokenizer"):
        Tokenizer.load(tmp_path)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.tokenizer\.path='.*gone'"):
        Tokenizer.load(tmp_path / "gone")


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    model = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    model.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(DataError, match="no end-of-text token"):
        Tokenizer.load(tmp_path)
