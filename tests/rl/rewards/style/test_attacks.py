"""Texts that look like style to a program and like nothing to a reader earn no more than the honest text."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable

import pytest

from arcforge_core.contracts.environment import Episode, Reply, Task
from arcforge_rl.configs.rewards import StyleConfig
from arcforge_rl.rewards.style.human import passages, python_texts
from arcforge_rl.rewards.style.order import Order, of_letters
from arcforge_rl.rewards.style.plain import disguised, pictures, plain
from arcforge_rl.rewards.style.style import Style

STORY = (
    "A robin hopped along the fence while the children ate their bread. They laughed when it took a crumb from the "
    "smallest boy, who was too surprised to move."
)
FACE = "\U0001f600"
TWINS = str.maketrans("aeopc", "\u0430\u0435\u043e\u0440\u0441")
Attack = Callable[[str, random.Random], str]


def mixed(text: str, draw: random.Random) -> str:
    return " ".join(draw.sample(text.split(), len(text.split())))


def drawn(text: str, draw: random.Random) -> str:
    return " ".join(draw.choices([word for page in python_texts() for word in page.split()], k=len(text.split())))


def stirred(text: str, draw: random.Random) -> str:
    return " ".join("".join(draw.sample(word, len(word))) for word in text.split())


def repeated(text: str, draw: random.Random) -> str:
    words = text.split()
    return f"{text} {' '.join(word if at % 7 else draw.choice(words) for at, word in enumerate(words))}"


ATTACKS: dict[str, tuple[Attack, float]] = {
    "shuffled words": (mixed, 0.5),
    "words drawn from people's texts": (drawn, 0.6),
    "words from last to first": (lambda text, draw: " ".join(reversed(text.split())), 0.5),
    "letters stirred in each word": (stirred, 0.5),
    "said again with some words changed": (repeated, 0.8),
    "hidden characters": (lambda text, draw: " ".join(f"{word[:1]}\u200b{word[1:]}" for word in text.split()), 0.5),
    "hidden spaces": (lambda text, draw: text.replace(" ", "\u200b"), 0.5),
    "emoji": (lambda text, draw: text.replace(" ", f" {FACE} "), 0.5),
    "look-alikes": (lambda text, draw: text.translate(TWINS), 0.5),
    "struck letters": (lambda text, draw: "".join(f"{c}\u0336" for c in text), 0.5),
}
"""By name, the attack and the share of the honest texts' value that it may keep on average."""


@pytest.fixture(scope="module")
def style() -> Style:
    return Style(StyleConfig())


def value(style: Style, text: str) -> float:
    return asyncio.run(style.measure(Task("t", "p", ""), Episode((), Reply(text))))


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_earns_less(style: Style, name: str) -> None:
    attack, most = ATTACKS[name]
    draw = random.Random(0)
    honest, attacked = [], []
    for text in [STORY, *passages(python_texts())[64][-20:]]:
        honest.append(value(style, text))
        attacked.append(value(style, attack(text, draw)))
    gained = sum(after > before for before, after in zip(honest, attacked, strict=True))
    assert gained <= 1, "a strange passage may win by being shuffled"
    assert statistics.fmean(attacked) < most * statistics.fmean(honest)


def test_prose_about_something_else_keeps_its_value(style: Style) -> None:
    assert value(style, STORY) > 0.7
    assert value(style, STORY.replace("boy", "caf\u00e9 owner\u2019s boy")) > 0.7


def test_a_reader_sees() -> None:
    assert plain("w\u200bord \uff43\uff41\uff54 \u0441\u0430t a\u0336b cafe\u0301") == "word cat cat ab caf\u00e9"
    assert plain(f"hi {FACE}\nthere\ttoo") == "hi \nthere\ttoo"
    assert disguised("w\u200bord \uff43\uff41\uff54 \u0441\u0430t a\u0336b cafe\u0301 \u201cit\u2019s\u201d") == 4
    code = "```\n`a` ^ b\n``` at 20 \u00b0C"
    assert plain(code) == code and pictures(code) == disguised(code) == 0
    assert pictures(f"{FACE} one {FACE}") == 2 and pictures("1 \u2264 2 \u2014 3") == 0


def test_order_is_more_than_words() -> None:
    order = Order(["the cat sat on the mat. the dog sat on the rug."] * 10)
    text = "the dog sat on the mat."
    assert order.of_words(text) > 1.0 > order.of_words("mat the on sat dog the.")
    assert order.of_words("one") == order.of_words("") == of_letters("") == 0.0
    assert of_letters("statements are executed in the order of the text") > 2.0
    assert order.name_of("going") == "-ing" and order.name_of("cat") == "cat" and order.name_of("42") == "#"
