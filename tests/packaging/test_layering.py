"""Core imports no sibling; the siblings import core only."""

import ast
from pathlib import Path

import pytest

PACKAGES = Path(__file__).parents[2] / "packages"
NAMES = sorted(folder.name for folder in PACKAGES.iterdir() if (folder / "pyproject.toml").is_file())


def imported_modules(file):
    """Yields (line, module), of imports inside functions and under TYPE_CHECKING too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.lineno, node.module


@pytest.mark.parametrize("name", NAMES)
def test_a_package_imports_itself_and_core_only(name):
    allowed = {f"arcforge_{name}", "arcforge_core"}
    files = sorted((PACKAGES / name / "src").rglob("*.py"))
    assert files
    for file in files:
        for line, module in imported_modules(file):
            package = module.split(".")[0]
            assert not package.startswith("arcforge_") or package in allowed, f"{file}:{line} imports {module}"


@pytest.mark.parametrize("name", NAMES)
def test_files_stay_short(name):
    for file in (PACKAGES / name / "src").rglob("*.py"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 600, file
