"""One version for the six packages, which pin each other exactly."""

import importlib
import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VERSION = (ROOT / "VERSION").read_text().strip()
PROJECTS = {
    file.parent.name: tomllib.loads(file.read_text())["project"]
    for file in sorted((ROOT / "packages").glob("*/pyproject.toml"))
}


def requirements(project):
    extras = project.get("optional-dependencies", {}).values()
    return [*project.get("dependencies", []), *(line for extra in extras for line in extra)]


def test_the_six_packages_are_there():
    assert set(PROJECTS) == {"core", "attention", "optim", "rl", "serving", "hw"}


@pytest.mark.parametrize("name", PROJECTS)
def test_version_and_name(name):
    assert PROJECTS[name]["name"] == f"arcforge-{name}"
    assert PROJECTS[name]["version"] == VERSION
    assert metadata.version(f"arcforge-{name}") == VERSION
    assert importlib.import_module(f"arcforge_{name}").__version__ == VERSION


@pytest.mark.parametrize("name", PROJECTS)
def test_siblings_are_pinned_and_only_core_is_one(name):
    siblings = [line for line in requirements(PROJECTS[name]) if line.startswith("arcforge-")]
    own_extras = [line for line in siblings if line.startswith(f"arcforge-{name}[")]
    assert [line for line in siblings if line not in own_extras] == (
        [] if name == "core" else [f"arcforge-core=={VERSION}"]
    )


@pytest.mark.parametrize("name", PROJECTS)
def test_the_package_is_typed_and_has_a_readme(name):
    folder = ROOT / "packages" / name
    assert (folder / "src" / f"arcforge_{name}" / "py.typed").is_file()
    assert (folder / PROJECTS[name]["readme"]).read_text().strip()


def test_constraints_pin_what_the_packages_accept():
    pins = dict(re.findall(r"^([a-z]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    torch = next(line for line in PROJECTS["core"]["dependencies"] if line.startswith("torch"))
    low, high = re.fullmatch(r"torch>=([\d.]+),<([\d.]+)", torch).groups()
    as_numbers = lambda text: [int(part) for part in text.split(".")]  # noqa: E731
    assert as_numbers(low) <= as_numbers(pins["torch"]) < as_numbers(high)


def test_no_package_asks_for_torch_to_build():
    for file in (ROOT / "packages").glob("*/pyproject.toml"):
        assert tomllib.loads(file.read_text())["build-system"]["requires"] == ["hatchling>=1.25"]
