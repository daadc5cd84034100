"""PHP repositories, tested with PHPUnit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath

from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest
from arcforge_rl.swe.languages.php.cheating import cheats
from arcforge_rl.swe.languages.php.planting import KINDS, canary, titled
from arcforge_rl.swe.languages.php.setup import SETTINGS, bootstraps, declared, missed
from arcforge_rl.swe.languages.signed import plant_in_folders, signed_run, without_planted
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

GRAMMAR = Grammar(
    "tree_sitter_php",
    "language_php",
    functions=("function_definition", "method_declaration"),
    names=("name",),
    unary=("unary_op_expression",),
    numbers=("integer",),
    calls=("function_call_expression", "member_call_expression", "scoped_call_expression"),
    truth={},
)


class Php(Language):
    """PHPUnit runs test files in one process; a program of ours drives it and signs its reports."""

    name = "php"
    suffixes = (".php",)
    settings = (*SETTINGS, "composer.json", "composer.lock", ".htaccess", "php.ini", ".user.ini")
    left_out = ("vendor",)
    not_code = re.compile(r"^(docs?|examples?|samples?|bench\w*|bin)/")

    def is_test(self, path: str) -> bool:
        """Returns whether a path is in a folder of tests, or named as one."""
        inside = any(part.lower() in ("test", "tests") for part in PurePosixPath(path).parts[:-1])
        return inside or self.takes(path)

    def takes(self, path: str) -> bool:
        """Returns whether a file is named as PHPUnit's."""
        return path.endswith("Test.php") and not re.search(r"(^|/)(_files?|[Ff]ixtures?)/", path)

    def tools(self) -> list[Recipe]:
        """Returns the layer of PHP and PHPUnit."""
        return [recipe_of("php")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of Debian's packages."""
        return Recipe("swe-php", "debian", tuple(sorted(packages)))

    def declared(self, tree: Path) -> list[str]:
        """Returns Debian's packages that the repository's packaging declares."""
        return declared(tree)

    def missed(self, run: TestRun) -> list[str]:
        """Returns the packages that failures miss."""
        return missed(run.texts)

    async def run(self, request: RunRequest) -> TestRun:
        """Runs PHPUnit over files; a file of failing tests is planted in each folder."""
        settings = {name: text for name in SETTINGS if (text := await request.text(name)) is not None}
        counts = await plant_in_folders(
            request, KINDS, "assertSame", lambda words, tests, _: (f"{titled(words)}Test.php", canary(words, tests))
        )
        await request.sandbox.write(f"{WORKDIR}/vendor/autoload.php", b"<?php return null;\n")
        program = resources.files("arcforge_rl.swe.languages.php").joinpath("inside.php").read_text("utf-8")
        shell = 'exec 3>&1 1>/dev/null 2>/dev/null; printf %s "$0" > /tmp/run.php; exec php /tmp/run.php'
        given = {"files": [*request.paths, *counts], "seed": request.seed, "bootstrap": bootstraps(settings)}
        run = await signed_run(request, self.limits, ("/bin/sh", "-c", shell, program), given)
        return without_planted(run, counts) if run.whole else run

    def observed(self, text: str) -> list[str]:
        """Returns messages without places in files."""
        return [line for line in super().observed(text) if WORKDIR not in line]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns classes, methods and constants that tests use and neither tests nor code define."""
        tests = list(tests)
        said = " ".join(text or "" for text in code.values())
        known = set(re.findall(r"\w+", said)) | set(re.findall(r"\b(?:function|class|const)\s+(\w+)", " ".join(tests)))
        own = set(re.findall(r"\b(?:class|interface|trait|enum)\s+(\w+)", said))
        used = [part for text in tests for part in re.findall(r"(?<![\w\\])(\w+)::(\w+)", text) if part[0] in own]
        return sorted({name for _, name in used} - known - {"class"})

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        return syntax_bugs(GRAMMAR, text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields settings, frameworks of one's own, and code that forges, leaves or skips."""
        return cheats(instance, tree)
