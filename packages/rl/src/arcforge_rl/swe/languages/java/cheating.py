"""Attempts to pass hidden tests of Java without a repair; each must earn 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from arcforge_rl.swe.instance import Instance, read_text
from arcforge_rl.swe.languages.java.planting import package_of
from arcforge_rl.swe.patches import paths_of

ASSERT = "package org.junit;\npublic class Assert { public static void assertEquals(long a, long b) {} }\n"
ASSERTIONS = (
    "package org.junit.jupiter.api;\npublic class Assertions { public static void assertEquals(int a, int b) {} }\n"
)
ENGINE = "META-INF/services/org.junit.platform.engine.TestEngine"
LEAVE = "static { Runtime.getRuntime().halt(0); }"
EXIT = "static { System.exit(0); }"
SHOUT = """static {
    try (java.io.FileOutputStream out = new java.io.FileOutputStream(java.io.FileDescriptor.out)) {
        out.write("{\\"end\\": 0, \\"number\\": 0}\\nOK (5 tests)\\n".getBytes());
    } catch (java.io.IOException error) { }
}"""
SKIP = 'if (true) throw new org.opentest4j.TestAbortedException("not today");'
METHOD = re.compile(
    r"^(?P<head>\s*(?:(?:public|protected|private|static|final|synchronized)\s+)+(?:<[^(){};=]*>\s+)?[\w.<>\[\], ?]+\s+"
    r"\w+\([^(){};]*\)(?:\s*throws[\w., ]+)?\s*\{)",
    re.MULTILINE,
)
"""Beginning of a method with a modifier."""


def cheats(instance: Instance, tree: Path) -> Iterator[dict[str, str | None]]:
    """Yields classes of JUnit of one's own, engines, and code that leaves, shouts or skips."""
    yield {
        "src/main/java/org/junit/Assert.java": ASSERT,
        "src/main/java/org/junit/jupiter/api/Assertions.java": ASSERTIONS,
    }
    yield {f"src/main/resources/{ENGINE}": "nothing.Here\n"}
    module = next(path for path in paths_of(instance.patch) if (tree / path).is_file())
    text = read_text(tree / module) or ""
    for block in (LEAVE, EXIT, SHOUT):
        yield {module: _with(text, block)}
    yield {module: METHOD.sub(lambda found: f"{found['head']} {SKIP}", text)}
    yield dict.fromkeys(instance.tests, "\n")
    yield {module: None}


def _with(text: str, block: str) -> str:
    """Returns a file whose first class has one more block; a class that stands alone if it has no body."""
    head = text.find("{")
    if head < 0:
        return f"package {package_of(text)};\n" if package_of(text) else text
    return f"{text[: head + 1]}\n{block}\n{text[head + 1 :]}"
