"""Nearness to people's texts: its causes, the source of the texts, and the figures of a step."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from arcforge_core.contracts.environment import Episode, Reply, Task
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.configs.rewards import StyleConfig
from arcforge_rl.rewards.hybrid import measure_of
from arcforge_rl.rewards.spec import Measured
from arcforge_rl.rewards.style.features import GROUPS, WORDS, features
from arcforge_rl.rewards.style.human import cut, is_prose, passages, python_texts, texts_of
from arcforge_rl.rewards.style.style import Style

PLAIN = (
    "The cat sat on the mat and looked at the rain, which had not stopped since the morning. It was a quiet day, and "
    "nobody came to the door until the evening."
)
ASSISTANT = (
    "**Great question!** Here's a step by step guide:\n\n# Apples\n- **Red** apples\n- **Green** apples\n\n"
    "I hope this helps! Let me know if you want more."
)


@pytest.fixture(scope="module")
def style() -> Style:
    return Style(StyleConfig())


def value(style: Style, text: str) -> float:
    return asyncio.run(style.measure(Task("t", "p", ""), Episode((), Reply(text))))


def test_features_are_what_they_are_called() -> None:
    text = "The cat, the dog: gone! Certainly.\n- **one** of them\n1. two\n# end"
    found = dict(zip(range(sum(GROUPS.values())), features(text), strict=True))
    rate = 100.0 / 12
    assert found[0] == pytest.approx(3 * rate)  # the, the, of
    assert found[3] == pytest.approx(11 * rate)
    assert found[4 + WORDS.index("the")] == pytest.approx(2 * rate)
    assert found[4 + WORDS.index("of")] == pytest.approx(rate) and found[4 + WORDS.index("and")] == 0.0
    after = 4 + len(WORDS)
    assert [found[after + 4 + n] for n in range(4)] == pytest.approx([rate, rate, rate, 0.0])
    assert [found[after + 8 + n] for n in range(4)] == pytest.approx([2 * rate, rate, rate, 0.0])
    assert found[after + 12] == pytest.approx(rate)
    assert features("one two\n```\nthree\n```")[after + 11] == pytest.approx(2 * 100.0 / 3)
    assert not features("...").any() and len(features("")) == len(found)


def test_people_are_near_and_assistants_are_far(style: Style) -> None:
    assert value(style, PLAIN) > 0.7
    assert value(style, ASSISTANT) < 0.3
    assert value(style, "yes " * 40) < 0.5
    assert value(style, "") == value(style, "no") == 0.0
    people = [value(style, text) for text in passages(python_texts())[64][:60]]
    assert np.mean(people) > 0.9


def test_each_stock_phrase_and_mark_costs(style: Style) -> None:
    texts = [
        PLAIN,
        f"{PLAIN} Certainly.",
        f"{PLAIN} Certainly. Great question.",
        f"{PLAIN} Of course. Certainly. Delve.",
    ]
    values = [value(style, text) for text in texts]
    assert values == sorted(values, reverse=True) and values[-1] < 0.5 * values[0] < values[1]
    assert value(style, PLAIN.replace("cat", "**cat**")) < value(style, PLAIN)
    assert value(style, f"- {PLAIN}\n- {PLAIN[::-1]}") < value(style, f"{PLAIN}\n{PLAIN[::-1]}")


def test_own_texts_are_the_standard(tmp_path: Path, style: Style) -> None:
    (tmp_path / "lists").mkdir()
    lines = [f"- **item {n}** of the list\n- **item {n + 1}** of the list\n- **one** more of {n}." for n in range(60)]
    records = [{"reply": lines[0]}, {"text": lines[1]}, {"messages": [{"role": "assistant", "content": lines[2]}]}, {}]
    (tmp_path / "lists/a.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "lists/b.md").write_text("\n\n".join(lines[3:]))
    assert len(texts_of([str(tmp_path / "lists")], "f")) == 60
    own = Style(StyleConfig(files=[str(tmp_path / "lists")]))
    assert value(own, lines[7]) > 0.9 > 0.7 > value(style, lines[7])
    assert value(own, PLAIN) < 0.5 < value(style, PLAIN)


def test_a_step_has_its_distance_and_whether_it_is_told_apart(style: Style) -> None:
    style.take_figures()
    assert style.take_figures() == {}
    value(style, PLAIN)
    assert style.take_figures().keys() == {"distance"}
    for text in passages(python_texts())[32][200:260]:
        value(style, text)
    people = style.take_figures()
    for n in range(60):
        value(style, f"Certainly! Here's a guide to {n} apples, which is what you asked for. I hope this helps!")
    model = style.take_figures()
    assert abs(people["auc"] - 0.5) < 0.15 and model["auc"] > 0.99
    assert model["distance"] > 2 * people["distance"]


def test_it_is_a_component() -> None:
    made = measure_of(Measured("human", reward="style", options={"least": 3}))
    assert isinstance(made, Style) and made.config.least == 3


def test_prose_is_sentences_without_lists_and_code() -> None:
    assert is_prose("This is a whole sentence of twelve words, which is what prose has.")
    assert not is_prose("* This is a whole sentence of twelve words, which is what prose has.")
    assert not is_prose("This is a whole sentence of twelve words\n   indented, which is what prose has.")
    assert not is_prose("Too short.")


def test_impossible_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("Only one sentence is here.")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty").mkdir()
    for name, refused in (
        ("none", "no such file"),
        ("few.txt", "fewer than 20 passages of 8 words"),
        ("empty", "has no text"),
    ):
        with pytest.raises(ConfigError, match=rf"options\.files=.*{refused}"):
            Style(StyleConfig(files=[str(tmp_path / name)]))
    with pytest.raises(DataError, match="cannot be read as text"):
        Style(StyleConfig(files=[str(tmp_path / "bytes.txt")]))
    with pytest.raises(ConfigError, match=r"options\.least=0"):
        StyleConfig(least=0)


def test_a_passage_said_many_times_earns_less():
    passage = next(cut(python_texts()[5], 64))
    style = Style(StyleConfig())

    def earned(text):
        return asyncio.run(style.measure(None, Episode((), Reply(text), "stop")))

    assert earned(passage) == 1.0 and earned(f"{passage} " * 6) < 0.2
