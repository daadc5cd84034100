"""Go repositories, tested with the testing package."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from arcforge_core.contracts.sandbox import ExecResult, SandboxLimits
from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import Bug, Language, RunRequest, files_of
from arcforge_rl.swe.languages.go.cheating import cheats
from arcforge_rl.swe.languages.go.setup import CONTROL, MODULE, declared, missed
from arcforge_rl.swe.languages.go.wrapping import functions_of, package_name, wrap
from arcforge_rl.swe.languages.processes import LONGEST_TEXT, Building, Built, Program, built_run, opaque
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

GRAMMAR = Grammar(
    "tree_sitter_go",
    functions=("function_declaration", "method_declaration"),
    numbers=("int_literal",),
    conditions={"if_statement": "false"},
)
PATHS = "/tmp/go:/usr/share/gocode"
ENV = {"GO111MODULE": "off", "GOPATH": PATHS, "GOFLAGS": "", "GOPROXY": "off", "GOCACHE": "/tmp/go-build"}
COPY = 'mkdir -p "$0" && cp -a . "$0"'
BUILT_IN = ("append", "cap", "close", "copy", "delete", "len", "make", "new", "panic", "print", "println", "recover")
COMPLAINT = re.compile(r"^(?:\./)?([\w.-]+_test\.go):\d+", re.MULTILINE)
NOISE = re.compile(r"^(===|---|PASS$|FAIL|ok\s|exit status|goroutine |\[recovered\]|testing\.|created by|/)")


class Go(Language):
    """Each test is a process of its package's test binary; GOPATH holds Debian's packages."""

    name = "go"
    suffixes = (".go",)
    settings = ("go.mod", "go.sum", "go.work")
    not_code = re.compile(r"^(docs?|examples?|benchmarks?|scripts?|cmd)/|(^|/)(doc|version)\.go$|\.pb\.go$")
    limits = SandboxLimits(
        cpu_seconds=300, wall_seconds=300, memory_bytes=3 << 30, processes=256, disk_bytes=1 << 30,
        output_bytes=32 << 20,
    )  # fmt: skip

    def is_test(self, path: str) -> bool:
        """Returns whether a path is a file of tests, or in a folder of data."""
        return self.takes(path) or "testdata" in PurePosixPath(path).parts[:-1] or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether a file has tests."""
        return path.endswith("_test.go") and "testdata" not in PurePosixPath(path).parts

    def is_setting(self, path: str) -> bool:
        """Returns whether a file belongs to the module's description, or to packages that replace others."""
        return super().is_setting(path) or "vendor" in PurePosixPath(path).parts[:-1]

    def tools(self) -> list[Recipe]:
        """Returns Go's layer."""
        return [recipe_of("go")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of Debian's packages of Go sources."""
        return Recipe("swe-go", "debian", tuple(sorted(packages)))

    def declared(self, tree: Path) -> list[str]:
        """Returns the Debian packages of imported modules."""
        return declared(tree, [path for path in files_of(tree) if path.endswith(".go")])

    def missed(self, run: TestRun) -> list[str]:
        """Returns the Debian packages whose modules a build misses."""
        return missed(run.texts)

    async def run(self, request: RunRequest) -> TestRun:
        """Builds a test binary for each package, then runs each test and its twin as a process."""
        return await built_run(request, self.limits, self._build, _skipped)

    async def _build(self, building: Building) -> Built:
        paths = building.request.paths
        root = f"/tmp/go/src/{await _import_path(building.request)}"
        await building.exec(("/bin/sh", "-c", COPY, root))
        made = Built()
        for folder in sorted({str(PurePosixPath(path).parent) for path in paths}):
            files = [path for path in paths if str(PurePosixPath(path).parent) == folder]
            programs, flaws = await self._package(building, root, folder, files)
            made.programs += programs
            made.lost |= flaws
        return made

    async def _package(
        self, building: Building, root: str, folder: str, files: Sequence[str]
    ) -> tuple[list[Program], dict[str, str]]:
        """Returns the tests of a package as processes, and the files that cannot be built, with the reason.

        Files that the compiler complains of are left out, so that the others still say what the code does.
        """
        cwd = str(PurePosixPath(root, folder))
        listed = await building.exec(("go", "list", "-json", "-e"), cwd, ENV)
        try:
            package = json.loads(listed.stdout)
        except ValueError:
            said = listed.stderr.decode(errors="replace")[-LONGEST_TEXT:]
            return [], dict.fromkeys(files, said or "the package cannot be listed")
        texts: dict[str, str] = {}
        for name in [*package.get("TestGoFiles", []), *package.get("XTestGoFiles", [])]:
            if (path := str(PurePosixPath(folder, name))) in files:
                texts[path] = (await building.request.sandbox.read(f"{cwd}/{name}")).decode(errors="replace")
        lost: dict[str, str] = {}
        while texts:
            programs, written, argv = await self._wrapped(building.request, cwd, texts)
            done = await building.exec(argv, cwd, ENV)
            if done.ok:
                return programs, lost
            said = (done.stderr + done.stdout).decode(errors="replace").strip()[-LONGEST_TEXT:]
            named = {str(PurePosixPath(folder, name)) for name in COMPLAINT.findall(said)} & texts.keys()
            for path in named or set(texts):
                lost[path] = said or f"go test -c ended with {done.outcome.value}"
                del texts[path]
            gone = [*written, *(PurePosixPath(path).name for path in named)]
            await building.exec(("rm", "-f", "--", *gone), cwd)
        return [], lost

    async def _wrapped(
        self, request: RunRequest, cwd: str, texts: Mapping[str, str]
    ) -> tuple[list[Program], list[str], tuple[str, ...]]:
        """Writes wrappers of the tests of files; returns processes, the wrappers' files and the command that builds."""
        found: dict[str, dict[str, str]] = {}
        for path, text in texts.items():
            if tests := functions_of(text):
                found.setdefault(package_name(text), {}).update(dict.fromkeys(tests, path))
        [binary, *names] = opaque(1 + len(found))
        programs, written = list[Program](), list[str]()
        for (clause, own), name in zip(found.items(), names, strict=True):
            text, wrappers = wrap(clause, list(own))
            written.append(f"{name.lower()}_test.go")
            await request.sandbox.write(f"{cwd}/{written[-1]}", text.encode())
            for one in wrappers:
                argv = (f"/tmp/{binary}", "-test.v", "-test.paniconexit0", f"-test.run=^Test{one.name}$")
                if request.canaries or not one.planted:
                    programs.append(Program(f"{own[one.test]}::{one.test}", argv, one.proof, one.planted, cwd, ENV))
        return programs, written, ("go", "test", "-c", "-vet=off", "-gcflags=-e", "-o", f"/tmp/{binary}", ".")

    def observed(self, text: str) -> list[str]:
        """Returns messages without places in files."""
        lines = [re.sub(r"^[\w./-]+\.go:\d+(:\d+)?:\s*", "", line.strip()) for line in text.splitlines()]
        return [line for line in lines if line and not NOISE.search(line) and ".go:" not in line]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names that tests call or take from the repository's package and that the code has nowhere."""
        known = set(re.findall(r"\w+", " ".join(text or "" for text in code.values())))
        packages = {package_name(text) for text in code.values() if text} - {""}
        wanted: set[str] = set()
        for text in tests:
            plain = re.sub(r'"(\\.|[^"\\\n])*"|`[^`]*`|//[^\n]*', '""', text)
            known |= set(re.findall(r"\bfunc (?:\([^)]*\) )?(\w+)", plain))
            known |= set(re.findall(r"\b(\w+)(?:, \w+)*\s*:=", plain))
            wanted |= {name for owner, name in re.findall(r"\b(\w+)\.([A-Z]\w*)", plain) if owner in packages}
            if package_name(text) in packages:
                wanted |= set(re.findall(r"(?<![\w.])([A-Za-z]\w*)\(", plain)) - {"func", "if", "for", "switch"}
        return sorted(wanted - known - set(BUILT_IN) - set(TYPES))

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        return syntax_bugs(GRAMMAR, text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields packages and tests of one's own, and code that forges, leaves, recovers or skips."""
        return cheats(instance, tree)


TYPES = (
    "bool", "byte", "complex64", "complex128", "error", "float32", "float64", "int", "int8", "int16", "int32", "int64",
    "rune", "string", "uint", "uint8", "uint16", "uint32", "uint64", "uintptr", "import", "var", "const", "return",
    "any", "defer", "go", "range", "interface", "struct", "map", "chan", "select", "case", "type",
)  # fmt: skip


async def _import_path(request: RunRequest) -> str:
    """Returns the import path that the repository in a sandbox declares; a made-up one if none."""
    for name, pattern in (("go.mod", MODULE), ("debian/control", CONTROL)):
        if found := pattern.search(await request.text(name) or ""):
            return found[1]
    return "local/testbed"


def _skipped(done: ExecResult) -> bool:
    return done.ok and b"--- SKIP: " in done.stdout
