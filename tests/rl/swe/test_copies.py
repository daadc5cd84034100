"""Repositories with much of the same code under other names are on one side of the split, whatever their names."""

import json

import pytest

from arcforge_core.data.split import is_heldout_task
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.environments import SweConfig
from arcforge_rl.swe.copies import near_copies
from arcforge_rl.swe.environment import Swe
from arcforge_rl.swe.instance import FILE, Instance, read_instances
from arcforge_rl.swe.patches import diff
from support.trees import write_files

PATCH = diff({"a.py": "a"}, {"a.py": "b"})


def code(*numbers):
    """Returns files of code, equal for equal numbers, and some that every repository has."""
    files = {f"pkg/m{number}.py": f"def function_{number}():\n    return {number}\n" * 5 for number in numbers}
    return {**files, "pkg/__init__.py": "", "tests/test_a.py": "def test_a():\n    pass\n" * 9, "LICENSE": "MIT\n" * 99}


@pytest.fixture
def folder(tmp_path):
    """An environment: `b` has 4 of 10 files of `a`'s two states, `c` one of 7, and common ones that are no code."""
    trees = {"a-1": code(*range(6)), "a-2": code(*range(4, 12)), "b-1": code(0, 1, 10, 11, *range(20, 26)),
             "c-1": code(2, *range(30, 36))}  # fmt: skip
    rows = []
    for name, files in trees.items():
        write_files(tmp_path / "trees" / name, files)
        one = Instance(name, name[0], "0" * 40, PATCH, "", "Repair.", ("t::a",), ("t::b",), tree=name)
        rows.append(json.dumps(one.as_row()) + "\n")
    (tmp_path / FILE).write_text("".join(rows))
    return tmp_path


def renamed(folder, names):
    text = (folder / FILE).read_text()
    for old, new in names.items():
        text = text.replace(f'"repo": "{old}"', f'"repo": "{new}"')
    (folder / FILE).write_text(text)


def test_groups(folder):
    assert near_copies(folder, read_instances(folder)) == {"a": "a", "b": "a"}


def test_one_side_has_a_fork(folder):
    """Alone `a` and `c` would be trained on, `b` held out; the smallest name of a group decides."""
    held = [name for name in map(str, range(1000, 1100)) if is_heldout_task(f"swe/{name}")]
    trained = [name for name in map(str, range(1000, 1100)) if not is_heldout_task(f"swe/{name}")]
    first, last, fork = trained[0], trained[1], held[-1]
    renamed(folder, {"a": first, "b": fork, "c": last})
    assert first < fork
    found = {one.instance_id for one in Swe(SweConfig(path=str(folder), split="train")).instances}
    assert found == {"a-1", "a-2", "b-1", "c-1"}
    with pytest.raises(ConfigError, match="is there"):
        Swe(SweConfig(path=str(folder), split="heldout"))
    renamed(folder, {first: held[0], fork: f"{trained[-1]}"})
    assert {one.instance_id for one in Swe(SweConfig(path=str(folder), split="heldout")).instances} == {
        "a-1", "a-2", "b-1",
    }  # fmt: skip
    assert len(Swe(SweConfig(path=str(folder), whole=True)).instances) == 4
