"""Dialogues with real tool calls: their results come from a sandbox.

Some begin with a call that fails and is then corrected. Its result is an error, so readers exclude the call from the
loss.
"""

from __future__ import annotations

import json
import random

from arcforge_rl.problems.problem import ALL_MODES, Checked, Messages, Problem, said
from arcforge_rl.problems.tools import call, definition
from arcforge_rl.sandbox.sync import Bench

FAILURES = 0.1
"""Share of the problems that begin with a failing call."""
SYLLABLES = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")
NAMES = ("Mira", "Tomas", "Ada", "Linus", "Grace", "Omar", "Yuki", "Ines", "Noor", "Pavel", "Rosa", "Emil")
THINGS = ("lamps", "chairs", "books", "tiles", "cables", "maps", "seeds", "bolts", "jars", "coats", "pens", "ropes")
PLACES = ("attic", "cellar", "garage", "office", "studio", "harbour", "library", "kitchen")


def word(draw: random.Random, syllables: int = 3) -> str:
    """Returns a made-up word."""
    return "".join(draw.choice(SYLLABLES) for _ in range(syllables))


def long_expression(draw: random.Random, below: int = 10_000) -> tuple[str, str, str]:
    """Returns operands from 100 to under `below`, an expression with a product of two, and a question about it."""
    a, b, c = (draw.randrange(100, below) for _ in range(3))
    expression = draw.choice((f"{a}*{b}", f"{a}*{b}+{c}", f"({a}+{c})*{b}", f"{a}*{b}-{c}"))
    question = draw.choice(("What is {}?", "Calculate {}.", "{}", "Please work out {} with the calculator."))
    low, high = sorted((a, b))
    return f"{low},{high},{c}", expression, question.format(expression)


def short_program(draw: random.Random) -> tuple[str, str]:
    """Returns a question about a list or a text, and a program that prints the answer."""
    numbers = [draw.randrange(1, 500) for _ in range(draw.randrange(5, 10))]
    text = " ".join(word(draw, draw.randrange(1, 4)) for _ in range(6))
    k = draw.randrange(2, 10)
    return draw.choice(
        (
            (f"What is the sum of the squares of {numbers}?", f"print(sum(n * n for n in {numbers}))"),
            (f"How many of {numbers} can be divided by {k}?", f"print(sum(n % {k} == 0 for n in {numbers}))"),
            (f"What is the largest difference of two neighbours in {numbers}?",
             f"n = {numbers}\nprint(max(abs(a - b) for a, b in zip(n, n[1:])))"),
            (f"How many vowels are in '{text}'?", f"print(sum(c in 'aeiou' for c in {text!r}))"),
            (f"What is {numbers[0]} to the power of {k}?", f"print({numbers[0]} ** {k})"),
        )
    )  # fmt: skip


class Calculator:
    """Arithmetic on long numbers, with a calculator."""

    corpus, modes, most = "agent", ALL_MODES, 2
    tools = (definition("calculator"),)

    def draw(self, draw: random.Random) -> Problem:
        """Returns an expression with a product of three- or four-digit numbers."""
        operands, expression, question = long_expression(draw)
        fails = draw.random() < FAILURES
        value = str(eval(expression))  # generated above from numbers and operators

        def solve(desk: Bench) -> Messages | None:
            messages = [{"role": "user", "content": question}]
            if fails:
                messages += call(desk, "calculator", {"expression": f"{expression}="}, "I ask the calculator.")
            messages += call(desk, "calculator", {"expression": expression}, f"The calculator takes {expression}.")
            if messages[-1]["content"] != value:
                return None
            return [*messages, said(value, f"The result is {value}.")]

        return Problem(operands, solve, Checked("number", {"answer": value}))


class Lookup:
    """Made-up keys, whose values must be looked up in a table."""

    corpus, modes, most = "agent", ALL_MODES, 1
    tools = (definition("lookup"),)

    def draw(self, draw: random.Random) -> Problem:
        """Returns a table and one of its keys."""
        keys = [f"{word(draw, 2)}-{draw.randrange(100, 1000)}" for _ in range(6)]
        table = {key: draw.choice((str(draw.randrange(1000, 100_000)), word(draw, 2))) for key in keys}
        key = keys[0]
        wrong = draw.random() < FAILURES
        question = draw.choice(
            (
                "What is the value of {}?",
                "Look up {}.",
                "{}?",
                "Which value does the key {} have?",
                "Tell me what {} is.",
            )
        ).format(key)

        def solve(desk: Bench) -> Messages | None:
            messages = [{"role": "user", "content": question}]
            if wrong:
                messages += call(desk, "lookup", {"key": key[:-1]}, f"I look up {key[:-1]}.")
            messages += call(desk, "lookup", {"key": key}, f"I look up {key}.")
            if messages[-1]["content"] != table[key]:
                return None
            return [*messages, said(table[key], f"The table has {table[key]}.")]

        files = {"table.json": json.dumps(dict(sorted(table.items())))}
        return Problem(key, solve, Checked("exact", {"answer": table[key]}), files)


class Files:
    """Notes in files, to find, read, add up and write."""

    corpus, modes, most = "agent", ALL_MODES, 1
    tools = (
        definition("list_files"),
        definition("read_file"),
        definition("write_file"),
    )

    def draw(self, draw: random.Random) -> Problem:
        """Returns notes about several places and a question about one of them."""
        places = draw.sample(PLACES, 3)
        counts = {place: draw.sample(range(2, 100), 3) for place in places}
        things = draw.sample(THINGS, 3)
        folder, place = word(draw, 2), places[0]
        files = {
            f"{folder}/{p}.txt": "".join(f"{thing}: {n}\n" for thing, n in zip(things, counts[p], strict=True))
            for p in places
        }
        path, writes, wrong = f"{folder}/{place}.txt", draw.random() < 0.3, draw.random() < FAILURES
        thing, count, total = things[1], counts[place][1], sum(counts[place])
        if writes:
            question = f"How many things are in the {place} altogether? Write the number to total.txt, too."
            answer = total
        else:
            question, answer = f"How many {thing} are in the {place}, by the notes?", count

        def solve(desk: Bench) -> Messages | None:
            messages = [{"role": "user", "content": question}]
            if wrong:
                messages += call(
                    desk, "read_file", {"path": f"{place}.txt"}, f"The notes of the {place} are in a file."
                )
            messages += call(desk, "list_files", {}, "First I see which files there are.")
            messages += call(desk, "read_file", {"path": path}, f"The notes of the {place} are in {path}.")
            if messages[-1]["content"].strip() != files[path].strip():
                return None
            added = f"{'+'.join(map(str, counts[place]))} = {total}"
            if writes:
                messages += call(
                    desk, "write_file", {"path": "total.txt", "text": str(total)}, f"{added}. I write it down."
                )
            return [*messages, said(str(answer), f"{added}." if writes else f"There are {count} {thing}.")]

        operands = f"{place}:{counts[place]}"
        return Problem(operands, solve, Checked("number", {"answer": str(answer)}), files)


class Search:
    """Facts about people, in texts to search."""

    corpus, modes, most = "agent", ALL_MODES, 1
    tools = (definition("search"),)

    def draw(self, draw: random.Random) -> Problem:
        """Returns facts and a question about one of them."""
        people = draw.sample(NAMES, 5)
        towns = {person: word(draw).capitalize() for person in people}
        lines = [f"{person} {draw.choice(('lives in', 'moved to', 'works in'))} {towns[person]}." for person in people]
        files = {
            "people/one.txt": "\n".join(lines[1:3]) + "\n",
            "people/two.txt": "\n".join([*lines[3:], lines[0]]) + "\n",
        }
        person, answer = people[0], towns[people[0]]
        question = draw.choice(("In which town is {}?", "Where is {} now?", "Find out where {} is.")).format(person)
        vague = draw.random() < FAILURES

        def solve(desk: Bench) -> Messages | None:
            messages = [{"role": "user", "content": question}]
            if vague:  # no error: a search without results is an ordinary step
                messages += call(desk, "search", {"text": f"town of {person}"}, f"I search for {person}'s town.")
            messages += call(desk, "search", {"text": person}, f"I search for {person}.")
            if answer not in messages[-1]["content"]:
                return None
            return [*messages, said(answer, f"The text says that it is {answer}.")]

        return Problem(f"{person}:{answer}", solve, Checked("exact", {"answer": answer}), files)


class Programs:
    """Questions about lists and texts, answered by a few lines of Python."""

    corpus, modes, most = "agent", ALL_MODES, 2
    tools = (definition("python"),)

    def draw(self, draw: random.Random) -> Problem:
        """Returns a question and the program that answers it."""
        question, code = short_program(draw)
        fails = draw.random() < FAILURES

        def solve(desk: Bench) -> Messages | None:
            messages = [{"role": "user", "content": question}]
            if fails:
                broken = code.replace("print(", "print(total + ", 1)
                messages += call(desk, "python", {"code": broken}, "I write a program.")
            messages += call(desk, "python", {"code": code}, "A short program answers this.")
            answer = messages[-1]["content"]
            if not answer or answer.startswith("Error"):
                return None
            return [*messages, said(answer, f"The program printed {answer}.")]

        return Problem(question, solve, Checked("python_output", {"program": code}))
