"""Problems with numbers: sums and differences without working, multi-step expressions with working, equations."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from arcforge_rl.problems.problem import ALL_MODES, THINKING_MODES, Checked, Problem, asked

OPERATIONS = {"add": "+", "subtract": "-", "multiply": "*"}
ASKED = ("{}=", "{} = ?", "What is {}?", "Calculate {}.", "{}")


class Arithmetic:
    """a+b and a-b, answered without working; by default with up to three digits."""

    corpus, modes, most = "reasoning", ("off",), 2
    tools: tuple[dict[str, Any], ...] = ()

    def __init__(self, digits: int = 3) -> None:
        self.lengths = (*range(1, digits + 1), digits)

    def draw(self, draw: random.Random) -> Problem:
        a, b = (draw.randrange(10 ** draw.choice(self.lengths)) for _ in range(2))
        sign, space = draw.choice("+-"), draw.choice(("", " "))
        return operation(a, sign, b, draw.choice(ASKED), space)


class PlainArithmetic(Arithmetic):
    """``12+7=``: numbers drawn uniformly below ``10**digits``, and any of `OPERATIONS`."""

    def __init__(self, digits: int, operations: Sequence[str]) -> None:
        self.below, self.operations = 10**digits, operations

    def draw(self, draw: random.Random) -> Problem:
        a, b = (draw.randrange(self.below) for _ in range(2))
        return operation(a, OPERATIONS[draw.choice(self.operations)], b)


def operation(a: int, sign: str, b: int, form: str = "{}=", space: str = "") -> Problem:
    """Returns the problem ``a sign b``; all problems with the same two numbers are on one side of the split."""
    question = form.format(f"{a}{space}{sign}{space}{b}")
    answer = str({"+": a + b, "-": a - b, "*": a * b}[sign])
    low, high = sorted((a, b))
    return Problem(f"{low},{high}", asked(question, answer), Checked("number", {"answer": answer}), question=question)


class Expressions:
    """Two or three steps with two-digit numbers, some of them products, with working."""

    corpus, modes, most = "reasoning", THINKING_MODES, 3
    tools: tuple[dict[str, Any], ...] = ()
    by_digits = True

    def __init__(self, steps: int = 2) -> None:
        self.steps = steps

    def draw(self, draw: random.Random) -> Problem:
        """Returns a product plus or minus a number, or a sum times a number, optionally with one more step."""
        if self.steps == 3:
            return self._three(draw)
        a, b, c = (draw.randrange(10, 100) for _ in range(3))
        form = draw.randrange(4)
        if form == 0:
            text, steps, value = f"{a}*{b}+{c}", f"{self._product(a, b)}\n{a * b}+{c} = {a * b + c}", a * b + c
        elif form == 1:
            text, steps, value = f"{a}*{b}-{c}", f"{self._product(a, b)}\n{a * b}-{c} = {a * b - c}", a * b - c
        elif form == 2:
            text, steps, value = f"{c}+{a}*{b}", f"{self._product(a, b)}\n{c}+{a * b} = {c + a * b}", c + a * b
        else:
            text, steps, value = f"({a}+{b})*{c}", f"{a}+{b} = {a + b}\n{self._product(a + b, c)}", (a + b) * c
        question = draw.choice(ASKED).format(text)
        low, high = sorted((a, b))
        checked = Checked("number", {"answer": str(value)})
        return Problem(f"{low},{high},{c}", asked(question, str(value), steps), checked)

    def _three(self, draw: random.Random) -> Problem:
        a, b, c, d = (draw.randrange(10, 100) for _ in range(4))
        sign = draw.choice("+-")
        form = draw.randrange(3)
        if form == 0:
            value = a * b + c * d if sign == "+" else a * b - c * d
            text = f"{a}*{b}{sign}{c}*{d}"
            steps = f"{self._product(a, b)}\n{self._product(c, d)}\n{a * b}{sign}{c * d} = {value}"
        elif form == 1:
            value = (a + b) * c + d if sign == "+" else (a + b) * c - d
            text = f"({a}+{b})*{c}{sign}{d}"
            steps = f"{a}+{b} = {a + b}\n{self._product(a + b, c)}\n{(a + b) * c}{sign}{d} = {value}"
        else:
            value = a * b + c + d if sign == "+" else a * b + c - d
            text = f"{a}*{b}+{c}{sign}{d}"
            steps = f"{self._product(a, b)}\n{a * b}+{c} = {a * b + c}\n{a * b + c}{sign}{d} = {value}"
        question = draw.choice(ASKED).format(text)
        low, high = sorted((a, b))
        checked = Checked("number", {"answer": str(value)})
        return Problem(f"{low},{high},{c},{d}", asked(question, str(value), steps), checked)

    def _product(self, a: int, b: int) -> str:
        return product(a, b) if self.by_digits else f"{a}*{b} = {a * b}"


class TerseExpressions(Expressions):
    """The same problems with each product on one line: also correct, but harder to learn for a small model."""

    by_digits = False


class Algebra:
    """Linear equations with integer solutions, by default between -20 and 20."""

    corpus, modes, most = "reasoning", ALL_MODES, 2
    tools: tuple[dict[str, Any], ...] = ()

    def __init__(self, largest: int = 20) -> None:
        self.largest = largest

    def draw(self, draw: random.Random) -> Problem:
        """Returns an equation ``ax + b = cx + d`` with a > c >= 0."""
        name, x = draw.choice("xyzn"), draw.randrange(-self.largest, self.largest + 1)
        c = draw.choice((0, 0, *range(1, 9)))
        a, b = c + draw.randrange(2, 10), draw.randrange(-30, 31)
        d = (a - c) * x + b
        right = f"{c}{name}{plus(d)}" if c else str(d)
        equation = f"{a}{name}{plus(b)} = {right}"
        steps = [equation]
        if c:
            steps.append(f"Take {c}{name} from both sides: {a - c}{name}{plus(b)} = {d}")
        if b:
            steps.append(f"{'Subtract' if b > 0 else 'Add'} {abs(b)}: {a - c}{name} = {d - b}")
        steps.append(f"Divide by {a - c}: {name} = {x}")
        forms = ("Solve for {n}: {e}", "{e}. What is {n}?", "Find {n} if {e}.")
        question = draw.choice(forms).format(n=name, e=equation)
        solve = asked(question, f"{name} = {x}", "\n".join(steps))
        return Problem(f"{a},{b},{c},{d}", solve, Checked("number", {"answer": str(x)}))


def product(a: int, b: int) -> str:
    """Returns the working of a product, digit by digit of its second factor."""
    parts = [int(digit) * 10**place for place, digit in enumerate(reversed(str(b))) if digit != "0"]
    if len(parts) < 2:
        return f"{a}*{b} = {a * b}"
    lines = [f"{a}*{part} = {a * part}" for part in reversed(parts)]
    total = "+".join(str(a * part) for part in reversed(parts))
    return "\n".join([*lines, f"{a}*{b} = {total} = {a * b}"])


def plus(number: int) -> str:
    """Returns `` + 3``, `` - 3`` or nothing for 0."""
    return f" {'+' if number > 0 else '-'} {abs(number)}" if number else ""
