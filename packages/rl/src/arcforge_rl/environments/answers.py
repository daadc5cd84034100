r"""Extracts the answer of a reply and compares it with the reference.

The answer is the content of the reply's ``\boxed{}``. Without a box it is taken from the last line, right of its last
equals sign: the single formula between dollar signs, or the single number. Two different boxes, two formulas or two
numbers are no answer, so listing several gains nothing. If the reference is a number, the answer must be one, too:
an integer, a decimal, or a fraction in lowest terms, so repeating the question does not count.
"""

from __future__ import annotations

import importlib.util
import math
import re
from fractions import Fraction

from arcforge_core.contracts.environment import Reply, Score
from arcforge_core.errors import ConfigError
from arcforge_rl.environments.brackets import same_answer
from arcforge_rl.environments.relations import long_forms

LONGEST_LINE = 1000
LONGEST_ANSWER = 300
MOST_BOXES = 10
DEEPEST = 20
"""Maximum nesting of braces and brackets in an answer."""
BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
FORMULA = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?", re.ASCII)
DECIMAL = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?", re.ASCII)
QUOTIENT = re.compile(r"([-+]?)(?:(\d+)/(\d+)|\\[dt]?frac\{(\d+)\}\{(\d+)\})", re.ASCII)


class NoAnswer(Exception):
    """A reply has no answer; the message gives the reason."""


def final_answer(reply: Reply) -> str:
    """Returns the answer of a reply, at most `LONGEST_ANSWER` characters.

    Raises:
        NoAnswer: there is no answer or more than one, or the reply was truncated.
    """
    text = reply.text.strip()
    if reply.finish_reason != "stop":
        raise NoAnswer(f"the reply was cut off ({reply.finish_reason})")
    if not text:
        raise NoAnswer("the reply is empty")
    boxes = len(BOX.findall(text))
    if boxes > MOST_BOXES:
        raise NoAnswer(f"{boxes} answers are boxed")
    answer = _boxed(text) if boxes else _last_line(text)
    if len(answer) > LONGEST_ANSWER:
        raise NoAnswer(f"the answer has {len(answer)} characters; the limit is {LONGEST_ANSWER}")
    return answer


def judge_number(reference: Fraction, reply: Reply) -> Score:
    """Scores whether a reply's answer is this number."""
    try:
        answer = final_answer(reply)
    except NoAnswer as reason:
        return Score(0.0, str(reason))
    found = rational(right_of_equals(answer))
    if found is None:
        return Score(0.0, f"{answer[:80]!r} is no number, or no fraction in lowest terms")
    return Score(float(found == reference), f"the answer is {answer[:80]!r}")


def rational(text: str) -> Fraction | None:
    """Parses a number; returns None for anything else, including sums and reducible fractions."""
    text = text.strip().strip("$").strip().rstrip(".").replace("\u2212", "-").removesuffix("\\%").removesuffix("%")
    text = long_forms(text.replace("\\!", "").replace("\\,", "").replace("{,}", ",").strip())
    if len(text) > LONGEST_ANSWER:
        return None
    if found := DECIMAL.fullmatch(text):
        return Fraction(text.replace(",", ""))
    if found := QUOTIENT.fullmatch(text):
        sign, *parts = found.groups()
        above, below = (int(part) for part in parts if part is not None)
        if below > 1 and math.gcd(above, below) == 1:
            return Fraction(-above if sign == "-" else above, below)
    return None


def right_of_equals(text: str) -> str:
    """Returns the text after the last equals sign, or the whole text if there is none."""
    return re.split(r"(?<![<>!:=\\])=", text)[-1].strip()


def equivalent(reference: str, answer: str) -> bool:
    """Returns whether two answers have the same brackets and, to math-verify, the same parts.

    Slow and unbounded: call it in a killable process.

    Raises:
        NoAnswer: the answer is nested too deeply, or much longer than the reference.
    """
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    if max(answer.count(opening) for opening in "{([") > DEEPEST:
        raise NoAnswer("the answer is nested too deeply")
    if len(answer) > 4 * len(reference) + 40:
        raise NoAnswer("the answer is much longer than the reference")
    config = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=NormalizationConfig(boxed="last"))]

    def equal(left: str, right: str) -> bool:
        # without its own time limits, which need an alarm in the main thread
        gold, found = (parse(rf"\boxed{{{long_forms(text)}}}", config, parsing_timeout=None) for text in (left, right))
        return bool(gold and found and verify(gold, found, timeout_seconds=None))

    return same_answer(reference, answer, equal)


def need_math_verify() -> None:
    """Raises `ConfigError` unless math-verify is installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise ConfigError("environment", "math-verify", "is not installed: pip install 'arcforge-rl[math]'")


def _boxed(text: str) -> str:
    found = {balanced(text, match.end()) for match in BOX.finditer(text)}
    if len(found) > 1:
        raise NoAnswer(f"{len(found)} different answers are boxed")
    (answer,) = found
    if not answer:
        raise NoAnswer("the box is empty")
    return answer


def balanced(text: str, start: int) -> str:
    """Returns the text from `start` to the matching closing brace.

    Raises:
        NoAnswer: there is none within `LONGEST_ANSWER` characters.
    """
    depth = 1
    for end in range(start, min(len(text), start + LONGEST_ANSWER + 1)):
        depth += (text[end] == "{") - (text[end] == "}")
        if not depth:
            return text[start:end].strip()
    raise NoAnswer("the box is not closed, or too large")


def _last_line(text: str) -> str:
    line = text.rsplit("\n", 1)[-1].strip()
    if len(line) > LONGEST_LINE:
        raise NoAnswer(f"the last line has {len(line)} characters; the limit is {LONGEST_LINE}")
    formulas = ["".join(groups) for groups in FORMULA.findall(line)]
    if len(formulas) > 1:
        raise NoAnswer("the last line has several formulas")
    if formulas:
        return formulas[0].strip()
    rest = right_of_equals(line).replace("\u2212", "-")
    numbers = list(NUMBER.finditer(rest))
    if len(numbers) != 1:
        raise NoAnswer(f"the last line has {len(numbers) or 'no'} numbers where one is the answer")
    before, after = rest[: numbers[0].start()], rest[numbers[0].end() :]
    others = any(character.isnumeric() for character in before + after)
    if others or re.search(r"\w$|[.,/^*]$", before) or re.match(r"\w|[/^*(]", after):
        raise NoAnswer("the number in the last line is part of something else")
    return numbers[0].group()
