"""Small programming problems. Each is a function with a knob; its source is the reference that makes the tests."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Maker = Callable[[random.Random], Any]


@dataclass(frozen=True)
class CodeProblem:
    """A programming problem.

    Attributes:
        name: name of the function.
        takes: ``numbers`` or ``text``.
        statement: description of the result for ``{given}``; ``{k}`` is the knob.
        body: body of the function, with ``{k}``.
        knob: draws k.
    """

    name: str
    takes: str
    statement: str
    body: str
    knob: Maker = lambda draw: 0


def _small(draw: random.Random) -> int:
    return draw.randrange(2, 10)


PROBLEMS = (
    CodeProblem("sum_of_multiples", "numbers", "the sum of those of {given} that {k} divides",
                "return sum(n for n in given if n % {k} == 0)", _small),
    CodeProblem("count_above", "numbers", "how many of {given} are larger than {k}",
                "return sum(n > {k} for n in given)", lambda draw: draw.randrange(-20, 60)),
    CodeProblem("distinct_sorted", "numbers", "{given} in descending order, each number once",
                "return sorted(set(given), reverse=True)"),
    CodeProblem("running_sums", "numbers", "the list of running sums of {given}, each taken modulo {k}",
                "sums, total = [], 0\n    for n in given:\n        total += n\n        sums.append(total % {k})\n"
                "    return sums",
                lambda draw: draw.randrange(7, 100)),
    CodeProblem("largest_gap", "numbers",
                "the largest absolute difference of two neighbours in {given}, 0 without neighbours",
                "return max((abs(a - b) for a, b in zip(given, given[1:])), default=0)"),
    CodeProblem("rotated", "numbers", "{given}, rotated to the left by {k} places",
                "k = {k} % len(given) if given else 0\n    return given[k:] + given[:k]", _small),
    CodeProblem("every_other", "numbers", "every {k}-th of {given}, beginning with the first",
                "return given[::{k}]", lambda draw: draw.randrange(2, 6)),
    CodeProblem("long_words", "text", "how many words of {given} have more than {k} letters",
                "return sum(len(word) > {k} for word in given.split())", _small),
    CodeProblem("shifted", "text",
                "{given} with each small letter moved {k} places on in the alphabet, from z back to a, and "
                "everything else as it is",
                "return ''.join(chr((ord(c) - 97 + {k}) % 26 + 97) if 'a' <= c <= 'z' else c for c in given)",
                lambda draw: draw.randrange(1, 26)),
    CodeProblem("runs", "text",
                "{given} with each run of one character written as the character and the run's length, e.g. a3b1",
                "out, start = [], 0\n    for i in range(1, len(given) + 1):\n"
                "        if i == len(given) or given[i] != given[start]:\n"
                "            out.append(given[start] + str(i - start))\n            start = i\n"
                "    return ''.join(out)"),
    CodeProblem("reversed_words", "text", "{given} with each word spelled backwards, the words in their order",
                "return ' '.join(word[::-1] for word in given.split())"),
    CodeProblem("vowels", "text", "how many characters of {given} are one of a, e, i, o, u",
                "return sum(c in 'aeiou' for c in given)"),
)  # fmt: skip


def source_of(problem: CodeProblem, k: int) -> str:
    """Returns the reference function."""
    return f"def {problem.name}(given):\n    {problem.body.replace('{k}', str(k))}\n"


def program_of(problem: CodeProblem, k: int) -> str:
    """Returns the reference as a program that reads numbers or a text from one line and prints the result in one."""
    read = "list(map(int, input().split()))" if problem.takes == "numbers" else "input()"
    show = "print(*result) if isinstance(result, list) else print(result)"
    return f"{source_of(problem, k)}\nresult = {problem.name}({read})\n{show}\n"


def reference(problem: CodeProblem, k: int) -> Callable[[Any], Any]:
    """Returns the reference, which is trusted and called in this process."""
    names: dict[str, Any] = {}
    exec(source_of(problem, k), names)
    made: Callable[[Any], Any] = names[problem.name]
    return made


def draw_input(problem: CodeProblem, draw: random.Random, place: int) -> Any:
    """Returns an input; the first is ordinary, the second has the minimum length."""
    length = (6, 1)[place] if place < 2 else draw.randrange(2, 15)
    if problem.takes == "numbers":
        return [draw.randrange(-50, 100) for _ in range(length)]
    return " ".join("".join(draw.choices("aabeiorstuxyz", k=draw.randrange(1, 12))) for _ in range(length))


def as_line(value: Any) -> str:
    """Formats an input or a result as a program reads or prints it."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
