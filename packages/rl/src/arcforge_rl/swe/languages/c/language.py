"""C and C++ repositories, tested with programs of their own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from arcforge_core.contracts.sandbox import ExecResult, SandboxError, SandboxFault, SandboxLimits
from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.swe.debian import build_depends
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest
from arcforge_rl.swe.languages.c.building import (
    CMAKE,
    CONFIGURE,
    FIND,
    FOLDER,
    LIBRARIES,
    MAKE,
    TestCall,
    calls_of,
    framework_call,
    plain_script,
    programs_of,
    system_of,
)  # fmt: skip
from arcforge_rl.swe.languages.c.cheating import cheats
from arcforge_rl.swe.languages.c.frameworks import cases_of, framework_of, includes_of, runs_tests
from arcforge_rl.swe.languages.c.planting import SKIP, plant
from arcforge_rl.swe.languages.c.wrapping import WHOLE, Mode, has_main, wrap
from arcforge_rl.swe.languages.processes import LONGEST_TEXT, Building, Built, Program, built_run
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

BUILD_FILES = (
    "CMakeLists.txt", "CMakePresets.json", "Makefile", "GNUmakefile", "makefile", "Makefile.am", "Makefile.in",
    "configure", "configure.ac", "configure.in", "config.h.in", "config.sub", "config.guess", "ltmain.sh", "install-sh",
    "missing", "depcomp", "test-driver", "compile", "aclocal.m4", "meson.build", "meson_options.txt",
)  # fmt: skip
FLAGS = {"CFLAGS": "-O0 -w", "CXXFLAGS": "-O0 -w"}
"""Compiled in half the time of ``-g -O1``; without warnings, which some repositories make errors and our main function
may earn."""
DEBIAN = re.compile(r"lib[\w.+-]+-dev|catch2?|doctest(?:-dev)?|googletest")
"""Packages of libraries, and of frameworks of tests."""
HEADERS = 40
"""Headers of tests that are read for one test file."""
NAMED = re.compile(
    r"(?i:(unit)?tests?|tests?[_-].*|.*[_-](unit)?tests?)|Tests?[A-Z]\w*|\w*[a-z0-9](Unit)?Tests?"
    r"|(?!attest|contest|fastest|greatest|latest|protest)[a-z0-9]+tests?"
)
"""Stems of test files: ``test_x``, ``x-test``, ``x_unittest``, ``TestX``, ``XTest``, ``xtest``."""
KEYWORDS = re.compile(r"\b(?:if|for|while|switch|return|sizeof|defined|int|void|assert|main)\b")


@dataclass
class Wrapped:
    """A test file with `wrap`'s main function, or with tests of a framework that `plant` has prepared.

    Attributes:
        path: of its source.
        modes: of the program.
        framework: its name; empty: none.
        skipped: tests that are not to be run.
    """

    path: str
    modes: Sequence[Mode]
    framework: str = ""
    skipped: Sequence[str] = ()


class C(Language):
    """Programs of tests are built by the repository's build system, and each is a process."""

    name = "c"
    suffixes: ClassVar[tuple[str, ...]] = (".c", ".h")
    sources: ClassVar[tuple[str, ...]] = (".c",)
    settings = BUILD_FILES
    grammar = Grammar(
        "tree_sitter_c", functions=("function_definition",), names=("identifier",), numbers=("number_literal",),
        conditions={"if_statement": "(0)"},
    )  # fmt: skip
    not_code = re.compile(r"^(docs?|examples?|bench\w*|scripts?|fuzz\w*|third_party|vendor)/")
    limits = SandboxLimits(
        cpu_seconds=300, wall_seconds=300, memory_bytes=3 << 30, processes=128, disk_bytes=512 << 20,
        output_bytes=32 << 20,
    )  # fmt: skip

    def is_test(self, path: str) -> bool:
        """Returns whether a path is in a folder of tests, or a source that is named as a test."""
        return self._named(path) or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether a file may have tests; those without a framework's tests and without ``main`` report none."""
        return path.endswith(self.sources) and self.is_test(path)

    def _named(self, path: str) -> bool:
        return path.endswith(self.suffixes) and NAMED.fullmatch(PurePosixPath(path).stem) is not None

    def is_setting(self, path: str) -> bool:
        """Returns whether a file belongs to the build system."""
        return super().is_setting(path) or path.endswith((".cmake", ".m4", ".mk", ".cmake.in"))

    def tools(self) -> list[Recipe]:
        """Returns the layer of gcc, g++, make and cmake; none if this system has them where sandboxes show it."""
        here = all(os.access(f"/usr/bin/{name}", os.X_OK) for name in recipe_of("c").packages)
        return [] if here else [recipe_of("c")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of Debian's packages of headers and libraries."""
        return Recipe("swe-c", "debian", tuple(sorted(packages)))

    def declared(self, tree: Path) -> list[str]:
        """Returns the build dependencies that ``debian/control`` names and that are libraries."""
        return sorted(name for name in build_depends(tree) if DEBIAN.fullmatch(name))

    async def run(self, request: RunRequest) -> TestRun:
        """Gives test programs another main function, or a framework's tests proofs, and runs each test as a process."""
        return await built_run(request, self.limits, self._build, _skipped)

    async def _build(self, building: Building) -> Built:
        listing = await building.exec(("/bin/sh", "-c", "ls -A && find . -type f -printf '%P\\n' 1>&2"))
        system = system_of(listing.stdout.decode(errors="replace").splitlines())
        files = sorted(listing.stderr.decode(errors="replace").splitlines())
        wrapped = await self._wrapped(building.request, files)
        script = {"cmake": CMAKE, "configure": CONFIGURE, "make": MAKE}.get(system) or self._plain(files, wrapped)
        built = await building.exec(("/bin/sh", "-c", script), env=FLAGS)
        found = await self._executables(building, list(wrapped))
        calls = calls_of(built.stdout)
        dirs = await building.exec(("/bin/sh", "-c", LIBRARIES))
        env = {"LD_LIBRARY_PATH": ":".join(f"{WORKDIR}/{name}" for name in dirs.stdout.decode().split())}
        made = Built()
        for marker, one in wrapped.items():
            if path := found.get(marker):
                given = calls.get(path, [TestCall()])
                for call in [framework_call(given, one.framework)] if one.framework else given:
                    made.programs += _programs(one, path, call, env, building.request.canaries)
                made.skipped += [f"{one.path}::{test}" for test in one.skipped]
            else:
                made.lost[one.path] = _flaw(built, one.path)
        return made

    async def _wrapped(self, request: RunRequest, files: Sequence[str]) -> dict[str, Wrapped]:
        """Rewrites the test programs among the request's files; returns them by their markers."""
        found: dict[str, Wrapped] = {}
        for path in request.paths:
            if (text := await _read(request, path)) is None:
                continue  # a file that the repository does not have reports no test
            cpp = not path.endswith(".c")
            headers = await self._headers(request, path, text, files) if cpp else []
            if framework := framework_of([text, *headers]):
                planted = plant(text, framework, cases_of(text, framework, headers), path)
                if planted.modes:
                    await request.sandbox.write(f"{WORKDIR}/{path}", planted.text.encode(errors="surrogateescape"))
                    found[planted.marker] = Wrapped(path, planted.modes, framework.name, planted.skipped)
                    continue
            if has_main(text) and not (framework and runs_tests(text)):
                text, marker, modes = wrap(text, cpp, path)
                await request.sandbox.write(f"{WORKDIR}/{path}", text.encode(errors="surrogateescape"))
                found[marker] = Wrapped(path, modes)
        return found

    async def _headers(self, request: RunRequest, path: str, text: str, files: Sequence[str]) -> list[str]:
        """Returns the texts of the tests' own headers that a test file includes, and those that they include.

        Headers of the code are not read, as they are the solver's.
        """
        own = [name for name in files if name.endswith(self.suffixes) and self.is_test(name)]
        seen, texts, ahead = {path}, list[str](), [(path, text)]
        while ahead and len(texts) < HEADERS:
            place, one = ahead.pop()
            for wanted in includes_of(one):
                near = os.path.normpath(PurePosixPath(place).parent / wanted)
                name = next((n for n in (near, *own) if n in own and (n == near or n.endswith(f"/{wanted}"))), None)
                if name and name not in seen and (more := await _read(request, name)) is not None:
                    seen.add(name)
                    texts.append(more)
                    ahead.append((name, more))
        return texts

    def _plain(self, files: Sequence[str], wrapped: Mapping[str, Wrapped]) -> str:
        code = [path for path in files if path.endswith((".c", *self.sources)) and self.is_code(path)]
        headers = sorted({str(PurePosixPath(path).parent) for path in files if path.endswith(self.suffixes)})
        kept = [path for path in code if not self.not_code.search(path)]
        tests = {one.path: one.framework for one in wrapped.values()}
        return plain_script(kept, tests, [".", *headers], self.name != "c")

    async def _executables(self, building: Building, markers: Sequence[str]) -> dict[str, str]:
        if not markers:
            return {}
        await building.request.sandbox.write("/tmp/markers", "".join(f"{marker}\n" for marker in markers).encode())
        shell = f"mkdir -p {FOLDER}; set -- {WORKDIR} {FOLDER}; {FIND}"
        return programs_of(await building.exec(("/bin/sh", "-c", shell)))

    def observed(self, text: str) -> list[str]:
        """Returns messages without places in files."""
        found = []
        for line in text.splitlines():
            told = re.sub(r"^(?:\S+: )?[\w./+-]+\.(?:c|cc|cpp|cxx|h|hpp):\d+:(?:\d+:)?\s*", "", line.strip())
            if told and not re.search(r"\.(c|cc|cpp|cxx|h|hpp)\b", told) and not told.startswith("Aborted"):
                found.append(told)
        return found

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names that tests call and that neither they nor the code have otherwise, if a file declares none."""
        known = set(re.findall(r"\w+", " ".join(text or "" for text in code.values())))
        plain = [re.sub(r'"(\\.|[^"\\\n])*"|/\*.*?\*/|//[^\n]*', '""', text, flags=re.DOTALL) for text in tests]
        prefixes = {word.split("_")[0] for word in known if "_" in word}
        called = {name for text in plain for name in re.findall(r"(?<![\w.>])([A-Za-z]\w*)\s*\(", text)}
        defined = {name for text in plain for name in re.findall(r"\b(\w+)\s*\([^;{}()]*\)\s*\{", text)}
        defined |= {name for text in plain for name in re.findall(r"#\s*define\s+(\w+)", text)}
        own = {name for name in called - known - defined if name.split("_")[0] in prefixes and "_" in name}
        return sorted(name for name in own if not KEYWORDS.fullmatch(name))

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        return syntax_bugs(self.grammar, text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields build files, macros, constructors, functions of the C library, and code that leaves or prints."""
        return cheats(instance, tree, self.name != "c")


class Cpp(C):
    """As C, with other files and another grammar."""

    name = "cpp"
    suffixes = (".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx")
    sources = (".cc", ".cpp", ".cxx")
    grammar = Grammar(
        "tree_sitter_cpp", functions=("function_definition",), names=("identifier", "field_identifier"),
        numbers=("number_literal",), conditions={"if_statement": "(false)"},
    )  # fmt: skip


def _programs(one: Wrapped, path: str, call: TestCall, env: Mapping[str, str], canaries: bool) -> list[Program]:
    """Returns the modes of a program as it is called."""
    parent = PurePosixPath(path).parent
    cwd = call.cwd or str(parent.parent if parent.name == ".libs" else parent)
    return [
        Program(
            f"{one.path}::{call.name or WHOLE}" if mode.test == WHOLE else f"{one.path}::{mode.test}",
            (path, *call.arguments, *mode.arguments), mode.proof, mode.planted, cwd,
            {**env, **call.env, **mode.env},
        )
        for mode in one.modes
        if canaries or not mode.planted
    ]  # fmt: skip


async def _read(request: RunRequest, path: str) -> str | None:
    """Returns the text of a file with all its bytes; None if there is none."""
    try:
        return (await request.sandbox.read(f"{WORKDIR}/{path}")).decode(errors="surrogateescape")
    except SandboxFault:
        raise
    except SandboxError:
        return None


def _skipped(done: ExecResult) -> bool:
    return done.code == SKIP


def _flaw(built: ExecResult, path: str) -> str:
    """Returns what a build said about a file; its last words if nothing."""
    lines = built.stderr.decode(errors="replace").splitlines()
    told = [line for line in lines if PurePosixPath(path).name in line or "rror:" in line or "undefined" in line]
    return "\n".join(told or lines)[-LONGEST_TEXT:] or f"no program was built ({built.outcome.value})"
