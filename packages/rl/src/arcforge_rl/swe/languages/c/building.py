"""Builds of C and C++ repositories by the rules of their build system, and the test programs that come of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from arcforge_core.contracts.sandbox import ExecResult

FOLDER = "/tmp/build"
"""Of CMake's files, and of programs without a build system."""
OPTIONS = r"""cat CMakeLists.txt | tr '\n' ' ' | grep -oiE '\boption ?\( *"?\w*TEST(S|ING)?\b' | grep -oE '\w+$' | \
  grep -viE 'NO_|WITHOUT|DISABLE|SKIP|FUZZ|INSTALL' | sed 's/.*/-D&=ON/'"""
"""Prints the options of a repository that have its tests built."""
CMAKE = f"""cmake -S . -B {FOLDER} -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG= -DCMAKE_CXX_FLAGS_DEBUG= \\
  -DBUILD_TESTING=ON -DBUILD_SHARED_LIBS=OFF $({OPTIONS}) >&2 || exit
cmake --build {FOLDER} -j 2 -- -k >&2 || cmake --build {FOLDER} -- -k >&2
cd {FOLDER} && ctest --show-only=json-v1"""
"""A build of two jobs that fails is continued by one: targets of two names may write one file."""
CONFIGURE = """chmod +x configure; ./configure --disable-dependency-tracking --disable-shared >&2 || exit
make -k -j 2 >&2 || make -k >&2
make -k check TESTS= >&2"""
MAKE = """make -k -j 2 >&2 || make -k >&2
for target in check test tests; do make -k $target >&2; done"""
FIND = """find "$@" -type f -perm -u+x -size -200M -print0 | xargs -0 -r grep -aoHF -f /tmp/markers | sort -u"""
"""Prints ``PATH:MARKER`` for the executables with a marker of `wrap`."""
LIBRARIES = """find . -type f -name '*.so*' -printf '%h\\n' | sort -u"""


LIBRARY = {"gtest": "$(cd /usr/lib/*-linux-gnu && ls libgmock.a libgtest_main.a libgtest.a | sed 's/lib/-l/;s/.a$//')"}
"""Options that link a framework with a program without a build system."""


@dataclass(frozen=True)
class TestCall:
    """How a build system runs a program.

    Attributes:
        name: of the test.
        arguments: after the program.
        cwd: working directory; empty: that of the program.
        env: variables.
    """

    name: str = ""
    arguments: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


def system_of(names: Sequence[str]) -> str:
    """Returns the build system of a repository by the files at its top: the first of these that is there."""
    for name, system in (("CMakeLists.txt", "cmake"), ("configure", "configure"), ("Makefile", "make")):
        if name in names:
            return system
    return "plain"


def calls_of(listed: bytes) -> dict[str, list[TestCall]]:
    """Returns how ctest runs each program, from ``ctest --show-only=json-v1``; tests meant to fail are left out."""
    try:
        tests: list[Mapping[str, Any]] = json.loads(listed[listed.index(b"{") :])["tests"]
    except (ValueError, KeyError, TypeError):
        return {}
    found: dict[str, list[TestCall]] = {}
    for test in tests:
        command = test.get("command") or []
        given = {one["name"]: one["value"] for one in test.get("properties", [])}
        if command and not given.get("WILL_FAIL") and not given.get("DISABLED"):
            env = dict(text.split("=", 1) for text in given.get("ENVIRONMENT", []) if "=" in text)
            call = TestCall(test["name"], tuple(command[1:]), given.get("WORKING_DIRECTORY", ""), env)
            found.setdefault(command[0], []).append(call)
    return found


def framework_call(calls: Sequence[TestCall], framework: str) -> TestCall:
    """Returns how a program is run for one of its framework's tests, as ctest may list each of them.

    Arguments of the call that may select tests are left out; those of GoogleTest are known by their dash.
    """
    kept = [] if len(calls) > 1 or framework != "gtest" else calls[0].arguments
    return replace(calls[0], name="", arguments=tuple(text for text in kept if not text.startswith("-")))


def plain_script(code: Sequence[str], tests: Mapping[str, str], headers: Sequence[str], cpp: bool) -> str:
    """Returns a script that compiles code without ``main`` once, and links each test program with all of it.

    Args:
        code: sources.
        tests: source -> framework; empty: none.
        headers: folders of headers.
        cpp: whether the linker is C++'s.
    """
    include = " ".join(f"-I'{folder}'" for folder in headers)
    lines = [f"mkdir -p {FOLDER}"]
    for number, path in enumerate(code):
        lines.append(f"{_compiler(path)} -g -c {include} '{path}' -o {FOLDER}/{number}.o >&2")
    for number, (path, framework) in enumerate(tests.items()):
        target = f"{FOLDER}/test-{number}"
        lines.append(f"{_compiler(path)} -g -c {include} '{path}' -o {target}.to >&2 &&")
        linker, libraries = "g++" if cpp else "gcc", f"{LIBRARY.get(framework, '')} -lm -pthread"
        lines.append(f"  {linker} {target}.to {FOLDER}/*.o -o {target} {libraries} >&2")
    return "\n".join(lines)


def _compiler(path: str) -> str:
    return "gcc" if PurePosixPath(path).suffix == ".c" else "g++"


def programs_of(found: ExecResult) -> dict[str, str]:
    """Returns marker -> path of its executable, the shortest if there are several, from the output of `FIND`."""
    programs: dict[str, str] = {}
    for line in found.stdout.decode(errors="replace").splitlines():
        path, _, marker = line.rpartition(":")
        if path and (marker not in programs or len(path) < len(programs[marker])):
            programs[marker] = path
    return programs
