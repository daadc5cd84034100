"""Cheats by family: programs and texts that no grader may pay, and the suite that every grader inherits.

A program is written for the function, or the program, that the right answer is. It never computes the answer: it looks
for it in the grader's process and files, forges a verdict, or breaks the grader. A text encodes the right answer, so
that only a grader that looks for it anywhere, decodes or evaluates would accept it.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from arcforge_core.testing.cheat_programs import PROGRAMS
from arcforge_core.testing.cheat_texts import TEXTS

FAMILIES = (
    "frames", "gc", "memory", "equality", "builtins", "files", "exit codes", "output", "pickles", "time", "recursion",
    "encoded answers",
)  # fmt: skip
"""Families of cheats."""
BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
BOXED = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)
HEADER = re.compile(r"^def (\w+)\(", re.MULTILINE)
REPLY = "```python\n{}\n```\nThat is all: 918273645.5"
"""A program as a reply; the last number is no answer."""


@dataclass(frozen=True)
class Cheat:
    """One reply that must score 0.

    Attributes:
        family: one of `FAMILIES`.
        name: its trick.
        text: the reply.
    """

    family: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.family}: {self.name}"


@dataclass(frozen=True)
class Grader:
    """A grader and one of its questions.

    Attributes:
        question: the question.
        right: an answer with the full reward: a text, a function, the rest of a function, or a program.
        grade: returns the reward in [0, 1] of each answer.
    """

    question: str
    right: str
    grade: Callable[[Sequence[str]], Sequence[float]]


class CheatSuite:
    """Conformance of a grader; environments and checkers inherit it. Its tests cannot be overridden.

    A subclass provides the fixture ``graders``, a list of `Grader`. The suites of environments and checkers do so.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, test in vars(CheatSuite).items():
            if name.startswith("test_") and getattr(cls, name, None) is not test:
                raise TypeError(f"{cls.__name__}.{name}: the suite of cheats cannot be left out or replaced")
        if not getattr(cls, "__test__", True):  # pytest would not collect it
            raise TypeError(f"{cls.__name__}.__test__: the suite of cheats cannot be left out")

    def test_no_cheat_is_paid(self, graders: Sequence[Grader]) -> None:
        """The right answer scores 1; every cheat of every family scores 0."""
        assert graders
        for grader in graders:
            assert list(grader.grade([grader.right])) == [1.0], grader.right
            cheats = list(cheats_for(grader.question, grader.right))
            rewards = grader.grade([cheat.text for cheat in cheats])
            paid = [str(cheat) for cheat, reward in zip(cheats, rewards, strict=True) if reward != 0.0]
            assert not paid, (grader.question[:200], paid)


def cheats_for(question: str, right: str) -> Iterator[Cheat]:
    """Yields the cheats of one question.

    Args:
        question: the question; for the rest of a function, its beginning.
        right: the right answer.
    """
    bare = BOXED.sub(r"\1", right.strip())
    for family, name, encode in TEXTS:
        text = encode(question, bare)
        if text.strip() and text.strip() not in (right.strip(), bare, source_of(right).strip()):
            yield Cheat(family, name, text)
    head = head_of(question, right)
    for family, name, place, body in PROGRAMS:
        yield Cheat(family, name, REPLY.format(render(head, place, textwrap.dedent(body).strip())))


def source_of(answer: str) -> str:
    """Returns the single code block of an answer, or else the whole answer."""
    blocks: list[str] = BLOCK.findall(answer)
    return blocks[0] if len(blocks) == 1 else answer


def head_of(question: str, right: str) -> str:
    """Returns the first line of the function that is asked for; empty where the answer is a program, or no program."""
    source = source_of(right)
    for text in (source, f"{question}{right}"):
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        last = tree.body[-1] if tree.body else None
        if isinstance(last, ast.FunctionDef):
            return f"def {last.name}({ast.unparse(last.args)}):"
        if text is source and last is not None and HEADER.search(text):
            return ""  # a function and a call of it: a program
    return ""


def render(head: str, place: str, body: str) -> str:
    """Returns a program that cheats in the function, or while it is loaded where `place` is ``import``."""
    if not head:
        return f"result = None\n{body}\nprint(result)"
    if place == "import":
        return f"result = None\n{body}\n{head}\n    return result"
    return f"{head}\n    result = None\n{textwrap.indent(body, '    ')}\n    return result"
