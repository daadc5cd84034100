"""Fields of published datasets, and the extraction of question and answer from their rows.

Sources: the dataset cards of openai/gsm8k, hendrycks/competition_math (and HuggingFaceH4/MATH-500, which has the answer
in a field of its own), BAAI/TACO, open-r1/codeforces.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from arcforge_rl.environments.answers import BOX, LONGEST_ANSWER, NoAnswer, balanced
from arcforge_rl.environments.code_tests import Tests

Record = Mapping[str, Any]
MOST_TESTS = 50
"""Maximum tests run per row; each costs a process."""


class BadRow(Exception):
    """A row that cannot become a task; the message gives the reason."""


@dataclass(frozen=True)
class Extracted:
    """The question and the reference of a row.

    Attributes:
        prompt: the question.
        answer: the reference; with tests a solution, or empty.
        tests: tests of a program.
    """

    prompt: str
    answer: str
    tests: Tests | None = None


@dataclass(frozen=True)
class Known:
    """A dataset with a preset.

    Attributes:
        judge: ``math``, ``exact``, ``choice`` or ``code``.
        extract: extracts question and reference, or raises `BadRow`.
    """

    judge: str
    extract: Callable[[Record], Extracted]


def text_of(record: Record, field: str, what: str) -> str:
    """Returns a field's text.

    Raises:
        BadRow: the field is missing, empty, or not text.
    """
    value = record.get(field)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        has = ", ".join(map(str, record)) or "no fields"
        raise BadRow(
            f"no {what}: the field {field!r} is {'empty' if field in record else 'not there'}; the row has {has}"
        )
    return value.strip()


def extract_fields(record: Record, prompt_field: str, answer_field: str, judge: str) -> Extracted:
    """Extracts a row by field names; for ``code`` the answer field holds tests in TACO's format."""
    prompt = text_of(record, prompt_field, "question")
    if judge == "code":
        return Extracted(prompt, "", tests_of(_parsed(record.get(answer_field), answer_field)))
    answer = text_of(record, answer_field, "answer")
    if judge == "choice":
        answer = answer.strip("().").upper()
        if answer not in ("A", "B", "C", "D"):
            raise BadRow(f"the answer is not a letter from A to D: {answer[:40]!r}")
    return Extracted(prompt, answer)


def gsm8k(record: Record) -> Extracted:
    """The answer follows ``####``."""
    _, found, answer = text_of(record, "answer", "answer").rpartition("####")
    if not found or not answer.strip():
        raise BadRow("no answer: the field 'answer' has no ####")
    return Extracted(text_of(record, "question", "question"), answer.strip().replace(",", ""))


def competition_math(record: Record) -> Extracted:
    """The answer is the field ``answer``, or the last box of the solution."""
    prompt = text_of(record, "problem", "question")
    if str(record.get("answer") or "").strip():
        return Extracted(prompt, text_of(record, "answer", "answer"))
    solution = text_of(record, "solution", "answer")
    boxes = list(BOX.finditer(solution))
    if not boxes:
        raise BadRow("no answer: the field 'solution' has no \\boxed{}")
    try:
        answer = balanced(solution, boxes[-1].end())
    except NoAnswer as reason:
        raise BadRow(f"no answer: {reason} (of {LONGEST_ANSWER} characters at most)") from reason
    return Extracted(prompt, answer)


def taco(record: Record) -> Extracted:
    """Tests are JSON in ``input_output``; if there is starter code, they call its function."""
    prompt = text_of(record, "question", "question")
    starter = str(record.get("starter_code") or "").strip()
    solutions = _parsed(record.get("solutions") or "[]", "solutions")
    first = solutions[0] if isinstance(solutions, list) and solutions and isinstance(solutions[0], str) else ""
    tests = tests_of(_parsed(record.get("input_output"), "input_output"))
    return Extracted(f"{prompt}\n\n{starter}" if starter else prompt, first, tests)


def codeforces(record: Record) -> Extracted:
    """Tests are ``official_tests``, or the examples; problems with several correct outputs are refused."""
    if record.get("interaction_format") or record.get("generated_checker"):
        raise BadRow("its output needs a checker of its own")
    if record.get("input_mode") not in (None, "", "stdio"):
        raise BadRow(f"it reads from a file (input_mode={record['input_mode']!r})")
    headings = {"description": "", "input_format": "Input", "output_format": "Output", "note": "Note"}
    parts = [f"{heading}\n{record[name]}".strip() for name, heading in headings.items() if record.get(name)]
    examples = record.get("examples") or []
    parts += [f"Example input\n{e['input']}\nExample output\n{e['output']}" for e in examples if isinstance(e, dict)]
    text_of(record, "description", "question")
    cases = record.get("official_tests") or examples
    if not isinstance(cases, list) or not all(isinstance(case, dict) and "input" in case for case in cases):
        raise BadRow("no answer: its tests are not a list of inputs and outputs")
    both = {"inputs": [case["input"] for case in cases], "outputs": [case.get("output", "") for case in cases]}
    return Extracted("\n\n".join(parts), "", tests_of(both))


def tests_of(value: Any) -> Tests:
    """Parses tests in TACO's format: inputs, outputs and optionally fn_name.

    Raises:
        BadRow: the value does not contain tests.
    """
    if not isinstance(value, dict):
        raise BadRow("no answer: its tests are not an object with inputs and outputs")
    inputs, outputs, function = value.get("inputs"), value.get("outputs"), value.get("fn_name") or ""
    if not isinstance(inputs, list) or not isinstance(outputs, list) or not inputs or len(inputs) != len(outputs):
        raise BadRow("no answer: its tests have no inputs, or another number of outputs")
    if function:
        if not all(isinstance(given, list) for given in inputs):
            raise BadRow(f"the inputs of {function} are not lists of arguments")
        # the expected result is the only element of a list
        outputs = [wanted[0] if isinstance(wanted, list) and len(wanted) == 1 else wanted for wanted in outputs]
    else:
        inputs, outputs = ([_lines(value) for value in values] for values in (inputs, outputs))
    return Tests(tuple(inputs[:MOST_TESTS]), tuple(outputs[:MOST_TESTS]), str(function))


def _lines(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _parsed(value: Any, field: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"no answer: the field {field!r} is not JSON") from error


KNOWN = {
    "gsm8k": Known("math", gsm8k),
    "math": Known("math", competition_math),
    "taco": Known("code", taco),
    "codeforces": Known("code", codeforces),
}
"""The presets by their names in `environment.preset`."""
