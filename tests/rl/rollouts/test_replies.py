"""Repetition, refusals and malformed replies."""

from __future__ import annotations

import pytest

from arcforge_core.contracts.chat import Message, Parsed
from arcforge_core.contracts.environment import Reply
from arcforge_rl.rollouts.replies import repetition, reply_figures


def test_repetition_is_the_share_of_grams_that_came_before() -> None:
    assert repetition("a b c d e") == 0.0 and repetition("a b c") == 0.0
    assert repetition("x x x x x x x") == pytest.approx(3 / 4)


def test_figures_are_means_over_replies() -> None:
    flawed = Parsed(Message("assistant", "x"), flaws=("a call without a name",))
    replies = [
        Reply("I\u2019m sorry, but no."),
        Reply("I can't help."),
        Reply("Sorry to hear that."),
        Reply("x", parsed=flawed),
    ]
    assert reply_figures(replies) == {"repetition": 0.0, "refusals": 0.5, "malformed": 0.25}
    assert reply_figures([]) == {}
