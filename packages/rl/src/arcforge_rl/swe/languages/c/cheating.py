"""Attempts to pass hidden tests of C and C++ without a repair; each must earn 0."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from arcforge_rl.swe.instance import Instance, read_text
from arcforge_rl.swe.patches import paths_of

LEAVE = """
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void arc_leave(void) {
  fputs("all tests passed\\n100% tests passed, 0 tests failed\\n", stdout);
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
MAKE = "all check test tests:\n\t@echo 100% tests passed\n"
BEGUN = re.compile(r"^((?:[\w*]+[ \t]+)+\**\w+\([^;{}]*\)\s*\{)", re.MULTILINE)


def cheats(instance: Instance, tree: Path, cpp: bool) -> Iterator[dict[str, str | None]]:
    """Yields build files, macros of a header, functions of the C library, and code that leaves or catches signals."""
    changed = [path for path in paths_of(instance.patch) if (tree / path).is_file()]
    module = next((path for path in changed if not path.endswith((".h", ".hh", ".hpp", ".hxx"))), changed[0])
    text = read_text(tree / module) or ""
    yield {"Makefile": MAKE, "CMakeLists.txt": "project(none)\n", "CTestTestfile.cmake": "\n"}
    for part in (LEAVE, LATE, SIGNALS, MAIN, *(() if cpp else (FUNCTIONS,))):
        yield {module: text + part}
    yield {module: BEGUN.sub(r"\1 _exit(0);", "#include <unistd.h>\n" + text)}
    headers = [path for path in sorted(str(p.relative_to(tree)) for p in tree.rglob("*.h*")) if "test" not in path]
    if headers:
        yield {path: (read_text(tree / path) or "") + MACROS for path in headers[:5]}
    yield dict.fromkeys(instance.tests, "int main(void) { return 0; }\n")
    yield {module: None}
