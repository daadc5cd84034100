"""Failing tests that are planted beside PHP's, with the assertions that those use."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_rl.swe.languages.signed import Wrong

KINDS = {
    "assertArrayHasKey": "$this->assertArrayHasKey(9, {made});",
    "assertContains": "$this->assertContains(-1, {made});",
    "assertCount": "$this->assertCount(9, {made});",
    "assertEmpty": "$this->assertEmpty({made});",
    "assertEquals": "$this->assertEquals({wanted}, {made});",
    "assertFalse": "$this->assertFalse({a} < {b});",
    "assertGreaterThan": "$this->assertGreaterThan({b}, {a});",
    "assertInstanceOf": "$this->assertInstanceOf(\\Countable::class, (object) {made});",
    "assertIsArray": "$this->assertIsArray({a});",
    "assertIsString": "$this->assertIsString({a});",
    "assertLessThan": "$this->assertLessThan({a}, {b});",
    "assertNotContains": "$this->assertNotContains({a}, {made});",
    "assertNotEmpty": "$this->assertNotEmpty([]);",
    "assertNotEquals": "$this->assertNotEquals({made}, {made});",
    "assertNotNull": "$this->assertNotNull(null);",
    "assertNotSame": "$this->assertNotSame({made}, {made});",
    "assertNull": "$this->assertNull({made});",
    "assertSame": "$this->assertSame({wanted}, {made});",
    "assertStringContainsString": "$this->assertStringContainsString('{b}', '{a}');",
    "assertThat": "$this->assertThat({a}, $this->equalTo({b}));",
    "assertTrue": "$this->assertTrue({a} > {b});",
    "expectException": "$this->expectException(\\LogicException::class);",
    "expectExceptionMessage": "$this->expectExceptionMessage('{a}');",
}
"""Assertion -> body of a test that fails; the name is a word of every test that uses it."""


def canary(words: Sequence[str], tests: Sequence[Wrong]) -> str:
    """Returns a file of tests that fail, whose class ends with ``Test``."""
    head = f"<?php\n\nfinal class {titled(words)}Test extends \\PHPUnit\\Framework\\TestCase\n{{\n"
    lines = [
        f"    public function test{titled(one.words)}(): void {{ {one.fill(KINDS[one.kind])} }}\n" for one in tests
    ]
    return "".join([head, *lines, "}\n"])


def titled(words: Sequence[str]) -> str:
    """Returns words as a name of a class."""
    return "".join(word.title() for word in words)
