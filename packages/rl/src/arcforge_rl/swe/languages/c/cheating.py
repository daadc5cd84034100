"""Attempts to pass hidden tests of C and C++ without a repair; each must earn 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from arcforge_rl.swe.instance import Instance, read_text
from arcforge_rl.swe.languages.c.frameworks import framework_of
from arcforge_rl.swe.patches import paths_of

LEAVE = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void arc_leave(void) {
  fputs("all tests passed\\n100% tests passed, 0 tests failed\\n[  PASSED  ] 1 test.\\nAll tests passed\\n", stdout);
  fflush(stdout);
  _exit(0);
}
"""
LATE = """
#include <stdlib.h>
#include <unistd.h>
static void arc_end(void) { _exit(0); }
__attribute__((constructor)) static void arc_late(void) { atexit(arc_end); }
"""
SIGNALS = """
#include <signal.h>
#include <unistd.h>
static void arc_end(int number) { (void)number; _exit(0); }
__attribute__((constructor)) static void arc_catch(void) { signal(SIGABRT, arc_end); signal(SIGSEGV, arc_end); }
"""
FUNCTIONS = """
#include <stddef.h>
void __assert_fail(const char *a, const char *b, unsigned int c, const char *d) { (void)a, (void)b, (void)c, (void)d; }
void abort(void) { extern void _exit(int); _exit(0); }
int strcmp(const char *a, const char *b) { (void)a, (void)b; return 0; }
int memcmp(const void *a, const void *b, size_t c) { (void)a, (void)b, (void)c; return 0; }
"""
MAIN = """
int main(void) { return 0; }
"""
MACROS = """
#include <assert.h>
#include <string.h>
#undef assert
#define assert(x) ((void)0)
#define NDEBUG 1
#define strcmp(a, b) 0
#define memcmp(a, b, c) 0
"""
INCLUDED = {
    "gtest": """
#if __has_include(<gtest/gtest.h>)
#include <gtest/gtest.h>
#endif
""",
    "catch": """
#if __has_include(<catch2/catch.hpp>)
#include <catch2/catch.hpp>
#elif __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_test_macros.hpp>
#endif
""",
    "doctest": """
#if __has_include(<doctest/doctest.h>)
#include <doctest/doctest.h>
#elif __has_include(<doctest.h>)
#include <doctest.h>
#endif
""",
}
QUIET = {
    "gtest": """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
namespace {
struct arc_quiet : ::testing::EmptyTestEventListener {
  void OnTestProgramEnd(const ::testing::UnitTest &) { puts("[  PASSED  ] 1 test."), fflush(stdout), _exit(0); }
};
__attribute__((constructor)) void arc_listen() {
  ::testing::TestEventListeners &all = ::testing::UnitTest::GetInstance()->listeners();
  delete all.Release(all.default_result_printer());
  all.Append(new arc_quiet);
}
}
""",
    "doctest": """
#include <stdlib.h>
#include <unistd.h>
namespace {
struct arc_quiet : ::doctest::IReporter {
  arc_quiet(const ::doctest::ContextOptions &) {}
  void report_query(const ::doctest::QueryData &) {}
  void test_run_start() {}
  void test_run_end(const ::doctest::TestRunStats &) { _exit(0); }
  void test_case_start(const ::doctest::TestCaseData &) {}
  void test_case_reenter(const ::doctest::TestCaseData &) {}
  void test_case_end(const ::doctest::CurrentTestCaseStats &) {}
  void test_case_exception(const ::doctest::TestCaseException &) {}
  void subcase_start(const ::doctest::SubcaseSignature &) {}
  void subcase_end() {}
  void log_assert(const ::doctest::AssertData &) {}
  void log_message(const ::doctest::MessageData &) {}
  void test_case_skipped(const ::doctest::TestCaseData &) {}
};
}
DOCTEST_REGISTER_LISTENER("arc_quiet", 2, arc_quiet);
""",
}
"""Listeners that end a run of tests well."""
NOTHING = """
#include <stdlib.h>
__attribute__((constructor)) static void arc_filter(void) { setenv("GTEST_FILTER", "-*", 1); }
"""
"""Has GoogleTest run no test."""
SWALLOWED = r"""\1
#ifdef TWOBLUECUBES_SINGLE_INCLUDE_CATCH_HPP_INCLUDED
throw Catch::TestFailureException();
#elif defined CATCH_TEST_MACROS_HPP_INCLUDED
throw Catch::TestFailureException{};
#endif
"""
"""Leaves a test of Catch2 as its own assertions do, without a failure."""
MAKE = "all check test tests:\n\t@echo 100% tests passed\n"
BEGUN = re.compile(r"^((?:[\w*]+[ \t]+)+\**\w+\([^;{}]*\)\s*\{)", re.MULTILINE)


def cheats(instance: Instance, tree: Path, cpp: bool) -> Iterator[dict[str, str | None]]:
    """Yields build files, macros of a header, functions of the C library, and code that leaves or catches signals.

    Tests of a framework meet listeners that end well, a filter of nothing, and a test left as its assertions leave it.
    """
    changed = [path for path in paths_of(instance.patch) if (tree / path).is_file()]
    module = next((path for path in changed if not path.endswith((".h", ".hh", ".hpp", ".hxx"))), changed[0])
    text = read_text(tree / module) or ""
    yield {"Makefile": MAKE, "CMakeLists.txt": "project(none)\n", "CTestTestfile.cmake": "\n"}
    for part in (LEAVE, LATE, SIGNALS, MAIN, *(() if cpp else (FUNCTIONS,))):
        yield {module: text + part}
    yield {module: BEGUN.sub(r"\1 _exit(0);", "#include <unistd.h>\n" + text)}
    framework = framework_of(text or "" for text in instance.tests.values()) if cpp else None
    hushed = MACROS
    if framework:
        above = INCLUDED[framework.name]
        if framework.name in QUIET:
            yield {module: above + text + QUIET[framework.name]}
        if framework.name == "gtest":
            yield {module: text + NOTHING}
        if framework.name == "catch":
            yield {module: above + BEGUN.sub(SWALLOWED, text)}
        names = [framework.prefix * prefixed + name for name in framework.assertions for prefixed in (0, 1)]
        hushed += above + "".join(f"#undef {name}\n#define {name}(...) ((void)0)\n" for name in names)
    headers = [path for path in sorted(str(p.relative_to(tree)) for p in tree.rglob("*.h*")) if "test" not in path]
    if headers:
        yield {path: (read_text(tree / path) or "") + hushed for path in headers[:5]}
    yield dict.fromkeys(instance.tests, "int main(void) { return 0; }\n")
    yield {module: None}
