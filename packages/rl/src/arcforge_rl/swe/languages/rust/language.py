"""Rust repositories, tested with cargo's integration tests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest
from arcforge_rl.swe.languages.processes import LONGEST_TEXT, Building, Built, Program, built_run
from arcforge_rl.swe.languages.rust.cheating import cheats
from arcforge_rl.swe.languages.rust.setup import declared, missed
from arcforge_rl.swe.languages.rust.wrapping import functions_of, wrap
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

GRAMMAR = Grammar(
    "tree_sitter_rust",
    functions=("function_item",),
    names=("identifier",),
    numbers=("integer_literal",),
    conditions={"if_expression": "false"},
)
HOME = "/tmp/cargo"
CONFIG = """[source.crates-io]
replace-with = "debian"
[source.debian]
directory = "/usr/share/cargo/registry"
"""
ENV = {"CARGO_HOME": HOME, "CARGO_NET_OFFLINE": "true", "CARGO_TARGET_DIR": "/tmp/target", "RUST_BACKTRACE": "0"}
NOISE = re.compile(r"^(running \d|test |thread |failures:|note: |error: test|---- |test result|T[0-9a-f]{16}$)")


class Rust(Language):
    """Each test of a file below ``tests`` is a process of the program that cargo makes of the file."""

    name = "rust"
    suffixes = (".rs",)
    settings = (
        "Cargo.toml", "Cargo.lock", "build.rs", "rust-toolchain", "rust-toolchain.toml", "config", "config.toml",
    )  # fmt: skip
    left_out = ("target",)
    not_code = re.compile(r"^(docs?|examples?|benches|bench\w*|scripts?|fuzz\w*)/|(^|/)main\.rs$")
    limits = SandboxLimits(
        cpu_seconds=300, wall_seconds=300, memory_bytes=3 << 30, processes=256, disk_bytes=1 << 30,
        output_bytes=32 << 20,
    )  # fmt: skip

    def is_test(self, path: str) -> bool:
        """Returns whether a path is in a folder of tests, or a module named as tests."""
        return PurePosixPath(path).name in ("test.rs", "tests.rs") or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether cargo makes a test program of a file."""
        return path.endswith(".rs") and PurePosixPath(path).parent.name == "tests"

    def is_setting(self, path: str) -> bool:
        """Returns whether a file belongs to cargo's description of the package."""
        name = PurePosixPath(path)
        return super().is_setting(path) and (not name.name.startswith("config") or name.parent.name == ".cargo")

    def tools(self) -> list[Recipe]:
        """Returns the layer of rustc and cargo."""
        return [recipe_of("rust")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of Debian's packages of crates."""
        return Recipe("swe-rust", "debian", tuple(sorted(packages)))

    def declared(self, tree: Path) -> list[str]:
        """Returns the Debian packages of declared crates."""
        return declared(tree)

    def missed(self, run: TestRun) -> list[str]:
        """Returns the Debian packages of crates that cargo misses."""
        return missed(run.texts)

    async def run(self, request: RunRequest) -> TestRun:
        """Builds the program of each file, then runs each test and its twin as a process."""
        return await built_run(request, self.limits, self._build)

    async def _build(self, building: Building) -> Built:
        request, made = building.request, Built()
        await request.sandbox.write(f"{HOME}/config.toml", CONFIG.encode())
        for path in request.paths:
            text = await request.text(path)
            if text is None:
                continue  # a file that the repository does not have reports no test
            made.skipped += [f"{path}::{one.name}" for one in functions_of(text) if one.ignored]
            programs, flaw = await self._program(building, path, text)
            made.programs += programs
            if flaw:
                made.lost[path] = flaw
        return made

    async def _program(self, building: Building, path: str, text: str) -> tuple[list[Program], str]:
        """Returns the tests of a file as processes, and why it cannot be built."""
        text, wrappers = wrap(text)
        if not wrappers:
            return [], ""
        await building.request.sandbox.write(f"{WORKDIR}/{path}", text.encode())
        cwd = str(PurePosixPath(WORKDIR, path).parent.parent)
        words = ("cargo", "test", "--no-run", "--offline", "--message-format=json", "--test", PurePosixPath(path).stem)
        done = await building.exec(words, cwd, ENV)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
        made = [row["executable"] for row in rows if row.get("executable") and "test" in row["target"]["kind"]]
        if not done.ok or not made:
            said = [str(row["message"].get("rendered")) for row in rows if row.get("reason") == "compiler-message"]
            told = [one for one in said if one.startswith("error")] or [done.stderr.decode(errors="replace")]
            return [], "\n".join(told)[-LONGEST_TEXT:] or f"cargo ended with {done.outcome.value}"
        env = {**ENV, "CARGO_MANIFEST_DIR": cwd}
        return [
            Program(
                f"{path}::{one.test}", (made[-1], "--exact", "--nocapture", "--test-threads=1", one.name), one.proof,
                one.planted, cwd, env,
            )
            for one in wrappers
            if building.request.canaries or not one.planted
        ], ""  # fmt: skip

    def observed(self, text: str) -> list[str]:
        """Returns messages without places in files."""
        lines = [line.strip() for line in text.splitlines()]
        told = [re.sub(r"^thread '\w+' panicked at '?(.*?)'?(, [\w./-]+\.rs:\d+:\d+)?$", r"\1", one) for one in lines]
        return [line for line in told if line and not NOISE.search(line) and ".rs:" not in line]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names that tests import from the repository's crate or call on things, and that the code lacks."""
        known = set(re.findall(r"\w+", " ".join(text or "" for text in code.values())))
        wanted: set[str] = set()
        for text in tests:
            plain = re.sub(r'"(\\.|[^"\\])*"|//[^\n]*', '""', text)
            for used in re.findall(r"^\s*(?:pub )?use (?!std\b|core\b|alloc\b)([^;]+);", plain, re.MULTILINE):
                wanted |= set(re.findall(r"(\w+)\s*(?=[,}]|$)", used))
            known |= set(
                re.findall(r"\b(?:fn|struct|enum|trait|mod|const|static|type|let|macro_rules!)\s+(\w+)", plain)
            )
        return sorted(wanted - known - {"self", "super", "crate"})

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree, outside of modules of tests."""
        return (bug for bug in syntax_bugs(GRAMMAR, text, seed) if not _in_tests(text, bug.line))

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields cargo's files, macros, and code that leaves, prints, or hooks panics."""
        return cheats(instance, tree)


def _in_tests(text: str, line: int) -> bool:
    """Returns whether a line stands after the file's module of tests has begun."""
    found = re.search(r"#\[cfg\(test\)\]", text)
    return found is not None and text.count("\n", 0, found.start()) < line - 1
