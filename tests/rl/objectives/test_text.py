"""Measures of texts, and what makes a reply unsound."""

import base64
import codecs

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_rl.objectives.text import (
    MOST_BITS,
    bits_per_character,
    copied,
    paragraphs,
    repetition,
    sentences,
    unsound,
    words,
)

PROSE = "My neighbour talks about rivers whenever we share a walk. Young hands bring fresh energy to the task."
GERMAN = "Der Zug f\u00e4hrt heute nicht, weil auf den Gleisen zu viel Schnee liegt."


def test_parts_of_a_text():
    assert words("Don\u2019t re-open it, 3 times!") == ["don\u2019t", "re-open", "it", "3", "times"]
    assert sentences('Is it 3.5? "Yes!" he said. So') == ["Is it 3.5?", '"Yes!"', "he said.", "So"]
    assert paragraphs("a\nb\n \nc\n\n\n") == ["a\nb", "c"]
    assert repetition("a b c d a b c d") == pytest.approx(1 / 5) and repetition("a b") == 0.0
    assert copied("one two three four five six", "zero one two three four five") == 0.5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (PROSE, ""),
        (PROSE.upper(), ""),
        ("", "no word"),
        ("...", "no word"),
        (PROSE + "\u200b", "hidden"),
        (PROSE.replace("a", "\u0430"), "another script"),
        ("".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in PROSE), "no word"),
        (base64.b64encode(PROSE.encode()).decode(), "English"),
        (codecs.encode(PROSE, "rot13"), "English"),
        (str([ord(c) for c in PROSE]), "letters"),
        ("so it goe" + "s" * 30, "seven times"),
        (" ".join([PROSE] * 3), "repeat"),
    ],
)
def test_unsound_replies(text, why):
    found = unsound(Reply(text))
    assert (why in found) if why else not found, found


def test_a_cut_off_reply_and_a_copied_prompt_are_unsound():
    assert "cut off" in unsound(Reply(PROSE, finish_reason="length"))
    assert "prompt" in unsound(Reply(PROSE), PROSE) and "English" in unsound(Reply(GERMAN))


def test_codes_take_more_bits_than_languages():
    codes = [base64.b32encode(PROSE.encode()).decode(), PROSE.encode().hex(" "), codecs.encode(PROSE, "rot13")]
    assert bits_per_character(PROSE) < MOST_BITS < bits_per_character(GERMAN) < min(map(bits_per_character, codes))
