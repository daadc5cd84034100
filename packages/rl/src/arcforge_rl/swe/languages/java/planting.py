"""Failing tests that are planted beside Java's, with the assertions that those use."""

from __future__ import annotations

import re
from collections.abc import Sequence

from arcforge_rl.swe.languages.signed import Wrong

KINDS = {
    "assertArrayEquals": "assertArrayEquals(new int[] {{ {b} }}, new int[] {{ {a} }})",
    "assertEquals": "assertEquals({b}, {a})",
    "assertFalse": "assertFalse({a} < {b})",
    "assertNotEquals": "assertNotEquals({a}, {a})",
    "assertNotNull": "assertNotNull(null)",
    "assertNotSame": 'assertNotSame("{a}", "{a}")',
    "assertNull": 'assertNull("{a}")',
    "assertSame": 'assertSame("{a}", "{b}")',
    "assertThrows": "assertThrows(IllegalStateException.class, () -> {{ }})",
    "assertTrue": "assertTrue({a} > {b})",
    "fail": 'fail("{a}")',
}
"""Assertion -> call that fails; the name is a word of every test that uses it."""
PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.MULTILINE)
FILE = """{package}import static org.junit.{assertions}.*;

import org.junit.{marker};

public class {name} {{
{tests}}}
"""
TEST = "    @Test public void {name}() {{ {line}; }}\n"


def canary(name: str, text: str, tests: Sequence[Wrong]) -> str:
    """Returns a class of tests that fail, in the package and for the version of JUnit of a test file.

    Args:
        name: of the class.
        text: the test file.
        tests: of failing assertions.
    """
    new = "org.junit.jupiter" in text
    package = f"package {package_of(text)};\n\n" if package_of(text) else ""
    marker, assertions = ("jupiter.api.Test", "jupiter.api.Assertions") if new else ("Test", "Assert")
    lines = [
        TEST.format(name="test" + "".join(w.title() for w in one.words), line=one.fill(KINDS[one.kind]))
        for one in tests
    ]
    return FILE.format(package=package, assertions=assertions, marker=marker, name=name, tests="".join(lines))


def planted_class(words: Sequence[str], tests: Sequence[Wrong], texts: Sequence[str]) -> tuple[str, str]:
    """Returns name and text of a planted file; see `plant_in_folders`."""
    name = "".join(word.title() for word in words) + "Test"
    return f"{name}.java", canary(name, texts[0] if texts else "", tests)


def package_of(text: str) -> str:
    """Returns the package of a file; empty for none."""
    found = PACKAGE.search(text)
    return found[1] if found else ""
