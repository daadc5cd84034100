"""Everyday questions to a small model: sums in any wording, greetings, and questions about anything else.

The model of ``arcforge demo`` is trained on these. It answers arithmetic, and says so when asked for something else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from arcforge_rl.problems.dialogues import word
from arcforge_rl.problems.numbers import product
from arcforge_rl.problems.problem import ALL_MODES, Checked, Messages, Problem, asked, said
from arcforge_rl.problems.tools import call, definition
from arcforge_rl.sandbox.sync import Bench

SMALL_TALK = 0.12
"""Share of the problems that are no arithmetic."""
THREE_NUMBERS = 0.2
"""Share of the arithmetic that has two operations."""
LENGTHS = (1, 1, 2, 2, 2, 2, 3, 3)
"""Numbers of digits, each as likely as it is frequent here."""
FORMS = (
    "What is {}?", "What is {}?", "What is {}?", "what is {}", "What's {}?", "{}", "{}", "{} = ?", "{} =", "{}=",
    "{}?", "Calculate {}.", "Compute {}.", "How much is {}?", "Work out {}.", "Please calculate {}.", "Solve {}",
    "Evaluate {}.", "Can you calculate {}?", "Tell me {}.",
)  # fmt: skip
WORDS = {"+": ("plus",), "-": ("minus",), "*": ("times", "multiplied by", "x"), "/": ("divided by",)}

HELLO = "Hello! Ask me for a sum, such as 17 + 25."
ABOUT = "I am a small demonstration model, and I know arithmetic. Ask me for 17 + 25."
WELCOME = "You are welcome. Ask me for another sum."
SORRY = "I know only arithmetic. Ask me for a sum, such as 17 + 25."
GREETINGS = (
    "Hello", "Hi", "Hey", "Hello there", "Hi there", "Good morning", "Good evening", "Good afternoon", "Greetings",
    "Yo", "Hello, how are you", "Hi, how are you", "How are you", "Hello, I am {}", "Hi, my name is {}",
    "How is it going", "Hello world", "What's up",
)  # fmt: skip
ABOUT_ITSELF = (
    "Who are you", "What are you", "What is your name", "What can you do", "Tell me about yourself", "Help",
    "Help me", "How do you work", "Are you a robot", "Are you human", "Are you {}", "Who made you",
    "Which model are you", "What do you know", "How old are you", "How many parameters do you have",
    "What can I ask you", "Introduce yourself", "Can you help me", "What is this",
)  # fmt: skip
THANKS = (
    "Thanks", "Thank you", "Thank you, {}", "Great", "Great, thanks", "Bye", "Goodbye", "OK", "Nice", "Well done",
    "That is right", "Cool", "Perfect", "Correct", "Good",
)  # fmt: skip
ELSE = (
    "What is the capital of {}?", "Who wrote {}?", "Tell me a joke", "Tell me a story about {}",
    "Write a poem about {}.", "What is a {}?", "What is {}?", "Who is {}?", "Where is {}?", "When was {} born?",
    "Why is the {} {}?", "How do I {} a {}?", "Translate {} into {}.", "Write a program that {} the {}.",
    "Write a function for {} in Python.", "Explain {}.", "What does {} mean?", "Do you like {}?", "Can you write {}?",
    "Summarise this text: {} {} {}", "How tall is {}?", "What is the meaning of {}?", "I need a {} for {}",
    "Is {} a {}?", "{} {}", "What is the weather in {}?", "Give me {}.", "Which {} is the best?",
    "Let us talk about {}", "Sing a song", "Play {} with me", "Recommend a {}", "What time is it?", "{}", "Why?",
    "What is love?", "What is the best {} of {}?", "How does {} work?",
)  # fmt: skip
TOPICS = (
    "France", "Germany", "China", "Hamlet", "Einstein", "the moon", "the sea", "Paris", "music", "sky", "blue", "cat",
    "dog", "house", "love", "life", "computer", "neural networks", "a letter", "tree", "football", "pizza", "book",
    "film", "quicksort", "history", "physics", "Spanish", "water", "the sun", "a car", "gravity", "rice", "bread",
    "Python", "a haiku", "cook",
)  # fmt: skip
TALK = (
    (GREETINGS, HELLO, "A greeting."),
    (ABOUT_ITSELF, ABOUT, "A question about me."),
    (THANKS, WELCOME, "No question."),
    (ELSE, SORRY, "This is not arithmetic."),
    (ELSE, SORRY, "This is not arithmetic."),
)


Solution = Callable[[Bench], Messages | None]


@dataclass(frozen=True)
class Sum:
    """An arithmetic problem.

    Attributes:
        operands: the numbers in order of size, which decide the side of the split.
        expression: e.g. ``17+25``.
        written: the expression as people write it, e.g. ``17 plus 25``.
        working: the steps to the result.
        value: the result.
    """

    operands: str
    expression: str
    written: str
    working: str
    value: int


class Everyday:
    """Arithmetic with small numbers in many wordings, with working where the model thinks; some small talk."""

    corpus, modes, most = "reasoning", ALL_MODES, 3
    tools: tuple[dict[str, Any], ...] = ()
    lengths: tuple[int, ...] = LENGTHS

    def draw(self, draw: random.Random) -> Problem:
        if draw.random() < SMALL_TALK:
            return small_talk(draw)
        sum_ = three_numbers(draw) if draw.random() < THREE_NUMBERS else two_numbers(draw, self.lengths)
        answer, question = str(sum_.value), draw.choice(FORMS).format(sum_.written)
        solve = self._solution(sum_, question, answer)
        return Problem(sum_.operands, solve, Checked("number", {"answer": answer}), question=question)

    def _solution(self, sum_: Sum, question: str, answer: str) -> Solution:
        return asked(question, answer, sum_.working)


class EverydayCalculator(Everyday):
    """The same, with a calculator that is called for arithmetic and left alone in small talk; up to five digits."""

    corpus = "agent"
    tools = (definition("calculator"),)
    lengths = (*LENGTHS, 4, 5)

    def _solution(self, sum_: Sum, question: str, answer: str) -> Solution:
        def solve(desk: Bench) -> Messages | None:
            text, messages = sum_.expression, [{"role": "user", "content": question}]
            messages += call(desk, "calculator", {"expression": text}, f"The calculator takes {text}.")
            if messages[-1]["content"].removesuffix(".0") != answer:
                return None
            return [*messages, said(answer, f"The result is {answer}.")]

        return solve


def two_numbers(draw: random.Random, lengths: tuple[int, ...]) -> Sum:
    """Returns one operation; a first factor of three digits or more is multiplied by one digit."""
    a, b = (draw.randrange(10 ** draw.choice(lengths)) for _ in range(2))
    sign = draw.choice("++--**/")
    if sign == "*" and a > 99:
        b %= 10
    if sign == "/":
        b = 1 + b % 12
        a -= a % b
        value = a // b
    else:
        value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    expression, (low, high) = f"{a}{sign}{b}", sorted((a, b))
    working = product(a, b) if sign == "*" else f"{expression} = {value}"
    return Sum(f"{low},{high}", expression, written(draw, a, sign, b), working, value)


def three_numbers(draw: random.Random) -> Sum:
    """Returns two operations with numbers from 1 to 20."""
    a, b, c = (draw.randrange(1, 21) for _ in range(3))
    first, second = draw.choice("+-"), draw.choice("+-")
    form = draw.randrange(4)
    if form == 0:
        one = a + b if first == "+" else a - b
        value = one + c if second == "+" else one - c
        text, steps = f"{a}{first}{b}{second}{c}", f"{a}{first}{b} = {one}\n{one}{second}{c} = {value}"
    elif form == 1:
        value = a + b * c if first == "+" else a - b * c
        text, steps = f"{a}{first}{b}*{c}", f"{product(b, c)}\n{a}{first}{b * c} = {value}"
    elif form == 2:
        value = a * b + c if first == "+" else a * b - c
        text, steps = f"{a}*{b}{first}{c}", f"{product(a, b)}\n{a * b}{first}{c} = {value}"
    else:
        value = (a + b) * c
        text = draw.choice((f"({a}+{b})*{c}", f"{c}*({a}+{b})"))
        steps = f"{a}+{b} = {a + b}\n{product(a + b, c)}"
    spaced = "".join(f" {letter} " if letter in "+-*" else letter for letter in text)
    operands = ",".join(str(number) for number in sorted((a, b, c)))
    return Sum(operands, text, draw.choice((text, spaced)), steps, value)


def written(draw: random.Random, a: int, sign: str, b: int) -> str:
    """Returns ``a sign b`` with or without spaces, or in words."""
    style = draw.randrange(5)
    if style == 4:
        return f"{a} {draw.choice(WORDS[sign])} {b}"
    space = "" if style < 2 else " "
    return f"{a}{space}{sign}{space}{b}"


def small_talk(draw: random.Random) -> Problem:
    """Returns a greeting, a question about the model, thanks, or a question that it cannot answer."""
    phrases, reply, thought = draw.choice(TALK)
    text = draw.choice(phrases)
    for _ in range(text.count("{}")):
        text = text.replace("{}", draw.choice(TOPICS) if draw.random() < 0.5 else word(draw, draw.randrange(2, 4)), 1)
    if text[-1].isalnum():
        text += draw.choice(("", "", "!", ".", "?"))
    if draw.random() < 0.3:
        text = text.lower()
    number = draw.getrandbits(64)  # frequent phrases occur again
    return Problem(text, asked(text, reply, thought), Checked("exact", {"answer": reply}), question=f"{text} {number}")
