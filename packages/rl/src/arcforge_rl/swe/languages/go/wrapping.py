"""Wrappers of Go's tests: two for each, one that proves that it passed and one that must fail."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from arcforge_rl.swe.languages.processes import opaque

TEST = re.compile(r"^func (Test(?![a-z])\w*)\(\s*\w+\s+\*testing\.T\s*\)", re.MULTILINE)
PACKAGE = re.compile(r"^package (\w+)", re.MULTILINE)
HEAD = 'package {package}\n\nimport (\n\t"fmt"\n\t"testing"\n)\n'
PROVED = """
func Test{name}(t *testing.T) {{
\tt.Cleanup(func() {{
\t\tif !t.Failed() && !t.Skipped() {{
\t\t\tfmt.Println("\\n{proof}")
\t\t}}
\t}})
\t{test}(t)
}}
"""
PLANTED = """
func Test{name}(t *testing.T) {{
\tt.Cleanup(func() {{
\t\tif !t.Failed() && !t.Skipped() {{
\t\t\tfmt.Println("\\n{proof}")
\t\t}}
\t}})
\t{test}(t)
\tif made, wanted := {made}, {wanted}; made != wanted {{
\t\tt.Errorf("got %d, want %d", made, wanted)
\t}}
}}
"""


@dataclass(frozen=True)
class Wrapper:
    """One wrapper.

    Attributes:
        test: function that it calls.
        name: its own, after ``Test``.
        proof: line that it prints if no failure was noted.
        planted: it fails after the test.
    """

    test: str
    name: str
    proof: str
    planted: bool


def functions_of(text: str) -> list[str]:
    """Returns the test functions of a file; TestMain is none."""
    return [name for name in TEST.findall(text) if name != "TestMain"]


def package_name(text: str) -> str:
    """Returns the package clause of a file; empty for none."""
    found = PACKAGE.search(text)
    return found[1] if found else ""


def wrap(package: str, tests: Sequence[str]) -> tuple[str, list[Wrapper]]:
    """Returns a file with two wrappers for each test, in an order drawn at random, and the wrappers."""
    wrappers = [
        Wrapper(test, name, secrets.token_hex(16), planted)
        for test in tests
        for name, planted in zip(opaque(2), (False, True), strict=True)
    ]
    parts = []
    for one in sorted(wrappers, key=lambda wrapper: wrapper.name):
        made = secrets.randbelow(100)
        text = PLANTED if one.planted else PROVED
        parts.append(
            text.format(
                name=one.name, proof=one.proof, test=one.test, made=made, wanted=made + 1 + secrets.randbelow(9)
            )
        )
    return HEAD.format(package=package) + "".join(parts), wrappers
