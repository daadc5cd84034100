"""General chat whose answers can be checked: instructions about words, docstrings of the library, greetings."""

from __future__ import annotations

import ast
import functools
import random
import re
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.data.sources.functions import parse_quietly
from arcforge_core.data.sources.readers import Unreadable, read_text
from arcforge_rl.problems.dialogues import word
from arcforge_rl.problems.problem import Checked, Messages, Problem, asked, said
from arcforge_rl.sandbox.sync import Bench

SENTENCE = re.compile(r"[A-Z][^.:`\n]{15,120}\.(?=\s|$)")
"""A first sentence on one line that contains more than a name."""
LONGEST_DOCSTRING = 600

Instruction = tuple[str, Callable[[list[str]], str]]
INSTRUCTIONS: tuple[Instruction, ...] = (
    ("Repeat exactly: {}", " ".join),
    ("Say this in capital letters: {}", lambda words: " ".join(words).upper()),
    ("Write these words in alphabetical order: {}", lambda words: " ".join(sorted(words))),
    ("Write these words in the opposite order: {}", lambda words: " ".join(reversed(words))),
    ("How many words are there in '{}'?", lambda words: str(len(words))),
    ("What is the last word of '{}'?", lambda words: words[-1]),
    ("What is the first word of '{}'?", lambda words: words[0]),
    ("Write these words with commas between them: {}", ", ".join),
    ("What is the longest word of '{}'? Of equally long ones, say the first.", lambda words: max(words, key=len)),
    ("Answer with the first letter of each word, joined: {}", lambda words: "".join(w[0] for w in words)),
)
"""Instructions about made-up words, each with the function that computes the answer."""
GREETINGS = ("Hello", "Hi", "Good morning", "Good evening", "Hey")


class Instructions:
    """Small operations on words, answered with the result only."""

    corpus, modes, most = "chat", ("off",), 2
    tools: tuple[dict[str, Any], ...] = ()

    def draw(self, draw: random.Random) -> Problem:
        """Returns an instruction; its words are the operand."""
        words = [word(draw, draw.randrange(1, 4)) for _ in range(draw.randrange(2, 7))]
        question, answer = draw.choice(INSTRUCTIONS)
        right = answer(words)
        solve = asked(question.format(" ".join(words)), right)
        return Problem(" ".join(sorted(words)), solve, Checked("exact", {"answer": right}))


class Documentation:
    """A docstring of the standard library, with a question about its first sentence or the function's parameters."""

    corpus, modes, most = "chat", ("off",), 1
    tools: tuple[dict[str, Any], ...] = ()

    def draw(self, draw: random.Random) -> Problem:
        """Returns a question about one function; the function is the operand."""
        entry = draw.choice(documented())
        forms: list[tuple[str, str]] = [
            ("What does {name} do? Answer with the first sentence of its documentation.", entry.first)
        ]
        if entry.parameters:
            forms.append(("Which parameters does {name} take? Answer with their names.", ", ".join(entry.parameters)))
        question, right = draw.choice(forms)
        head = f"{entry.name.rpartition('.')[2]}({', '.join(entry.parameters)})"
        text = f"{question.format(name=entry.name)}\n\n{head}\n{entry.docstring}"
        return Problem(entry.name, asked(text, right), Checked("exact", {"answer": right}))


class Greetings:
    """The user gives a name, and asks for it later."""

    corpus, modes, most = "chat", ("off",), 1
    tools: tuple[dict[str, Any], ...] = ()

    def draw(self, draw: random.Random) -> Problem:
        """Returns a greeting with a made-up name, which is the operand."""
        name, greeting = word(draw, draw.randrange(2, 4)).capitalize(), draw.choice(GREETINGS)
        introduction = draw.choice(("{g}, I am {n}.", "{g}! My name is {n}.", "{g}, {n} here."))
        question = draw.choice(("What is my name?", "Do you remember my name?", "Who am I?"))
        hello, answer = f"{greeting}, {name}! How can I help you?", f"Your name is {name}."

        def solve(desk: Bench) -> Messages:
            return [
                {"role": "user", "content": introduction.format(g=greeting, n=name)},
                {**said(hello), "checker": Checked("exact", {"answer": hello}).as_record()},
                {"role": "user", "content": question},
                said(answer),
            ]

        return Problem(name, solve, Checked("exact", {"answer": answer}))


@dataclass(frozen=True)
class Documented:
    """A function of the standard library.

    Attributes:
        name: qualified name, including the module.
        parameters: names of the parameters.
        docstring: the cleaned docstring.
        first: first sentence of the docstring.
    """

    name: str
    parameters: tuple[str, ...]
    docstring: str
    first: str


@functools.cache
def documented() -> tuple[Documented, ...]:
    """Returns the functions of the library's single-file modules, in order."""
    found: dict[str, Documented] = {}
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[!_]*.py")):
        try:
            tree = parse_quietly(read_text(path))
        except Unreadable:
            continue
        for node in tree.body if tree else ():
            entry = _entry(path.stem, node) if isinstance(node, ast.FunctionDef) else None
            if entry is not None:
                found.setdefault(entry.name, entry)
    return tuple(found.values())


def _entry(module: str, node: ast.FunctionDef) -> Documented | None:
    docstring = ast.get_docstring(node) or ""
    first = SENTENCE.match(docstring)
    if first is None or len(docstring) > LONGEST_DOCSTRING:
        return None
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return Documented(f"{module}.{node.name}", tuple(a.arg for a in arguments), docstring, first[0])
