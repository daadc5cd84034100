"""Test files of GoogleTest, Catch2 and doctest, of which each test proves that it ran and succeeded.

No main function is needed or replaced, so several files in one program and main functions of libraries or in other
files work alike. Each file has a table of modes, one of which a variable of the process chooses: a test, which the
framework's own filter selects, and either a proof or a planted failure. In each test's body stand a guard at the
start and planted assertions at the end. The guard notes that the test ran, and whether an exception left it. The
planted assertions are of the kinds that the test uses, in its own context: nothing tells them from the test's. A
listener of the framework, which cannot be removed without its address, prints the proof once the framework says
that all tests that ran have succeeded, if the chosen test was among them and no other test of the file.

A planted twin has the filter, arguments and names of its test, and differs in values alone. It must fail, and the
listener must hear of each planted assertion: one that goes unnoticed ends the process with the twin's proof. Of the
assertions that leave a test only one, which is drawn, can be planted. A test that returns early, or whose braces
depend on conditional compilation, fails in the guard's destructor by a function below the file. Every test has its
twin, not a sample of them, as code under test may hide the failures of one test alone.

Data and guard stand above the first line of the file, where no macro of a header can change them. The listener is
below the last one, after no word that it says is a macro any more.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arcforge_rl.swe.languages.c.frameworks import DOCTEST, GTEST, Framework, SourceTests
from arcforge_rl.swe.languages.c.wrapping import WHOLE, Mode
from arcforge_rl.swe.languages.processes import opaque
from arcforge_rl.swe.languages.signed import WORDS

ABOVE = """#ifndef CATCH_CONFIG_EXTERNAL_INTERFACES
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#endif
namespace __cxxabiv1 {{
struct __cxa_eh_globals;
extern "C" __cxa_eh_globals *__cxa_get_globals() noexcept;
}}
extern "C" long write(int, const void *, unsigned long);
extern "C" char **environ;
struct {row} {{ const char *argument, *proof; int test, made, wanted; }};
static const {row} {rows}[] = {{{given}}};
static volatile int {failures}, {entered}, {strange}, {aborted};
static const {row} *{chosen}() {{
  static const {row} *found;
  static bool sought;
  for (char **one = environ; !sought && one && *one; one++) {{
    const char *name = "{variable}=", *text = *one;
    while (*name && *name == *text) name++, text++;
    for (unsigned row = 0; !*name && row < sizeof {rows} / sizeof *{rows}; row++) {{
      const char *a = text, *b = {rows}[row].argument;
      while (*a && *a == *b) a++, b++;
      if (*a == *b) found = {rows} + row;
    }}
  }}
  sought = true;
  return found;
}}
static int {made}() {{ volatile int value = {chosen}() ? {chosen}()->made : 0; return value; }}
static int {wanted}() {{ volatile int value = {chosen}() ? {chosen}()->wanted : 0; return value; }}
static void {prove}() {{
  unsigned long size = 0;
  while ({chosen}()->proof[size]) size++;
  if (write(1, {chosen}()->proof, size) != (long)size) __builtin__Exit(1);
}}
static void {finish}(bool passed, bool skipped) {{
  if (!{chosen}()) return;
  if (passed && {entered} && !{strange} && !{aborted}) {prove}();
  else if (!passed && skipped && {made}() == {wanted}()) __builtin__Exit({skip});
}}
static void {fail}();
struct {globals} {{ void *caught; unsigned uncaught; }};
struct {guard} {{
  int test, before, count;
  explicit {guard}(int number) : test(number), before(0), count(0) {{
    if (!{chosen}()) return;
    if ({chosen}()->test == number) {entered} = {entered} + 1;
    else if ({chosen}()->test) {strange} = {strange} + 1;
  }}
  bool planted(int added) {{
    if ({made}() == {wanted}() || {chosen}()->test != test || count) return false;
    before = {failures}, count = added;
    return true;
  }}
  ~{guard}() noexcept(false) {{
    if (((const {globals} *)(void *)__cxxabiv1::__cxa_get_globals())->uncaught) {aborted} = {aborted} + 1;
    else if (planted(1)) {fail}();
    if ({failures} - before < count) {prove}(), __builtin__Exit(0);
  }}
}};
#line 1
"""
LISTENERS = {
    "gtest": """
struct {listener} : ::testing::EmptyTestEventListener {{
  void OnTestPartResult(const ::testing::TestPartResult &part) {{
    if (part.failed()) {failures} = {failures} + 1;
  }}
  void OnTestProgramEnd(const ::testing::UnitTest &unit) {{
#ifdef GTEST_SKIP
    bool skipped = unit.skipped_test_count() > 0;
#else
    bool skipped = false;
#endif
    {finish}(unit.Passed() && !unit.failed_test_count() && unit.successful_test_count() > 0,
      unit.Passed() && skipped);
  }}
}};
static int {registered}() {{
  if ({chosen}()) ::testing::UnitTest::GetInstance()->listeners().Append(new {listener});
  return 0;
}}
static int {done} = {registered}();
""",
    "catch": """
template <class Count> static auto {skipped}(const Count &count, int) -> decltype(count.skipped > 0) {{
  return count.skipped > 0;
}}
template <class Count> static bool {skipped}(const Count &, long) {{ return false; }}
#ifdef TWOBLUECUBES_SINGLE_INCLUDE_CATCH_HPP_INCLUDED
#define {base} TestEventListenerBase
#define {answer} bool
#else
#define {base} EventListenerBase
#define {answer} void
#endif
struct {listener} : ::Catch::{base} {{
  using ::Catch::{base}::{base};
  {answer} assertionEnded(const ::Catch::AssertionStats &stats) {{
    if (!stats.assertionResult.isOk()) {failures} = {failures} + 1;
    return {answer}();
  }}
  void testRunEnded(const ::Catch::TestRunStats &stats) {{
    const ::Catch::Counts &count = stats.totals.testCases;
    bool none = !count.failed && !count.failedButOk && !stats.totals.assertions.failed;
    {finish}(none && count.passed, none && {skipped}(count, 0));
  }}
}};
CATCH_REGISTER_LISTENER({listener})
""",
    "doctest": """
struct {listener} : ::doctest::IReporter {{
  explicit {listener}(const ::doctest::ContextOptions &) {{}}
  void report_query(const ::doctest::QueryData &) {{}}
  void test_run_start() {{}}
  void test_run_end(const ::doctest::TestRunStats &stats) {{
    {finish}(!stats.numTestCasesFailed && !stats.numAssertsFailed && stats.numTestCasesPassingFilters, false);
  }}
  void test_case_start(const ::doctest::TestCaseData &) {{}}
  void test_case_reenter(const ::doctest::TestCaseData &) {{}}
  void test_case_end(const ::doctest::CurrentTestCaseStats &) {{}}
  void test_case_exception(const ::doctest::TestCaseException &) {{}}
  void subcase_start(const ::doctest::SubcaseSignature &) {{}}
  void subcase_end() {{}}
  void log_assert(const ::doctest::AssertData &data) {{
    if (data.m_failed) {failures} = {failures} + 1;
  }}
  void log_message(const ::doctest::MessageData &) {{}}
  void test_case_skipped(const ::doctest::TestCaseData &) {{}}
}};
DOCTEST_REGISTER_LISTENER("{listener}", 1, {listener});
""",
}
INCLUDED = {
    "catch": """
#ifndef TWOBLUECUBES_SINGLE_INCLUDE_CATCH_HPP_INCLUDED
#if __has_include(<catch2/reporters/catch_reporter_event_listener.hpp>)
#include <catch2/reporters/catch_reporter_event_listener.hpp>
#include <catch2/reporters/catch_reporter_registrars.hpp>
#endif
#endif
"""
}
"""Headers that the listener needs and that the tests may lack."""
NAMES = (
    "row", "rows", "failures", "entered", "strange", "aborted", "chosen", "variable", "made", "wanted", "prove",
    "finish", "fail", "guard", "globals", "local", "listener", "registered", "done", "skipped", "base", "answer",
)  # fmt: skip
SKIP = 77
"""Exit code of a test that was skipped, in automake's convention."""


@dataclass(frozen=True)
class Planted:
    """A test file whose tests prove themselves.

    Attributes:
        text: of the file.
        marker: that is in its executable.
        modes: of the program.
        skipped: tests that are not to be run.
    """

    text: str
    marker: str
    modes: tuple[Mode, ...]
    skipped: tuple[str, ...]


def plant(text: str, framework: Framework, cases: SourceTests, path: str) -> Planted:
    """Returns a test file with guards, planted assertions and a listener; it has no modes if it has no tests.

    Tests that cannot be read are run by a whole-program test, whose proof is that of a test below the file; its name
    is made of words.

    Args:
        text: of the file.
        framework: of its tests.
        cases: its tests.
        path: that error messages name.
    """
    drawn = dict(zip(NAMES, opaque(len(NAMES)), strict=True))
    shown = [case for case in cases.found if not case.skipped]
    filters: dict[str, str] = {case.name: case.filter for case in shown}
    numbers = {name: number for number, name in enumerate(filters, 1)}
    modes, rows = list[Mode](), list[str]()
    for test, number in ((WHOLE, 0), *numbers.items()):
        for planted in (False, True) if number or cases.unread else ():
            argument, proof, made = secrets.token_hex(8), secrets.token_hex(16), secrets.randbelow(1000)
            wanted = made + planted * (1 + secrets.randbelow(9))
            rows.append(f'{{"{argument}", "\\n{proof}\\n", {number}, {made}, {wanted}}}')
            arguments, env = _chosen(framework, filters[test] if number else "")
            modes.append(Mode(test, arguments, proof, planted, {**env, drawn["variable"]: argument}))
    if not modes:
        return Planted(text, "", (), tuple(case.name for case in cases.found))
    secrets.SystemRandom().shuffle(rows)
    body = text
    for case in sorted(shown, key=lambda case: case.start, reverse=True):
        if case.end is not None:
            kinds = case.assertions or cases.assertions
            body = f"{body[: case.end]} {_assertions(framework, kinds, case.prefix, drawn, True)} {body[case.end :]}"
        guard = f" {drawn['guard']} {drawn['local']}({numbers[case.name]});"
        body = body[: case.start] + guard + body[case.start :]
    prefix = framework.prefix if f"{framework.prefix}CONFIG_PREFIX_ALL" in text else ""
    below = f"\nstatic void {drawn['fail']}() {{ {_assertions(framework, cases.assertions, prefix, drawn, False)} }}\n"
    if cases.unread:
        below += _whole(framework, cases, prefix, drawn)
    listener = LISTENERS[framework.name]
    said = {
        word for line in listener.splitlines() if "#" not in line for word in re.findall(r"(?<!\{)\b[A-Za-z]\w*", line)
    }
    undone = "".join(f"#undef {word}\n" for word in sorted(said) if not word.endswith("_REGISTER_LISTENER"))
    below += INCLUDED.get(framework.name, "") + undone + listener.format(**drawn)
    above = ABOVE.format(**drawn, given=", ".join(rows), skip=SKIP).replace("#line 1\n", f'#line 1 "{path}"\n')
    skipped = tuple(case.name for case in cases.found if case.skipped and case.name not in filters)
    return Planted(above + body + below, rows[0].split('"')[1], tuple(modes), skipped)


def _chosen(framework: Framework, wanted: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns arguments and variables that select tests by the framework's filter; none select all."""
    if not wanted:
        return (), {}
    if not framework.flag:
        return (), {"GTEST_FILTER": wanted}
    return (f"{framework.flag}{wanted}".strip(),), {}


def _assertions(
    framework: Framework, kinds: Sequence[str], prefix: str, drawn: Mapping[str, str], guarded: bool
) -> str:
    """Returns assertions that fail, one of each kind; of those that leave the test, one that is drawn."""
    names = list(kinds) or [prefix + framework.default]
    fatal = [name for name in names if name.removeprefix(framework.prefix).startswith(framework.fatal)]
    names = [name for name in names if name not in fatal] + ([secrets.choice(fatal)] if fatal else [])
    values = {"m": f"{drawn['made']}()", "w": f"{drawn['wanted']}()"} | {
        name: f'"{secrets.token_hex(4)}{name}"' for name in "st"
    }
    calls = [f"{name}({framework.assertions[name.removeprefix(framework.prefix)].format(**values)});" for name in names]
    # GoogleTest's assertions of exceptions have labels, of which a function has one in each line
    said = " ".join(f"[&] {{ {call} }}();" if "THROW(" in call else call for call in calls)
    return f"if ({drawn['local']}.planted({len(names)})) {{ {said} }}" if guarded else said


def _whole(framework: Framework, cases: SourceTests, prefix: str, drawn: Mapping[str, str]) -> str:
    words = [word.capitalize() for word in secrets.SystemRandom().sample(WORDS, 6)]
    first, second = "".join(words[:3]), "".join(words[3:])
    if framework is GTEST:
        head = f"GTEST_TEST({first}, {second})"
    else:
        head = f'{prefix or ("DOCTEST_" if framework is DOCTEST else "")}TEST_CASE("{first} {second}")'
    guard = f"{drawn['guard']} {drawn['local']}(0);"
    return f"{head} {{ {guard} {_assertions(framework, cases.assertions, prefix, drawn, True)} }}\n"
