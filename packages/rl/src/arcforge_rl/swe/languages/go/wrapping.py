"""Wrappers of Go's tests: two for each, one that proves that it passed and one that must fail."""

from __future__ import annotations

import re
from collections.abc import Sequence

from arcforge_rl.swe.languages.processes import Wrapper, twins

TEST = re.compile(r"^func (Test(?![a-z])\w*)\(\s*\w+\s+\*testing\.T\s*\)", re.MULTILINE)
PACKAGE = re.compile(r"^package (\w+)", re.MULTILINE)
HEAD = 'package {package}\n\nimport (\n\t"fmt"\n\t"testing"\n)\n'
WRAPPER = """
func Test{name}(t *testing.T) {{
\tt.Cleanup(func() {{
\t\tif !t.Failed() && !t.Skipped() {{
\t\t\tfmt.Println("\\n{proof}")
\t\t}}
\t}})
\t{test}(t)
{planted}}}
"""
PLANTED = """\
\tif made, wanted := {made}, {wanted}; made != wanted {{
\t\tt.Errorf("got %d, want %d", made, wanted)
\t}}
"""


def functions_of(text: str) -> list[str]:
    """Returns the test functions of a file; TestMain is none."""
    return [name for name in TEST.findall(text) if name != "TestMain"]


def package_name(text: str) -> str:
    """Returns the package clause of a file; empty for none."""
    found = PACKAGE.search(text)
    return found[1] if found else ""


def wrap(package: str, tests: Sequence[str]) -> tuple[str, list[Wrapper]]:
    """Returns a file with two wrappers for each test, in an order drawn at random, and the wrappers."""
    wrappers = twins(tests)
    parts = []
    for one in wrappers:
        planted = PLANTED.format(made=one.made, wanted=one.wanted) if one.planted else ""
        parts.append(WRAPPER.format(name=one.name, proof=one.proof, test=one.test, planted=planted))
    return HEAD.format(package=package) + "".join(parts), wrappers
