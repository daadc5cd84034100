"""How the packages are kept: short files, one meaning of a name, one of each machine, and no test helper in a wheel."""

import ast
import functools
import re
import statistics
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "packages"
NAMES = sorted(folder.name for folder in PACKAGES.iterdir() if (folder / "pyproject.toml").is_file())
SUITES = "core/src/arcforge_core/testing/"
"""What authors of plugins test against; it may ask for pytest."""


def sources(packages=PACKAGES):
    """Returns path below `packages` -> text of every Python file that a wheel holds."""
    found = {
        str(path.relative_to(packages)): path.read_text(encoding="utf-8") for path in packages.glob("*/src/**/*.py")
    }
    assert found
    return found


FILES = sources()


@functools.cache
def nodes(text):
    """Returns all nodes of a file's tree."""
    return list(ast.walk(ast.parse(text)))


def imported_modules(text):
    """Yields (line, module), of imports inside functions and under TYPE_CHECKING too."""
    for node in nodes(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield node.lineno, node.module


def foreign(name, files):
    """Returns the imports of siblings in a package: all import core only, and core none."""
    allowed = {f"arcforge_{name}", "arcforge_core"}
    return [
        f"{path}:{line} imports {module}"
        for path, text in files.items()
        if path.startswith(f"{name}/")
        for line, module in imported_modules(text)
        if module.startswith("arcforge_") and module.split(".")[0] not in allowed
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_package_imports_itself_and_core_only(name):
    assert foreign(name, FILES) == []


def test_files_are_short():
    lines = {path: len(text.splitlines()) for path, text in FILES.items()}
    assert {path: count for path, count in lines.items() if count > 500} == {}
    assert statistics.median(count for count in lines.values() if count) <= 110


def class_places(files):
    """Returns class name -> files that define one."""
    places = defaultdict(list)
    for path, text in files.items():
        for node in nodes(text):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path)
    return places


def test_a_class_name_is_used_twice_at_most():
    many = {name: len(paths) for name, paths in class_places(FILES).items() if len(paths) > 2}
    assert many == {}


def helpers_of_tests(files):
    """Returns what only our tests need: a test's library outside the suites, and files called testing.py."""
    found = [path for path in files if path.endswith("/testing.py")]
    for path, text in files.items():
        if not path.startswith(SUITES):
            found += [path for _, module in imported_modules(text) if module.split(".")[0] in ("pytest", "hypothesis")]
    return found


def unreferenced(files, *others):
    """Returns the modules that no other file of the wheels names, nor `others`.

    By import, or by a word of a string without blanks: components, jobs and problems are registered by such names.
    """
    named = set(re.findall(r"[\w.]+", " ".join(others)))
    words = defaultdict(set)
    for path, text in files.items():
        for node in nodes(text):
            if isinstance(node, ast.ImportFrom) and node.module:
                named |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
                named |= set(re.findall(r"[\w.]+", node.value))
                words[path.split("/")[0]] |= set(re.findall(r"\w+", node.value))
    found = []
    for path in files:
        module = path.split("/src/")[1].removesuffix(".py").replace("/", ".")
        last = module.split(".")[-1]
        if module not in named and last not in words[path.split("/")[0]] and last not in ("__init__", "__main__"):
            found.append(path)
    return found


def test_wheels_hold_no_test_helper():
    assert helpers_of_tests(FILES) == []
    metadata = [(PACKAGES / name / "pyproject.toml").read_text(encoding="utf-8") for name in NAMES]
    documented = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")]
    assert unreferenced(FILES, *metadata, *documented) == []


def places(pattern, files=FILES):
    """Returns the files in which a regular expression is found."""
    return {path for path, text in files.items() if re.search(pattern, text, re.MULTILINE)}


def page_writers(files):
    """Returns the files with a page of their own: a string, not a docstring, with the beginning of an HTML document."""
    found = set()
    for path, text in files.items():
        strings = (node.value for node in nodes(text) if isinstance(node, ast.Constant))
        if any(isinstance(value, str) and re.search(r"<!doctype|<html", value, re.IGNORECASE) for value in strings):
            found.add(path)
    return found


def test_there_is_one_of_each():
    assert places(r"^ *(async )?def roll_out\(") == {"core/src/arcforge_core/episodes/rollout.py"}
    assert places(r"\b(L|lightning)\.Trainer\(") == {"core/src/arcforge_core/train/trainer.py"}
    assert page_writers(FILES) == set()  # `report/page.html` is the one page


def test_the_checks_see_what_is_wrong():
    wrong = {
        "rl/src/arcforge_rl/testing.py": "class Thing:\n    class Thing: ...\n",
        "rl/src/arcforge_rl/used.py": "import hypothesis\nfrom arcforge_serving import server\nclass Thing: ...\n",
        "rl/src/arcforge_rl/page.py": "from arcforge_rl import used\nPAGE = '<!DOCTYPE html>'\nL.Trainer(1)\n",
        "rl/src/arcforge_rl/plugin.py": "'arcforge_rl.page:PAGE'\n",
        f"{SUITES}suite.py": "import pytest\n",
    }
    assert foreign("rl", wrong) == ["rl/src/arcforge_rl/used.py:2 imports arcforge_serving"]
    assert len(class_places(wrong)["Thing"]) == 3
    assert helpers_of_tests(wrong) == ["rl/src/arcforge_rl/testing.py", "rl/src/arcforge_rl/used.py"]
    assert unreferenced(wrong, "arcforge-rl = 'arcforge_rl.plugin'", "arcforge_core.testing.suite") == [
        "rl/src/arcforge_rl/testing.py"
    ]
    assert places(r"\bL\.Trainer\(", wrong) == page_writers(wrong) == {"rl/src/arcforge_rl/page.py"}
