import pytest

from arcforge_core.chat.spans import Span, encode_spans
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import train_tokenizer

TOKENIZER = train_tokenizer(["a\n\nb\n\n"] * 8, 277)  # merges two line ends


def test_two_line_ends_are_one_token():
    assert len(TOKENIZER.encode("\n\n")) == 1


def test_text_of_two_authors_is_encoded_in_one_go_and_a_shared_token_is_the_later_ones():
    rendered = encode_spans(TOKENIZER, [Span("user\n"), Span("\nhi", author="user", message=0), Span("\n")])
    assert list(rendered.ids) == TOKENIZER.encode("user\n\nhi\n")
    assert rendered.authors == ("template",) * 4 + ("user",) * 3 + ("template",)


def test_a_completion_does_not_merge_with_its_prompt():
    spans = [Span("x\n"), Span("\nhi", author="assistant", message=0, trained=True, begins_run=True)]
    rendered = encode_spans(TOKENIZER, spans)
    assert list(rendered.ids) == [*TOKENIZER.encode("x\n"), *TOKENIZER.encode("\nhi")]
    assert rendered.trained == (False, False, True, True, True)
    assert not any(encode_spans(TOKENIZER, spans, is_prompt=True).trained)


def test_special_tokens_stand_alone_and_the_same_characters_are_text():
    rendered = encode_spans(TOKENIZER, [Span("<|user|>", special=True), Span("<|user|>", author="user", message=0)])
    assert rendered.ids == (TOKENIZER.special["<|user|>"], *TOKENIZER.encode("<|user|>"))
    assert set(rendered.messages) == {-1, 0}


def test_what_cannot_be_encoded_is_shown():
    with pytest.raises(ConfigError, match=r"bad \\ud800.*surrogates"):
        encode_spans(TOKENIZER, [Span("bad \ud800")])
