"""The scripts of examples/ do what they say; each has at most 80 lines."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
SCRIPTS = {
    "answer": lambda found: found.isdigit(),
    "environment": lambda found: found[0] == 1.0 and found[1] == 0.0 and 0.0 <= found[2] <= 1.0,
    "own_loop": lambda found: found[1] < found[0],
    "own_rl": lambda found: found[1] > found[0] + 0.2,
    "same_numbers": lambda found: found["none"] < 1e-4 < found["w8a8"],
    "serve": lambda found: found.isdigit(),
    "stream": lambda found: found[-1] == "abort" and set(found) <= {"length", "stop", "abort"},
    "structured": lambda found: set(found[0]) == {"name", "age"} and found[1] in ("yes", "no", "perhaps"),
    "tools": lambda found: found == "37658475",
    "train": lambda found: "def" in found,
}


def test_each_script_is_tried_and_short():
    assert {path.stem for path in FOLDER.glob("*.py")} == set(SCRIPTS)
    assert all(len(path.read_text().splitlines()) <= 80 for path in FOLDER.glob("*.py"))


@pytest.mark.slow(reason="ten programs, each with a model of its own")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_it_says(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
    spec.loader.exec_module(module)
    found = module.main()
    assert SCRIPTS[name](found), found
