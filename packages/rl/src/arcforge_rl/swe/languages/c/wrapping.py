"""Test programs of C and C++ with a main function of ours, which proves that theirs returned without a failure.

The repository's ``main`` gets another name. Ours stands above the first line of the file, where no macro of a header
can change it; the comparisons that must fail are below the last one, where every macro of the tests' headers applies.
One program has several modes, chosen by its last argument: the test itself, single functions of it, and planted ones,
which run the test and then compare things that differ.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from arcforge_rl.swe.languages.processes import opaque

MAIN = re.compile(r"^\s*(?:(?:int|void|auto)\s+)?(?:[A-Z_]+\s+)?main\s*\(([^)]*)\)[^;{]*\{", re.MULTILINE)
FUNCTION = re.compile(r"^(?:static\s+)?(void|int)\s+(test\w+|\w+_tests?)\s*\(\s*(?:void)?\s*\)\s*\{", re.MULTILINE)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
SKIPPED = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
"""Comments and literals, of which no brace counts."""
LEAVES = re.compile(r"(?<![\w.>:])(?:std::)?exit\s*\(")
ASSERTION = re.compile(r"\b(assert|abort)\s*\(")
WHOLE = "main"
"""Name of the test that is a file's whole program."""

ABOVE = """{extern} long write(int, const void *, unsigned long);
int {main}({parameters});
{extern} int {checked}(int);
{extern} int {single}(int);
static const char *const {modes}[] = {{{given}}}, *const {proofs}[] = {{{shown}}};
static int {mode} = -1;
static int {finish}(int code) {{
  unsigned long size = 0;
  if ({mode} < 0 || code != 0) return code;
  if ({mode} >= {first} && (code = {checked}({mode} - {first})) != 0) return code;
  while ({proofs}[{mode}][size]) size++;
  return write(1, {proofs}[{mode}], size) == (long)size ? 0 : 1;
}}
static void {leave}(int code) {{
  __builtin_exit({finish}(code));
}}
int main(int argc, char **argv) {{
  int one, (*begin)(int, char **, char **) = (int (*)(int, char **, char **)){main};
  (void){leave};
  for (one = 0; argc > 1 && one < {count}; one++) {{
    const char *a = argv[argc - 1], *b = {modes}[one];
    while (*a && *a == *b) a++, b++;
    if (*a == *b) {mode} = one;
  }}
  if ({mode} < 0) return 0;
  argv[--argc] = 0;
  if ({mode} > 0 && {mode} < {first}) return {finish}({single}({mode}));
  return {finish}(begin(argc, argv, (char **)0));
}}
#define main {main}
#line 1
"""
BELOW = """
#undef main
#ifndef assert
#include <assert.h>
#endif
#include <string.h>
{extern} int {checked}(int which) {{
  const char *volatile made = "{left}", *volatile wanted = "{right}";
  volatile int found = {number}, expected = {number} + 1;
  if (which == 0) {{
    assert(found == expected);
    return 0;
  }}
  if (which == 1) return strcmp(made, wanted) == 0 ? 0 : 1;
  if (which == 2) return memcmp(made, wanted, {size}) != 0;
  if (found != expected) return 1;
  return 0;
}}
{extern} int {single}(int which) {{
  switch (which) {{
{cases}  }}
  return 0;
}}
"""
FORMS = 4
"""Things that a planted test compares."""


@dataclass(frozen=True)
class Mode:
    """One mode of a program.

    Attributes:
        test: `WHOLE`, or a function.
        arguments: that choose it, after the program's own.
        proof: line that it prints.
        planted: whether it must fail.
        env: variables that choose it.
    """

    test: str
    arguments: tuple[str, ...]
    proof: str
    planted: bool
    env: Mapping[str, str] = field(default_factory=dict)


def has_main(text: str) -> bool:
    """Returns whether a file defines ``main``."""
    return MAIN.search(SKIPPED.sub(" ", text)) is not None


def functions_of(text: str) -> list[tuple[str, str]]:
    """Returns names and types of the functions that can be tests by themselves: those of files that assert."""
    plain = COMMENT.sub(" ", text)
    if not ASSERTION.search(plain):
        return []
    return list(dict.fromkeys((name, kind) for kind, name in FUNCTION.findall(plain) if name != WHOLE))


def wrap(text: str, cpp: bool, path: str = "") -> tuple[str, str, list[Mode]]:
    """Returns a test program's new text, a marker that is in its executable, and its modes.

    Args:
        text: of a file with ``main``.
        cpp: whether it is C++.
        path: that error messages name.
    """
    names = ("main", "checked", "single", "modes", "proofs", "mode", "finish", "leave")
    drawn = dict(zip(names, opaque(len(names)), strict=True))
    functions = functions_of(text)
    tests = [WHOLE, *(name for name, _ in functions)]
    planted = sorted({0, 1 + secrets.randbelow(FORMS - 1)})
    forms = [WHOLE] * FORMS
    modes = [
        Mode(test, (secrets.token_hex(8),), secrets.token_hex(16), number >= len(tests))
        for number, test in enumerate([*tests, *forms])
    ]
    parameters, body = _returning(text)
    number, letters = secrets.randbelow(1000), secrets.token_hex(4)
    prefix = 'extern "C"' if cpp else "extern"
    above = ABOVE.format(
        **drawn, extern=prefix, first=len(tests), count=len(modes),
        given=", ".join(f'"{mode.arguments[0]}"' for mode in modes),
        shown=", ".join(f'"\\n{mode.proof}\\n"' for mode in modes),
        parameters=parameters,
    )  # fmt: skip
    cases = "".join(
        f"    case {place}: {'return ' if kind == 'int' else ''}{name}();{'' if kind == 'int' else ' break;'}\n"
        for place, (name, kind) in enumerate(functions, 1)
    )
    below = BELOW.format(
        **{name: drawn[name] for name in ("checked", "single")}, extern=prefix if cpp else "", left=f"{letters}a",
        right=f"{letters}b", number=number, size=len(letters) + 1, cases=cases,
    )  # fmt: skip
    body = LEAVES.sub(f"{drawn['leave']}(", body)
    kept = [mode for place, mode in enumerate(modes) if place < len(tests) or place - len(tests) in planted]
    line = f'#line 1 "{path}"\n' if path else "#line 1\n"
    return above.replace("#line 1\n", line) + body + below, modes[0].arguments[0], kept


def _returning(text: str) -> tuple[str, str]:
    """Returns the parameters of ``main``, and the text with a ``return 0`` at its end, which main alone may lack."""
    plain = SKIPPED.sub(lambda found: " " * len(found[0]), text)
    found = MAIN.search(plain)
    if found is None:
        return "", text
    depth, place = 1, found.end()
    while place < len(plain) and depth:
        depth += {"{": 1, "}": -1}.get(plain[place], 0)
        place += 1
    return text[found.start(1) : found.end(1)], f"{text[: place - 1]} return 0; {text[place - 1 :]}"
