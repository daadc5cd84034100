"""Quantities with units: formatting, parsing from replies, and comparison."""

from __future__ import annotations

import functools
import math
import re
from typing import Any

from arcforge_core.contracts.environment import Reply, Score
from arcforge_rl.environments.answers import BOX, NoAnswer, final_answer, right_of_equals

TOLERANCE = 0.01
LONGEST = 200
QUANTITY = re.compile(
    r"(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)"
    r"(?P<power>(?:[eE]|\s*(?:\*|x|\u00d7|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*)\{?[-+]?\d{1,2}\}?)?"
    r"\s*(?P<unit>[A-Za-z\u00b5\u03bc\u03a9\u00b0%]"
    r"[A-Za-z\u00b5\u03bc\u03a9\u00b0/*^\u00b7\u22c5 ()\u00b2\u00b3\u207b\u00b90-9-]{0,60})",
    re.ASCII,
)
SUPERSCRIPTS = str.maketrans(
    {"\u00b2": "^2", "\u00b3": "^3", "\u207b": "^-", "\u00b9": "1", "\u00b7": "*", "\u22c5": "*"}
)
Quantity = tuple[float, str]


def quantity_text(value: float, unit: str) -> str:
    """Formats a quantity as in references."""
    return f"{value:.6g} {unit}"


def last_quantity(reply: Reply) -> Quantity:
    r"""Returns the number and unit in a reply's box, or in its last line, where only words may precede them.

    Raises:
        NoAnswer: there is no quantity, or more than one.
    """
    text = reply.text.strip()
    if reply.finish_reason != "stop":
        raise NoAnswer(f"the reply was cut off ({reply.finish_reason})")
    line = final_answer(reply) if BOX.search(text) else text.rsplit("\n", 1)[-1]
    line = (
        re.sub(r"\\(?:text|mathrm|rm|,|;|!|\s)|[{}$~]", " ", right_of_equals(line[-10 * LONGEST :]))
        .strip()
        .rstrip(".*")
    )
    line = re.sub(r"\\(?:times|cdot)", "*", line).replace("\u2212", "-").strip()
    if len(line) > LONGEST:
        raise NoAnswer(f"the last line has more than {LONGEST} characters")
    start = next((n for n, character in enumerate(line) if character.isdigit()), None)
    if start is None:
        raise NoAnswer("the last line has no number")
    if start and line[start - 1] in "+-":
        start -= 1
    before = line[:start]
    found = QUANTITY.fullmatch(line[start:].strip())
    if found is None or re.search(r"[\w.,/^*]$", before):
        raise NoAnswer(f"the last line is not one number with its unit: {line[:80]!r}")
    power = re.search(r"[-+]?\d{1,2}\D*$", found["power"] or "")
    exponent = int(power.group().rstrip("}")) if power else 0
    return float(found["number"].replace(",", "")[:100]) * 10.0**exponent, found["unit"].translate(SUPERSCRIPTS).strip()


def equal_quantities(reference: Quantity, found: Quantity) -> Score:
    """Scores whether two quantities are equal within `TOLERANCE`. Call it in a killable process."""
    ureg = registry()
    try:
        wanted, given = (value * ureg.parse_units(unit.replace("^", "**")) for value, unit in (reference, found))
        value = given.to(wanted.units).magnitude
    except Exception as error:  # pint raises errors of Python's tokenizer, among others
        return Score(0.0, f"{found[1]!r} is not a unit of the requested quantity ({type(error).__name__})")
    close = math.isclose(value, wanted.magnitude, rel_tol=TOLERANCE)
    return Score(float(close), f"the answer is {value:.6g} {reference[1]}")


@functools.cache
def registry() -> Any:
    """Returns pint's unit registry."""
    import pint

    return pint.UnitRegistry()
