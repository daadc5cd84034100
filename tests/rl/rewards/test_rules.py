"""Registered rewards that measure episodes: their values, and a finite number for any reply."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arcforge_core.contracts.environment import Episode, Reply, Task
from arcforge_core.plugins.loader import registry
from arcforge_rl.configs.rewards import DistinctConfig, WordsConfig
from arcforge_rl.rewards.rules import Distinct, Words

TASK = Task("t", "say it", "two")
MODELS = ("grm", "orm")
"""Measures that need a model; tested in `judge/` and `test_orm.py`."""
NAMES = [
    name
    for name in registry().names("reward")
    if name not in MODELS and hasattr(registry().get("reward", name).load(), "measure")
]


@pytest.mark.parametrize(("text", "words", "distinct"), [("a b c a b c", 1, 0.75), ("", 0, 1.0), ("a " * 9, 0, 1 / 7)])
def test_rules(text: str, words: float, distinct: float) -> None:
    episode = Episode((), Reply(text))
    assert asyncio.run(Words(WordsConfig(least=1, most=6)).measure(TASK, episode)) == words
    assert asyncio.run(Distinct(DistinctConfig()).measure(TASK, episode)) == pytest.approx(distinct)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(text=st.text(alphabet=st.characters(), max_size=60))
def test_every_measure_gives_a_finite_number_and_the_same_again(name: str, text: str) -> None:
    component = registry().get("reward", name)
    measure = component.load()(component.load_schema()())
    found = [asyncio.run(measure.measure(TASK, Episode((), Reply(text)))) for _ in range(2)]
    assert found[0] == found[1] and math.isfinite(found[0])


def test_both_rules_are_registered() -> None:
    assert {"words", "distinct"} <= set(NAMES)
