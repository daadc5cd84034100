import json
import sys
import threading
import time
import unicodedata
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors

from arcforge_core.errors import DataError
from arcforge_core.tokenizer.tokenizer import LONG, NFC_SHRINKS, SPECIAL_TOKENS, Tokenizer, train_tokenizer

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


def test_bytes_of_added_tokens_are_those_of_their_text() -> None:
    definition = json.loads(TRAINED.definition)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    contents = ["   ", "two words", "<\uff5cend\u2581of\uff5c>"]
    for n, content in enumerate(contents):
        definition["added_tokens"].append({"id": TRAINED.vocab_size + n, "content": content, **flags})
    tokenizer = Tokenizer(json.dumps(definition))
    added = range(TRAINED.vocab_size, TRAINED.vocab_size + len(contents))
    assert [tokenizer.token_bytes(id_).decode() for id_ in added] == contents
    assert tokenizer.decode(list(added)) == "".join(contents)


@given(texts.filter(bool), st.integers(1, 3))
def test_long_texts_get_the_ids_of_short_ones(text: str, times: int) -> None:
    long = text * (times * LONG // len(text) + 1)
    encoding = TRAINED._plain.encode(long, add_special_tokens=False)
    assert TRAINED.encode(long) == encoding.ids == TRAINED.encode_with_ends(long)[0]
    assert TRAINED.encode_with_ends(long)[1] == [max(start, end - 1) for start, end in encoding.offsets]
    allowed = TRAINED._with_special.encode(long, add_special_tokens=False).ids
    assert TRAINED.encode(long, allow_special=True) == allowed


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    """The thread's longest pause is a part of the whole time; it was all of it. A machine that stands still may pause
    it too: one of three is enough."""

    def longest_pause() -> float:
        done, pauses = threading.Event(), []

        def tick() -> None:
            last = time.perf_counter()
            while not done.wait(0.001):
                pauses.append(time.perf_counter() - last)
                last = time.perf_counter()

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.perf_counter()
        TRAINED.encode(CODE * 8000)
        seconds = time.perf_counter() - begin
        done.set()
        thread.join()
        return max(pauses, default=seconds) / seconds

    assert any(longest_pause() < 0.7 for _ in range(3))


@given(texts)
def test_no_token_covers_more_than_the_widest(text: str) -> None:
    assert TRAINED.widest is not None
    assert len(text.encode()) <= TRAINED.widest * len(TRAINED.encode(text))


def test_composition_shortens_text_by_a_bounded_factor() -> None:
    every = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    longest: dict[str, int] = {}  # spelling of a character that decomposes no further
    for sign in every:
        parts = unicodedata.normalize("NFD", sign)
        if len(parts) == 1:
            longest[parts] = max(longest.get(parts, 0), len(sign.encode()))
    shrinks = max(
        sum(longest[part] for part in unicodedata.normalize("NFD", sign)) / len(sign.encode())
        for sign in every
        if unicodedata.normalize("NFC", sign) == sign
    )
    assert 3 < shrinks <= NFC_SHRINKS


@pytest.mark.parametrize(("change", "factor"), [
    ({"normalizer": {"type": "NFC"}}, NFC_SHRINKS), ({"normalizer": {"type": "NFKC"}}, None),
    ({"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}}, None),
    ({"pre_tokenizer": {"type": "WhitespaceSplit"}}, None), ({"pre_tokenizer": None}, None),
])  # fmt: skip
def test_tokenizers_that_drop_text_have_no_widest_token(change: dict[str, object], factor: int | None) -> None:
    changed = Tokenizer(json.dumps({**json.loads(TRAINED.definition), **change}))
    assert TRAINED.widest is not None
    assert changed.widest == (None if factor is None else factor * TRAINED.widest)


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_special_tokens_are_one_id_only_when_allowed(token: str) -> None:
    assert TRAINED.encode(token, allow_special=True) == [TRAINED.special[token]]
    assert len(TRAINED.encode(token)) > 1
    assert TRAINED.decode([TRAINED.special[token]]) == token


def test_special_tokens_take_the_last_ids_in_glm_order() -> None:
    assert [TRAINED.special[t] for t in SPECIAL_TOKENS] == list(range(320, 340))
    assert (TRAINED.vocab_size, TRAINED.eos_id, TRAINED.bos_id) == (340, 320, 324)


def test_a_prompt_begins_with_what_the_post_processor_prepends() -> None:
    text = "<sop>alpha"
    assert TRAINED.encode_prompt(text) == [TRAINED.bos_id, *TRAINED.encode(text)]
    definition = json.loads(TRAINED.definition)
    without = {**definition, "post_processor": None}
    assert Tokenizer(json.dumps(without), {"bos_token": "<sop>"}).encode_prompt(text) == TRAINED.encode(text)
    named = Tokenizer(json.dumps(without), {"bos_token": "<sop>", "add_bos_token": True})
    assert named.encode_prompt(text) == [TRAINED.bos_id, *TRAINED.encode(text)]
    around = tokenizers.Tokenizer.from_str(TRAINED.definition)
    ids = [(token, TRAINED.special[token]) for token in ("[gMASK]", "<sop>", "<eop>")]
    around.post_processor = processors.TemplateProcessing(single="[gMASK] <sop> $A <eop>", special_tokens=ids)
    assert Tokenizer(around.to_str()).encode_prompt(text) == [ids[0][1], ids[1][1], *TRAINED.encode(text)]


def test_transformers_begins_prompts_alike(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("alpha beta")["input_ids"] == TRAINED.encode_prompt("alpha beta")


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
    assert plain.encode(CODE).ids == TRAINED.encode_prompt(CODE)
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
