"""Failing tests that are planted beside JavaScript's and TypeScript's, with the assertions that those use."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence

from arcforge_rl.swe.languages.signed import Wrong

APART = ("node", "vitest")
"""Runners that give each file a process of its own, so that failing tests must be in the file itself."""
ASSERT = {
    "assert": "{it}({a} > {b})",
    "deepEqual": "{it}.deepEqual({made}, {wanted})",
    "deepStrictEqual": "{it}.deepStrictEqual({made}, {wanted})",
    "doesNotMatch": "{it}.doesNotMatch('{a}', /{a}/)",
    "doesNotThrow": "{it}.doesNotThrow(function () {{ throw new Error('{a}'); }})",
    "equal": "{it}.equal({a}, {b})",
    "match": "{it}.match('{a}', /^{b}$/)",
    "notDeepEqual": "{it}.notDeepEqual({made}, {made})",
    "notDeepStrictEqual": "{it}.notDeepStrictEqual({made}, {made})",
    "notEqual": "{it}.notEqual({a}, {a})",
    "notStrictEqual": "{it}.notStrictEqual({a}, {a})",
    "ok": "{it}.ok({a} > {b})",
    "strictEqual": "{it}.strictEqual({a}, {b})",
    "throws": "{it}.throws(function () {{ return {made}; }})",
}
"""Assertions of node's own module."""
TAPE = {
    name: text for name, text in ASSERT.items() if name not in ("assert", "deepStrictEqual", "notDeepStrictEqual")
} | {
    "deepLooseEqual": "{it}.deepLooseEqual({made}, {wanted})",
    "error": "{it}.error({made})",
    "false": "{it}.false({a} < {b})",
    "is": "{it}.is({a}, {b})",
    "isNot": "{it}.isNot({a}, {a})",
    "not": "{it}.not({a}, {a})",
    "notOk": "{it}.notOk({a} < {b})",
    "same": "{it}.same({made}, {wanted})",
    "true": "{it}.true({a} > {b})",
}
CHAI = {
    "above": "{it}({a}).to.be.above({b})",
    "below": "{it}({b}).to.be.below({a})",
    "deep": "{it}({made}).to.deep.equal({wanted})",
    "empty": "{it}({made}).to.be.empty",
    "eql": "{it}({made}).to.eql({wanted})",
    "equal": "{it}({a}).to.equal({b})",
    "false": "{it}({a} < {b}).to.be.false",
    "include": "{it}({made}).to.include(-1)",
    "instanceof": "{it}({made}).to.be.an.instanceof(Map)",
    "length": "{it}({made}).to.have.length(9)",
    "match": "{it}('{a}').to.match(/^{b}$/)",
    "null": "{it}({made}).to.be.null",
    "ok": "{it}({a} > {b}).to.be.ok",
    "throw": "{it}(function () {{ return {made}; }}).to.throw()",
    "true": "{it}({a} > {b}).to.be.true",
    "undefined": "{it}({made}).to.be.undefined",
}
VITEST = {
    "rejects": "{it}(Promise.reject({a})).rejects.toBe({b})",
    "resolves": "{it}(Promise.resolve({a})).resolves.toBe({b})",
    "toBe": "{it}({a}).toBe({b})",
    "toBeCloseTo": "{it}({a}).toBeCloseTo({b})",
    "toBeDefined": "{it}(undefined).toBeDefined()",
    "toBeFalsy": "{it}({a} < {b}).toBeFalsy()",
    "toBeGreaterThan": "{it}({a}).toBeGreaterThan({b})",
    "toBeInstanceOf": "{it}({made}).toBeInstanceOf(Map)",
    "toBeLessThan": "{it}({b}).toBeLessThan({a})",
    "toBeNull": "{it}({made}).toBeNull()",
    "toBeTruthy": "{it}({a} > {b}).toBeTruthy()",
    "toBeUndefined": "{it}({made}).toBeUndefined()",
    "toContain": "{it}({made}).toContain(-1)",
    "toEqual": "{it}({made}).toEqual({wanted})",
    "toHaveLength": "{it}({made}).toHaveLength(9)",
    "toHaveProperty": "{it}({{}}).toHaveProperty('x{a}')",
    "toMatch": "{it}('{a}').toMatch(/^{b}$/)",
    "toMatchObject": "{it}({{ x: {made} }}).toMatchObject({{ x: {wanted} }})",
    "toStrictEqual": "{it}({made}).toStrictEqual({wanted})",
    "toThrow": "{it}(() => {made}).toThrow()",
    "toThrowError": "{it}(() => {made}).toThrowError()",
}
DEFAULT = {"assert": "deepEqual", "tape": "deepEqual", "chai": "deep", "vitest": "toEqual"}
KINDS = {"assert": ASSERT, "tape": TAPE, "chai": CHAI, "vitest": VITEST}
"""Library -> its assertions, each as an expression that fails."""
CANARIES = {
    "assert": ("", "it('{name}', function () {{ const it = require('assert'); {line}; }});\n"),
    "chai": ("", "it('{name}', function () {{ const it = require('chai').expect; {line}; }});\n"),
    "tape": (
        "const test = require('tape');\n",
        "test('{name}', function (it) {{ try {{ {line}; }} catch (e) {{ it.fail(String(e)); }} it.end(); }});\n",
    ),
}
"""Library -> head of a planted file, and one of its tests."""
MODULE = re.compile(r"^\s*(import\b(?!\s*\()|export\b)", re.MULTILINE)
"""A statement that only ECMAScript's modules have."""
STRICT = re.compile(r"\bassert/strict\b|\bassert(['\"]\))?\.strict\b|\bstrict as assert\b|\bstrict: assert\b")


def library_of(runner: str, texts: Sequence[str]) -> str:
    """Returns the library of assertions of test files: one of `KINDS`."""
    if runner != "mocha":
        return {"node": "assert"}.get(runner, runner)
    return (
        "chai" if any(re.search(r"\bchai\b", text) and re.search(r"\bexpect\(", text) for text in texts) else "assert"
    )


def canary(library: str, tests: Sequence[Wrong]) -> str:
    """Returns a file of tests that fail."""
    head, one = CANARIES[library]
    known = KINDS[library]
    return head + "".join(
        one.format(name=" ".join(test.words), line=test.fill(known[test.kind], it="it")) for test in tests
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
        head = f"import {{ test as {test}, expect as {check} }} from 'vitest';"
    else:
        taken = "import {} from {};" if module else "const {} = require({});"
        strict = "'node:assert/strict'" if STRICT.search(text) else "'node:assert'"
        head = taken.format(test, "'node:test'") + taken.format(check, strict)
    known = KINDS[library_of(runner, [text])]
    named = [(" ".join(one.words), one.fill(known[one.kind], it=check)) for one in tests]
    return (
        head + "".join(f"\n{test}({json.dumps(name)}, async () => {{ await {line}; }});" for name, line in named) + "\n"
    )
