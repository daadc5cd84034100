"""Reads the tests of GoogleTest, Catch2 and doctest from the sources of test files; see `planting`.

Nothing is asked of a built program, in which the code under test runs: it could leave tests out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

HIDDEN = re.compile(
    r"/\*.*?\*/|//[^\n]*|\b\d[\w.]*(?:'\w+)+|R\"([^\s()\\]{0,16})\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
"""Comments and literals. Numbers with separators come first, as their quotes open no character."""
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)
DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(((?:\\\n|[^\n])*)", re.MULTILINE)
CONDITION = re.compile(r"^[ \t]*#[ \t]*(?:if|el|endif)", re.MULTILINE)
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[\"<]([^\">\n]+)[\">]", re.MULTILINE)
INVOKED = re.compile(r"\b([A-Z][A-Z0-9_]*)\s*\(")
UNKNOWN = re.compile(r"TEST(?!_SUITE)|SCENARIO|(?<!SUB)CASE")
"""Part of the names of macros that define tests, by which those of a repository's own are noticed."""
STRINGS = re.compile(r"\s*(\"(?:\\.|[^\"\\\n])*\"\s*)+")
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
PLAIN_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "?": "?", "t": "\t"}
LEFT_OUT = re.compile(
    r"\[(?:\.|!hide|!benchmark|!mayfail|!shouldfail)|\b(?:skip|may_fail|should_fail|expected_failures)\s*\("
)
"""Tags and decorators of tests that do not run, or whose failure is no failure."""
HARNESS = re.compile(r"RUN_ALL_TESTS|Catch::Session|doctest::Context|CATCH_CONFIG_(?:RUNNER|MAIN)|DOCTEST_CONFIG_IMPL")


@dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        name: of it.
        include: of its headers.
        prefix: that its macros may have.
        macros: macro of a test -> its name and filter, from its arguments; None if they cannot be read.
        assertions: macro -> arguments with which it fails: ``{m}`` and ``{w}`` are numbers, the second greater, and
            ``{s}`` and ``{t}`` texts that differ.
        fatal: start of the names of assertions that leave the test.
        default: an assertion that does not.
        flag: of the filter; empty: the variable ``GTEST_FILTER``, so that a main function of the tests sees its usual
            arguments.
    """

    name: str
    include: re.Pattern[str]
    prefix: str
    macros: Mapping[str, Callable[[Sequence[str]], tuple[str, str] | None]]
    assertions: Mapping[str, str]
    fatal: str
    default: str
    flag: str


@dataclass(frozen=True)
class SourceTest:
    """One test of a file.

    Attributes:
        name: of it.
        filter: that selects it.
        start: place of its body, after the brace.
        end: place of the brace that closes it; None if conditional compilation makes it uncertain.
        skipped: whether it says itself that it does not run, or that it may fail.
        assertions: macros in its body.
        prefix: of its macro.
    """

    name: str
    filter: str
    start: int
    end: int | None
    skipped: bool
    assertions: tuple[str, ...]
    prefix: str


@dataclass(frozen=True)
class SourceTests:
    """The tests of a file.

    Attributes:
        found: those that can be read.
        unread: whether there are others: macros of the repository's own define tests, or names are computed.
        assertions: macros in the file.
    """

    found: tuple[SourceTest, ...]
    unread: bool
    assertions: tuple[str, ...]


def _suite(pattern: str) -> Callable[[Sequence[str]], tuple[str, str] | None]:
    """Returns a reader of ``(SUITE, NAME)``."""

    def read(arguments: Sequence[str]) -> tuple[str, str] | None:
        if len(arguments) != 2 or not all(re.fullmatch(r"\w+", text) for text in arguments):
            return None
        return ".".join(arguments), pattern.format(*arguments)

    return read


def _titled(
    place: int, escape: Callable[[str], str], before: str = "", after: str = ""
) -> Callable[[Sequence[str]], tuple[str, str] | None]:
    """Returns a reader of macros with a literal among their arguments."""

    def read(arguments: Sequence[str]) -> tuple[str, str] | None:
        title = literal(arguments[place]) if place < len(arguments) else None
        return (title.strip(), escape(before + title) + after) if title and title.strip() else None

    return read


def literal(text: str) -> str | None:
    """Returns the text of the literals with which an argument begins; None if there are none, or odd ones."""
    found = STRINGS.match(text)
    if found is None or re.match(r"\s*[\w(.]", text[found.end() :]):
        return None
    parts = [part[1:-1] for part in re.findall(r"\"(?:\\.|[^\"\\\n])*\"", found[0])]
    if any(escape not in PLAIN_ESCAPES for part in parts for escape in ESCAPE.findall(part)):
        return None
    return "".join(ESCAPE.sub(lambda escape: PLAIN_ESCAPES[escape[1]], part) for part in parts)


def _catch(title: str) -> str:
    return re.sub(r"([^\w\s])", r"\\\1", title.strip(), flags=re.ASCII)


def _doctest(title: str) -> str:
    return re.sub(r"[,\\*\"]", "?", title)


COMPARED = {
    "EQ": "{m}, {w}", "NE": "{m}, {m}", "LT": "{w}, {m}", "LE": "{w}, {m}", "GT": "{m}, {w}", "GE": "{m}, {w}",
}  # fmt: skip
THROWN = {"THROWS": "static_cast<void>({m})", "THROWS_AS": "static_cast<void>({m}), int", "NOTHROW": "throw int({m})"}
GTEST_FORMS = COMPARED | {
    "TRUE": "{m} == {w}", "FALSE": "{m} != {w}", "STREQ": "{s}, {t}", "STRNE": "{s}, {s}", "NEAR": "{m}, {w}, 0.5",
    "DOUBLE_EQ": "{m}, {w}", "FLOAT_EQ": "{m}, {w}", "THROW": "static_cast<void>({m}), int",
    "ANY_THROW": "static_cast<void>({m})", "NO_THROW": "throw int({m})",
}  # fmt: skip
CATCH_FORMS = {"": "{m} == {w}", "_FALSE": "{m} != {w}"} | {f"_{name}": form for name, form in THROWN.items()}
DOCTEST_FORMS = CATCH_FORMS | {f"_{name}": form for name, form in COMPARED.items()} | {
    "_UNARY": "{m} == {w}", "_UNARY_FALSE": "{m} != {w}", "_MESSAGE": "{m} == {w}, {s}",
}  # fmt: skip
GTEST = Framework(
    "gtest", re.compile(r"(?:gtest|gmock)/g(?:test|mock)[\w-]*\.h$|^g(?:test|mock)\.h$"), "GTEST_",
    {
        "TEST": _suite("{}.{}"), "TEST_F": _suite("{}.{}"), "TEST_P": _suite("*/{0}.{1}/*:{0}.{1}/*"),
        "TYPED_TEST": _suite("{0}/*.{1}"), "TYPED_TEST_P": _suite("*/{0}/*.{1}"),
    },
    {f"{start}_{name}": form for start in ("EXPECT", "ASSERT") for name, form in GTEST_FORMS.items()},
    "ASSERT", "EXPECT_EQ", "",
)  # fmt: skip
CATCH = Framework(
    "catch", re.compile(r"(?:^|/)catch2?/\w+(?:/\w+)*\.hpp$|(?:^|/)catch2?(?:_\w+)?\.hpp$"), "CATCH_",
    {
        "TEST_CASE": _titled(0, _catch), "SCENARIO": _titled(0, _catch, "Scenario: "),
        **{name: _titled(1, _catch) for name in ("TEST_CASE_METHOD", "TEST_CASE_PERSISTENT_FIXTURE")},
        "SCENARIO_METHOD": _titled(1, _catch, "Scenario: "),
        **{f"TEMPLATE_{kind}TEST_CASE{sig}": _titled(0, _catch, "", " - *")
            for kind in ("", "PRODUCT_", "LIST_") for sig in ("", "_SIG")},
        **{f"TEMPLATE_{kind}TEST_CASE_METHOD{sig}": _titled(1, _catch, "", " - *")
            for kind in ("", "PRODUCT_", "LIST_") for sig in ("", "_SIG")},
    },
    {f"{start}{name}": form for start in ("CHECK", "REQUIRE") for name, form in CATCH_FORMS.items()},
    "REQUIRE", "CHECK", " ",
)  # fmt: skip
DOCTEST = Framework(
    "doctest", re.compile(r"(?:^|/)doctest\.h(?:pp)?$"), "DOCTEST_",
    {
        "TEST_CASE": _titled(0, _doctest), "SCENARIO": _titled(0, _doctest, "  Scenario: "),
        **{name: _titled(1, _doctest) for name in ("TEST_CASE_FIXTURE", "TEST_CASE_CLASS")},
        **{name: _titled(0, _doctest, "", "<*") for name in ("TEST_CASE_TEMPLATE", "TEST_CASE_TEMPLATE_DEFINE")},
        **{name: _titled(0, _doctest, "  Scenario: ", "<*")
            for name in ("SCENARIO_TEMPLATE", "SCENARIO_TEMPLATE_DEFINE")},
    },
    {f"{start}{name}": form for start in ("CHECK", "REQUIRE") for name, form in DOCTEST_FORMS.items()},
    "REQUIRE", "CHECK", "-tc=",
)  # fmt: skip
FRAMEWORKS = (GTEST, CATCH, DOCTEST)


def includes_of(text: str) -> list[str]:
    """Returns what a file includes; comments include nothing."""
    return INCLUDE.findall(re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL))


def framework_of(texts: Iterable[str]) -> Framework | None:
    """Returns the framework whose headers a file or one of the headers of its tests include."""
    included = [path for text in texts for path in includes_of(text)]
    return next((one for one in FRAMEWORKS if any(one.include.search(path) for path in included)), None)


def runs_tests(text: str) -> bool:
    """Returns whether a file's main function is that of a framework's program."""
    return HARNESS.search(text) is not None


def blanked(text: str) -> str:
    """Returns a text of the same length without comments, literals and directives."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return DIRECTIVE.sub(blank, HIDDEN.sub(blank, text))


def cases_of(text: str, framework: Framework, headers: Sequence[str] = ()) -> SourceTests:
    """Returns the tests of a file.

    Args:
        text: of the file.
        framework: of it.
        headers: texts of those of the tests, which may define macros.
    """
    plain = blanked(text)
    own = {
        name
        for one in (text, *headers)
        for name, body in DEFINE.findall(one)
        if any(_macro(framework, word) for word in re.findall(r"\w+", body))
    }
    found, unread = list[SourceTest](), False
    for call in INVOKED.finditer(plain):
        closed = closing(plain, call.end(), "()")
        body = re.compile(r"\s*\{").match(plain, closed + 1) if closed is not None else None
        macro = _macro(framework, call[1])
        if closed is None or body is None or macro is None:
            unread |= call[1] in own or (body is not None and macro is None and _defines(plain, call))
            continue
        prefix, read = macro
        told = read([part.strip() for part in arguments_of(text, plain, call.end(), closed)])
        if told is None:
            unread = True
            continue
        end = closing(plain, body.end(), "{}")
        last = len(plain) if end is None else end
        uncertain = end is None or CONDITION.search(text, body.end(), end) is not None
        skipped = (
            "DISABLED_" in told[0] if framework is GTEST else LEFT_OUT.search(text, call.end(), closed) is not None
        )
        inside = _assertions(framework, plain[body.end() : last])
        found.append(SourceTest(*told, body.end(), None if uncertain else end, skipped, inside, prefix))
    return SourceTests(tuple(found), unread, _assertions(framework, plain))


def closing(plain: str, place: int, pair: str) -> int | None:
    """Returns the place of what closes a pair that was opened before a place."""
    depth = 1
    for found in re.compile("[" + re.escape(pair) + "]").finditer(plain, place):
        depth += 1 if found[0] == pair[0] else -1
        if not depth:
            return found.start()
    return None


def arguments_of(text: str, plain: str, start: int, end: int) -> list[str]:
    """Returns the arguments between two places, divided where no bracket is open."""
    parts, depth, begun = [], 0, start
    for place in range(start, end):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(plain[place], 0)
        if plain[place] == "," and not depth:
            parts.append(text[begun:place])
            begun = place + 1
    return [*parts, text[begun:end]]


def _macro(framework: Framework, word: str) -> tuple[str, Callable[[Sequence[str]], tuple[str, str] | None]] | None:
    for prefix in ("", framework.prefix):
        read = framework.macros.get(word.removeprefix(prefix))
        if read is not None and word.startswith(prefix):
            return prefix, read
    return None


def _defines(plain: str, call: re.Match[str]) -> bool:
    """Returns whether a macro with a body may define tests: it says so, and nothing but a line's start is before it."""
    line = plain[plain.rfind("\n", 0, call.start()) + 1 : call.start()]
    return not line.strip() and UNKNOWN.search(call[1]) is not None


def _assertions(framework: Framework, plain: str) -> tuple[str, ...]:
    words = dict.fromkeys(re.findall(r"\b[A-Z][A-Z_]+\b", plain))
    return tuple(word for word in words if word.removeprefix(framework.prefix) in framework.assertions)
