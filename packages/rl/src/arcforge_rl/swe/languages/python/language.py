"""Python repositories, tested with pytest."""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path, PurePosixPath

from arcforge_rl.layers.recipes import PYTEST, TOOLS, Recipe, recipe_of
from arcforge_rl.swe.instance import Instance
from arcforge_rl.swe.languages.base import WORKDIR, Bug, Language, RunRequest, first_unknown
from arcforge_rl.swe.languages.python.bugs import bugs
from arcforge_rl.swe.languages.python.cheating import cheats
from arcforge_rl.swe.languages.python.planting import KINDS, canary
from arcforge_rl.swe.languages.python.setup import declared, missed
from arcforge_rl.swe.languages.signed import plant_in_folders, signed_run, without_planted
from arcforge_rl.swe.patches import Files
from arcforge_rl.swe.results import TestRun

ROOTS = (WORKDIR, f"{WORKDIR}/src", f"{WORKDIR}/lib")
"""Folders of the repository from which Python imports."""
PACKAGES = f"{TOOLS}/site"
"""Folder of the packages that a repository needs, in its layer."""
OF_VALUES = frozenset(
    name
    for kind in (str, bytes, float, int, list, dict, set, tuple, Exception, type, type(ast.parse))
    for name in dir(kind)
)
"""Attributes of Python's own values."""


class Python(Language):
    """pytest, imported before the repository, reports through a plugin that signs."""

    name = "python"
    suffixes = (".py",)
    settings = (
        "conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "pytest.toml",
        "sitecustomize.py", "usercustomize.py",
    )  # fmt: skip
    left_out = ("build", "dist")
    not_code = re.compile(
        r"(^|/)(setup|conftest|noxfile|__main__|_?version)\.py$|^(docs?|examples?|benchmarks?|scripts?)/"
    )

    def is_test(self, path: str) -> bool:
        """Returns whether a path is a file that pytest collects, or one in a folder of tests."""
        return self.takes(path) or super().is_test(path)

    def takes(self, path: str) -> bool:
        """Returns whether pytest collects a file."""
        return re.search(r"(^|/)(test_[^/]*|[^/]*_test)\.py$", path) is not None

    def is_code(self, path: str) -> bool:
        """Returns whether a path is Python that is no test, and not the installer's."""
        return super().is_code(path) and path != "setup.py"

    def is_setting(self, path: str) -> bool:
        """Returns whether a file decides what pytest does, or what Python imports when it starts."""
        return super().is_setting(path) or path.endswith(".pth")

    def tools(self) -> list[Recipe]:
        """Returns pytest's layer: as it is installed here, or fetched."""
        return [_pytest()]

    def site(self, packages: Sequence[str]) -> Recipe:
        """Returns a layer of wheels."""
        return Recipe("swe-site", "wheels", tuple(sorted(packages)), prefix=PACKAGES)

    def declared(self, tree: Path) -> list[str]:
        """Returns the requirements that a repository declares for itself and its tests."""
        return declared(tree)

    def missed(self, run: TestRun) -> list[str]:
        """Returns the distributions of the modules that failures miss."""
        return missed(run.texts)

    async def run(self, request: RunRequest) -> TestRun:
        """Runs pytest; a file of failing tests is planted in each folder, with the assertions of the tests there."""
        files = await plant_in_folders(
            request, KINDS, "assert", lambda words, tests, _: (f"test_{'_'.join(words)}.py", canary(words, tests))
        )
        given = {
            "paths": [*request.paths, *files], "first": [f"{TOOLS}/pytest"], "sys_path": [*ROOTS, PACKAGES],
            "seed": request.seed, "explained": request.explained,
        }  # fmt: skip
        program = resources.files("arcforge_rl.swe.languages.python").joinpath("inside.py").read_text(encoding="utf-8")
        run = await signed_run(request, self.limits, (request.python, "-I", "-c", program), given)
        return without_planted(run, files) if run.whole else run

    def observed(self, text: str) -> list[str]:
        """Returns the assertions that pytest shows."""
        return [told for line in text.splitlines() if line.startswith("E ") and (told := line[1:].strip())]

    def required_names(self, tests: Iterable[str], code: Files) -> list[str]:
        """Returns names that tests take from the repository's modules and that the code has nowhere."""
        known = set(re.findall(r"\w+", " ".join(text or "" for text in code.values())))
        own = {part for path in code for part in PurePosixPath(path).with_suffix("").parts} - sys.stdlib_module_names
        wanted: set[str] = set()
        for text in tests:
            try:
                nodes = list(ast.walk(ast.parse(text)))
            except SyntaxError:
                continue
            bound = set[str]()  # names of the test's own that are the repository's modules
            for node in nodes:
                if isinstance(node, ast.Import):
                    bound |= {n.asname or n.name.split(".")[0] for n in node.names if n.name.split(".")[0] in own}
                elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in own:
                    wanted |= {n.name for n in node.names}
            for node in nodes:
                base, *chain = _chain(node)
                if base in bound:
                    wanted |= set(first_unknown(chain, known | own))
        return sorted(name for name in wanted - known - {"*"} - OF_VALUES if not hasattr(builtins, name))

    def bugs(self, text: str, seed: str) -> Iterator[Bug]:
        """Yields changes of Python's syntax tree."""
        return bugs(text, seed)

    def cheats(self, instance: Instance, tree: Path) -> Iterator[Mapping[str, str | None]]:
        """Yields hooks and settings of pytest, start-up files, and code that forges, leaves or skips."""
        return cheats(instance, tree)


def _chain(node: ast.AST) -> list[str]:
    """Returns the names of ``a.b.c``; one empty name for anything else."""
    if isinstance(node, ast.Attribute) and (rest := _chain(node.value)) != [""]:
        return [*rest, node.attr]
    return [node.id] if isinstance(node, ast.Name) else [""]


@functools.cache
def _pytest() -> Recipe:
    try:
        metadata.distribution("pytest")
        return PYTEST
    except metadata.PackageNotFoundError:
        return recipe_of("pytest")
