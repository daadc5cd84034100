import random

import pytest

from arcforge_core.configs import EVALUATION_DEPTHS
from arcforge_core.data.sources.needles import (
    EVALUATION_SYLLABLES,
    TRAINING_DEPTHS,
    TRAINING_SYLLABLES,
    draw_words,
    in_training_depths,
)


def test_the_alphabets_have_no_syllable_in_common():
    assert not set(EVALUATION_SYLLABLES) & set(TRAINING_SYLLABLES)
    assert min(len(set(EVALUATION_SYLLABLES)), len(set(TRAINING_SYLLABLES))) >= 28
    assert {len(s) for s in (*EVALUATION_SYLLABLES, *TRAINING_SYLLABLES)} == {2}


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3), (3, 2), (3, 3)])
def test_no_word_of_one_alphabet_is_in_a_word_of_the_other(sizes):
    draw = random.Random(0)
    evaluation = draw_words(draw, EVALUATION_SYLLABLES, 300, sizes[0])
    training = draw_words(draw, TRAINING_SYLLABLES, 600, sizes[1])
    assert not [(e, t) for e in evaluation for t in training if e in t or t in e]


def test_depths_are_apart():
    assert not [depth for depth in EVALUATION_DEPTHS if in_training_depths(depth)]
    for low, high in TRAINING_DEPTHS:
        assert low < high and min(abs(d - edge) for d in EVALUATION_DEPTHS for edge in (low, high)) > 0.029


def test_words_are_distinct_and_none_is_taken():
    words = draw_words(random.Random(1), EVALUATION_SYLLABLES, 200)
    again = draw_words(random.Random(1), EVALUATION_SYLLABLES, 200, taken=set(words[:50]))
    assert len(set(words)) == 200 and not set(words[:50]) & set(again)
    assert draw_words(random.Random(1), EVALUATION_SYLLABLES, 20) == words[:20]
