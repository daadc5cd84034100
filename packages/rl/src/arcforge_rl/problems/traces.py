"""Small Python programs and their execution traces, recorded in a sandbox."""

from __future__ import annotations

import random
from typing import Any

from arcforge_rl.problems.problem import THINKING_MODES, Checked, Messages, Problem, said
from arcforge_rl.problems.python_checker import run_program
from arcforge_rl.sandbox.sync import Bench

MOST_STEPS = 40
RECORDER = """
import sys
source = {source!r}
steps, last, printed = [], {{}}, []
def show(frame):
    return {{k: repr(v) for k, v in frame.f_locals.items() if not k.startswith("__") and not callable(v)}}
def watch(frame, event, argument):
    global last
    if frame.f_code.co_filename != "program" or len(steps) > {most}:
        return None
    if frame.f_code.co_name not in ("<module>", *named):  # comprehensions are one step
        return None
    here = (frame.f_code.co_name, frame.f_lineno)
    if event == "call" and frame.f_code.co_name != "<module>":
        steps.append("call " + frame.f_code.co_name + ": " + ", ".join(k + " = " + v for k, v in show(frame).items()))
        last = show(frame)
    elif event == "line":
        now = show(frame)
        new = [k + " = " + v for k, v in now.items() if last.get(k) != v]
        if new:
            steps.append("; ".join(new))
        last = now
    elif event == "return" and frame.f_code.co_name != "<module>":
        now = show(frame)
        new = [k + " = " + v for k, v in now.items() if last.get(k) != v]
        steps.append("; ".join([*new, "return " + repr(argument)]))
        last = show(frame.f_back)
    return watch
code = compile(source, "program", "exec")
named = [part.split("(")[0] for part in source.split("def ")[1:]]
names = {{"print": lambda *values: printed.append(" ".join(map(str, values)))}}
sys.settrace(watch)
exec(code, names)
sys.settrace(None)
final = {{k: repr(v) for k, v in names.items() if not k.startswith("__") and not callable(v)}}
new = [k + " = " + v for k, v in final.items() if last.get(k) != v]
print("\\n".join([*steps, *(["; ".join(new)] if new else [])]))
"""
WORDS = ("apple", "river", "stone", "cloud", "green", "paper", "seven", "light", "ocean", "tiger", "music", "bread")


class Traces:
    """Asks for the output of a program; the reasoning is the trace of its variables."""

    corpus, modes, most = "reasoning", THINKING_MODES, 2
    tools: tuple[dict[str, Any], ...] = ()

    def draw(self, draw: random.Random) -> Problem:
        """Returns a program; its text is the operand."""
        program = draw.choice(PROGRAMS)(draw)
        question = f"What does this program print?\n```python\n{program}```"

        def solve(desk: Bench) -> Messages | None:
            output = run_program(program, desk)
            trace = run_program(RECORDER.format(source=program, most=MOST_STEPS), desk)
            if not output or trace is None or trace.count("\n") > MOST_STEPS:
                return None
            return [{"role": "user", "content": question}, said(output.strip(), trace.strip())]

        return Problem(program, solve, Checked("python_output", {"program": program}))


def _loop(draw: random.Random) -> str:
    start, stop, step, factor = draw.randrange(10), draw.randrange(12, 30), draw.randrange(3, 8), draw.randrange(2, 6)
    lines = (f"total = {start}", f"for n in range({draw.randrange(5)}, {stop}, {step}):", f"    total += n * {factor}")
    return "\n".join((*lines, "print(total)\n"))


def _condition(draw: random.Random) -> str:
    numbers = [draw.randrange(50) for _ in range(draw.randrange(4, 8))]
    limit, word = draw.randrange(10, 40), draw.choice(("kept", "found", "large"))
    lines = (f"{word} = []", f"for n in {numbers}:", f"    if n > {limit}:")
    return "\n".join((*lines, f"        {word}.append(n % {draw.randrange(2, 9)})", f"print({word})\n"))


def _while(draw: random.Random) -> str:
    a, b = draw.randrange(20, 200), draw.randrange(6, 60)
    return f"a, b = {a}, {b}\nwhile b:\n    a, b = b, a % b\nprint(a)\n"


def _text(draw: random.Random) -> str:
    words = draw.sample(WORDS, 3)
    method, index = draw.choice(("upper", "title", "capitalize")), draw.randrange(1, 4)
    lines = (f"words = {words}", "words.append(words[0][::-1])", f"parts = [w[:{index}] for w in words]")
    return "\n".join((*lines, f"print('-'.join(parts).{method}())\n"))


def _counts(draw: random.Random) -> str:
    letters = "".join(draw.choices("abcde", k=draw.randrange(5, 9)))
    lines = ("counts = {}", f"for letter in {letters!r}:", "    counts[letter] = counts.get(letter, 0) + 1")
    return "\n".join((*lines, "print(sorted(counts.items()))\n"))


def _function(draw: random.Random) -> str:
    name, a, b = draw.choice(("step", "mix", "grow")), draw.randrange(2, 9), draw.randrange(1, 20)
    first, times = draw.randrange(1, 12), draw.randrange(2, 5)
    return (
        f"def {name}(x):\n    if x % 2:\n        return x * {a} + {b}\n    return x // 2\n\n"
        f"value = {first}\nfor _ in range({times}):\n    value = {name}(value)\nprint(value)\n"
    )


PROGRAMS = (_loop, _condition, _while, _text, _counts, _function)
