"""What is in the wheels."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from arcforge_core.plugins.wheels import known_wheels

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "attention", "optim", "rl", "serving", "hw")


def names(wheel):
    with zipfile.ZipFile(wheel) as file:
        return set(file.namelist())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_wheel_holds_its_sources_and_presets_and_nothing_else(package, wheels):
    root = f"arcforge_{package}"
    source = ROOT / "packages" / package / "src"
    expected = {
        file.relative_to(source).as_posix()
        for file in source.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    if package == "core":
        expected.add("arcforge_core/plugins/wheels.json")
    wheel = wheels[f"arcforge-{package}"]
    found = {n for n in names(wheel) if ".dist-info/" not in n and not n.startswith("arcforge_core/recipes/")}
    assert found == expected
    assert f"{root}/py.typed" in found
    assert wheel.name.endswith("-py3-none-any.whl")


def recipes_of_the_checkout():
    conf = ROOT / "conf"
    return {f"arcforge_core/recipes/{f.relative_to(conf).as_posix()}" for f in conf.rglob("*") if f.is_file()}


def test_the_core_wheel_carries_the_recipes(wheels):
    assert {n for n in names(wheels["arcforge-core"]) if "/recipes/" in n} == recipes_of_the_checkout()


def table_in(wheel):
    with zipfile.ZipFile(wheel) as file:
        return {(kind, name): by for kind, name, by in json.loads(file.read("arcforge_core/plugins/wheels.json"))}


def test_the_core_wheel_knows_which_wheel_brings_what(wheels):
    assert table_in(wheels["arcforge-core"]) == known_wheels()


def test_so_does_a_wheel_that_is_built_from_an_sdist(tmp_path):
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*command, str(ROOT / "packages" / "core")], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert {n for n in names(wheel) if "/recipes/" in n} == recipes_of_the_checkout()
    assert table_in(wheel) == known_wheels()
