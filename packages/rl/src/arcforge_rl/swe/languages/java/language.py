"""Java repositories, tested with JUnit 4 or 5."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path, PurePosixPath

from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.swe.debian import build_depends
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest, first_unknown
from arcforge_rl.swe.languages.java.cheating import cheats
from arcforge_rl.swe.languages.java.planting import KINDS, package_of, planted_class
from arcforge_rl.swe.languages.processes import LONGEST_TEXT, Building, RunLate
from arcforge_rl.swe.languages.signed import plant_in_folders, signed_run, without_planted
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

GRAMMAR = Grammar(
    "tree_sitter_java",
    functions=("method_declaration", "constructor_declaration"),
    names=("identifier",),
    numbers=("decimal_integer_literal",),
    calls=("method_invocation",),
)
JARS = "/usr/share/java/*"
"""JUnit, and Debian's packages of libraries."""
MAIN, TESTS, INSIDE = "/tmp/main", "/tmp/tests", "/tmp/inside"
"""Folders of compiled classes."""
JAVAC = ("javac", "-J-Xmx512m", "-nowarn", "-proc:none", "-encoding", "UTF-8", "-Xmaxerrs", "1000")
JAVA = ("java", "-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
COMPLAINT = re.compile(r"^(?:\./)?([\w./$-]+\.java):\d+: error", re.MULTILINE)


class Java(Language):
    """javac compiles code and tests; a program of ours drives JUnit's launcher and signs its reports."""

    name = "java"
    suffixes = (".java",)
    settings = (
        "pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.properties",
        "build.xml", "module-info.java", "junit-platform.properties",
    )  # fmt: skip
    left_out = ("target", "build", "out")
    not_code = re.compile(r"^(docs?|examples?|samples?|bench\w*|demos?)/|(^|/)(package|module)-info\.java$")
    limits = SandboxLimits(
        cpu_seconds=300, wall_seconds=300, memory_bytes=4 << 30, processes=256, disk_bytes=512 << 20,
        output_bytes=32 << 20,
    )  # fmt: skip

    def is_test(self, path: str) -> bool:
        """Returns whether a path is in a folder of tests, or named as one."""
        return self.takes(path) or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether a file is named as a class of tests; those without tests report none."""
        return re.search(r"(^|/)(Test[A-Z][^/]*|[^/]*(Tests?|TestCase))\.java$", path) is not None

    def tools(self) -> list[Recipe]:
        """Returns the layer of the compiler and JUnit."""
        return [recipe_of("java")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of Debian's packages of libraries."""
        return Recipe("swe-java", "debian", tuple(sorted(packages)))

    def declared(self, tree: Path) -> list[str]:
        """Returns the libraries that ``debian/control`` builds with."""
        return sorted(name for name in build_depends(tree) if re.fullmatch(r"lib[\w.+-]+-java", name))

    async def run(self, request: RunRequest) -> TestRun:
        """Compiles code and tests, and runs each class; a class of failing tests is planted in each folder."""
        ends = time.monotonic() + request.seconds
        counts = await plant_in_folders(request, KINDS, "assertEquals", planted_class)
        try:
            lost = await self._build(Building(request, self.limits, ends))
        except RunLate as late:
            return TestRun(reason=str(late), late=True)
        classes = {
            path: name
            for path in (*request.paths, *counts)
            if path not in lost and (name := await _class_of(request, path))
        }
        folders = (INSIDE, JARS, TESTS, MAIN, f"{WORKDIR}/src/test/resources", f"{WORKDIR}/src/main/resources")
        shell = 'exec "$@" 2>/dev/null'
        argv = ("/bin/sh", "-c", shell, "java", *JAVA, "-cp", ":".join(folders), "Inside")
        left = replace(request, seconds=max(1.0, ends - time.monotonic()))
        run = await signed_run(left, self.limits, argv, {"seed": request.seed, "classes": classes})
        told = {path: text for path, text in lost.items() if path in request.paths}
        run = replace(run, texts={**run.texts, **told}, uncollected=(*run.uncollected, *told))
        # a planted class that is not there is no excuse where another class of its folder is
        folders_run = {PurePosixPath(path).parent for path in classes}
        due = {path: count for path, count in counts.items() if PurePosixPath(path).parent in folders_run}
        return without_planted(run, due) if run.whole else run

    async def _build(self, building: Building) -> dict[str, str]:
        """Compiles everything; returns the files that cannot be compiled, with the reason.

        Test files that the compiler complains of are left out, so that the others still say what the code does.
        """
        sandbox = building.request.sandbox
        program = resources.files("arcforge_rl.swe.languages.java").joinpath("Inside.java").read_text("utf-8")
        await sandbox.write("/tmp/Inside.java", program.encode())
        done = await building.exec((*JAVAC, "-d", INSIDE, "-cp", JARS, "/tmp/Inside.java"))
        if not done.ok:
            return dict.fromkeys(building.request.paths, done.stderr.decode(errors="replace")[-LONGEST_TEXT:])
        listed = await building.exec(("find", ".", "-name", "*.java", "-type", "f", "-printf", r"%P\n"))
        files = [path for path in listed.stdout.decode(errors="replace").splitlines() if not self.not_code.search(path)]
        tests = sorted(path for path in files if self.is_test(path))
        said, _ = await self._compile(building, sorted({*files} - {*tests}), MAIN, JARS)
        if said:
            return dict.fromkeys(tests, said)
        lost: dict[str, str] = {}
        while tests:
            said, named = await self._compile(building, tests, TESTS, f"{JARS}:{MAIN}")
            if not said:
                break
            bad = named & {*tests} or {*tests}
            lost |= dict.fromkeys(bad, said)
            tests = [path for path in tests if path not in bad]
        return lost

    async def _compile(self, building: Building, files: Sequence[str], to: str, path: str) -> tuple[str, set[str]]:
        """Returns the compiler's complaints and the names of the files it refuses; nothing for success."""
        if not files:
            return "", set()
        named = "".join(f'"{file}"\n' for file in files)
        await building.request.sandbox.write("/tmp/sources", named.encode())
        done = await building.exec((*JAVAC, "-d", to, "-cp", path, "@/tmp/sources"))
        if done.ok:
            return "", set()
        said = done.stderr.decode(errors="replace")
        return said[-LONGEST_TEXT:] or f"javac ended with {done.outcome.value}", set(COMPLAINT.findall(said))

    def observed(self, text: str) -> list[str]:
        """Returns messages without names of files, and without the classes of failures."""
        lines = [re.sub(r"^[\w.$]+(Error|Exception|Failure)(: |$)", "", line) for line in super().observed(text)]
        return [line for line in lines if line and ".java" not in line]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns members of the repository's classes that tests use and the code has nowhere."""
        said = " ".join(text or "" for text in code.values())
        known = set(re.findall(r"\w+", said))
        own = set(re.findall(r"\b(?:class|interface|enum|record)\s+(\w+)", said))
        wanted: set[str] = set()
        for text in tests:
            for base, chain in re.findall(r"(?<![\w.])([A-Z]\w*)((?:\.\w+)+)", text):
                if base in own:
                    wanted |= set(first_unknown(chain.strip(".").split("."), known))
        return sorted(wanted - {"class", "length"})

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        return syntax_bugs(GRAMMAR, text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields classes of JUnit of one's own, engines, and code that leaves, shouts or skips."""
        return cheats(instance, tree)


async def _class_of(request: RunRequest, path: str) -> str:
    """Returns the name of a file's class; empty for a file that is not there."""
    text = await request.text(path)
    if text is None:
        return ""
    package = package_of(text)
    return f"{package}.{PurePosixPath(path).stem}" if package else PurePosixPath(path).stem
