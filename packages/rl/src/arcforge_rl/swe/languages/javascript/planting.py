"""Failing tests that are planted beside JavaScript's and TypeScript's."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence

from arcforge_rl.swe.languages.signed import Wrong

APART = ("node", "vitest")
"""Runners that give each file a process of its own, so that failing tests must stand in the file itself."""
CANARIES = {
    "tape": ("const test = require('tape');\n",
        "test('{name}', function (t) {{ t.deepEqual({made}, {wanted}); t.end(); }});\n"),
    "mocha": ("const assert = require('assert');\n",
        "it('{name}', function () {{ assert.deepEqual({made}, {wanted}); }});\n"),
}  # fmt: skip
"""Runner -> head of a planted file, and one of its tests."""
MODULE = re.compile(r"^\s*(import\b(?!\s*\()|export\b)", re.MULTILINE)
"""A statement that only ECMAScript's modules have."""


def canary(runner: str, tests: Sequence[Wrong]) -> str:
    """Returns a file of tests that fail."""
    head, one = CANARIES[runner]
    return head + "".join(
        one.format(name=" ".join(test.words), made=list(test.made), wanted=list(test.wanted)) for test in tests
    )


def inside(path: str, text: str, runner: str, tests: Sequence[Wrong]) -> str:
    """Returns tests that fail, to stand below a test file's last line.

    Args:
        path, text: the test file, whose kind of module decides how the runner is loaded.
        runner: one of `APART`.
        tests: of failing assertions.
    """
    test, check = (f"_{secrets.token_hex(4)}" for _ in range(2))
    module = path.endswith((".mjs", ".mts")) or (not path.endswith((".cjs", ".cts")) and MODULE.search(text))
    if runner == "vitest":
        head, method = f"import {{ test as {test}, expect as {check} }} from 'vitest';", "toEqual"
        lines = [f"{check}({list(one.made)}).{method}({list(one.wanted)})" for one in tests]
    else:
        taken = "import {} from {};" if module else "const {} = require({});"
        head = taken.format(test, "'node:test'") + taken.format(check, "'node:assert'")
        lines = [f"{check}.deepEqual({list(one.made)}, {list(one.wanted)})" for one in tests]
    named = zip((" ".join(one.words) for one in tests), lines, strict=True)
    return head + "".join(f"\n{test}({json.dumps(name)}, () => {{ {line}; }});" for name, line in named) + "\n"
