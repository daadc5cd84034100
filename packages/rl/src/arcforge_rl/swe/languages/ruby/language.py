"""Ruby repositories, tested with minitest, test-unit or RSpec."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path, PurePosixPath

from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest, first_unknown
from arcforge_rl.swe.languages.ruby.cheating import cheats
from arcforge_rl.swe.languages.ruby.planting import DEFAULT, KINDS, canary
from arcforge_rl.swe.languages.ruby.setup import HELPERS, declared, framework_of, missed
from arcforge_rl.swe.languages.signed import kinds_in, planted, signed_run, without_planted
from arcforge_rl.swe.languages.syntax import Grammar, syntax_bugs
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

GRAMMAR = Grammar(
    "tree_sitter_ruby",
    functions=("method", "singleton_method"),
    names=("identifier", "constant", "operator"),
    binary=("binary",),
    unary=("unary",),
    numbers=("integer",),
    conditions={"if": "false", "if_modifier": "false", "unless": "true", "unless_modifier": "true"},
    calls=("call",),
    removed=("operator_assignment",),
)


class Ruby(Language):
    """Test files run in Ruby; a program of ours drives their framework and signs what it reports."""

    name = "ruby"
    suffixes = (".rb",)
    settings = (".rspec", "Gemfile", "Gemfile.lock", "Rakefile", ".minitest.rb", "test-unit.yml", ".test-unit.yml")
    left_out = ("vendor", "coverage", "pkg")
    not_code = re.compile(r"(^|/)version\.rb$|^(docs?|examples?|samples?|bench\w*|bin|script|ext)/")

    def is_test(self, path: str) -> bool:
        """Returns whether a path is in a folder of tests, or named as one."""
        return self.takes(path) or "spec" in PurePosixPath(path).parts[:-1] or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether a file is named as a test."""
        inside = any(part in ("test", "tests", "spec") for part in PurePosixPath(path).parts[:-1])
        return inside and re.search(r"(^|/)(tc_|test_(?!helper)[^/]*|[^/]*_(test|spec))[^/]*\.rb$", path) is not None

    def tools(self) -> list[Recipe]:
        """Returns the layer of Ruby and its test frameworks."""
        return [recipe_of("ruby")]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of Debian's packages."""
        return Recipe("swe-ruby", "debian", tuple(sorted(packages)))

    def declared(self, tree: Path) -> list[str]:
        """Returns Debian's packages of the gems that the repository declares."""
        return declared(tree)

    def missed(self, run: TestRun) -> list[str]:
        """Returns the packages that failures miss."""
        return missed(run.texts)

    async def run(self, request: RunRequest) -> TestRun:
        """Runs files in the framework that each uses; a file of failing tests is planted for each framework."""
        helpers = [text for path in HELPERS if (text := await request.text(path)) is not None]
        files: dict[str, list[str]] = {}
        texts: dict[str, list[str]] = {}
        for path in request.paths:
            text = await request.text(path)
            if text is not None and (framework := framework_of(path, text, helpers)):
                files.setdefault(framework, []).append(path)
                texts.setdefault(framework, []).append(text)
        counts = dict[str, int]()
        for framework, paths in files.items() if request.canaries else ():
            words, tests = planted(kinds_in(texts[framework], KINDS[framework], DEFAULT[framework]))
            end = "spec" if framework == "rspec" else "test"
            path = str(PurePosixPath(paths[0]).parent / f"{'_'.join(words)}_{end}.rb")
            await request.sandbox.write(f"{WORKDIR}/{path}", canary(framework, words, tests).encode())
            paths.append(path)
            counts[path] = len(tests)
        program = resources.files("arcforge_rl.swe.languages.ruby").joinpath("inside.rb").read_text("utf-8")
        shell = 'exec 3>&1 1>/dev/null 2>/dev/null; exec ruby -e "$0"'
        argv = ("/bin/sh", "-c", shell, program)
        run = await signed_run(request, self.limits, argv, {"files": files, "seed": request.seed})
        return without_planted(run, counts) if run.whole else run

    def observed(self, text: str) -> list[str]:
        """Returns messages without places in files."""
        return [line for line in super().observed(text) if WORKDIR not in line]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names in modules and classes of the repository that tests use and the code has nowhere."""
        said = " ".join(text or "" for text in code.values())
        known = set(re.findall(r"\w+[?!]?", said))
        own = set(re.findall(r"^\s*(?:module|class)\s+(?:\w+::)*([A-Z]\w*)", said, re.MULTILINE))
        wanted: set[str] = set()
        for text in tests:
            for base, chain in re.findall(r"(?<![\w:])([A-Z]\w*)((?:(?:::|\.)[a-z_A-Z]\w*[?!]?)+)", text):
                if base in own:
                    wanted |= set(first_unknown(re.split(r"::|\.", chain)[1:], known))
        return sorted(wanted - OF_VALUES)

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of the syntax tree."""
        return syntax_bugs(GRAMMAR, text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields settings, frameworks of one's own, and code that forges, leaves or skips."""
        return cheats(instance, tree)


OF_VALUES = frozenset(("new", "name", "to_s", "inspect", "class", "send", "instance_method", "method"))
"""Methods of any class."""
