import pytest

HEADER = """#ifndef TOY_H
#define TOY_H
#ifdef __cplusplus
extern "C" {
#endif
int clamp(int value, int low, int high);
int digits(int number);
const char *name_of(int number);
#ifdef __cplusplus
}
#endif
#endif
"""
CODE = """#include "toy.h"

int clamp(int value, int low, int high) {
  if (value < low) {
    return low;
  }
  if (value > high) {
    return high;
  }
  return value;
}

int digits(int number) {
  int total = 0;
  while (number > 0) {
    total = total + number % 10;
    number = number / 10;
  }
  return total;
}

const char *name_of(int number) {
  return number == 1 ? "one" : "other";
}
"""
CLAMP = """#include <assert.h>
#include "toy.h"

static void test_low(void) { assert(clamp(1, 2, 8) == 2); }
static void test_high(void) { assert(clamp(9, 2, 8) == 8); }

int main(void) {
  test_low();
  test_high();
  assert(clamp(5, 2, 8) == 5);
}
"""
DIGITS = """#include <stdio.h>
#include <stdlib.h>
#include "toy.h"

int main(int argc, char *argv[]) {
  if (argc > 1) { fprintf(stderr, "%s: odd argument\\n", argv[1]); return 2; }
  if (digits(123) != 6) {
    fprintf(stderr, "digits(123) is %d, not 6\\n", digits(123));
    exit(1);
  }
  exit(0);
}
"""
NAMES = """#include <string.h>
#include "toy.h"

int main() { return strcmp(name_of(1), "one") != 0; }
"""
CMAKE = """cmake_minimum_required(VERSION 3.13)
project(toy C CXX)
enable_testing()
add_library(toy toy.c)
target_include_directories(toy PUBLIC .)
foreach(name clamp digits names)
  add_executable(test_${name} tests/test_${name}.c)
  target_link_libraries(test_${name} toy)
  add_test(NAME ${name} COMMAND test_${name})
endforeach()
"""
MAKE = """check: tests/test_clamp tests/test_digits tests/test_names
\ttests/test_clamp
\ttests/test_digits
\ttests/test_names
tests/%: tests/%.c toy.c
\t$(CC) -I. $^ -o $@
"""


@pytest.fixture
def c_repository(tmp_path):
    """A library with three test programs and no build system."""
    folder = tmp_path / "toy"
    (folder / "tests").mkdir(parents=True)
    tests = {"clamp": CLAMP, "digits": DIGITS, "names": NAMES}
    files = {"toy.h": HEADER, "toy.c": CODE, **{f"tests/test_{name}.c": text for name, text in tests.items()}}
    for path, text in files.items():
        (folder / path).write_text(text)
    return folder


@pytest.fixture(params=["plain", "make", "cmake"])
def c_system(request, c_repository):
    """The repository with each build system, and its name."""
    if request.param != "plain":
        name, text = {"make": ("Makefile", MAKE), "cmake": ("CMakeLists.txt", CMAKE)}[request.param]
        (c_repository / name).write_text(text)
    return request.param, c_repository
