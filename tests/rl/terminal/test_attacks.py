"""Work that looks done to a verifier, and work that is made to break it."""

import json
import sqlite3
import subprocess
import sys

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.terminal import checks
from arcforge_rl.terminal.table import drawn
from arcforge_rl.terminal.trees import pack


def played(draft, script, place):
    """Returns whether the rule about the repository holds after a script."""
    for text in (draft.setup, script):
        subprocess.run(["bash", "-c", text], cwd=place, check=False, capture_output=True, timeout=60)
    (rule,) = [one for one in draft.rules if one["kind"] == "git"]
    try:
        checks.check_git(str(place / "project"), rule["commands"])
    except checks.Flaw:
        return False
    return True


@pytest.mark.parametrize("number", [0, 1])
def test_history_is_kept_and_the_branch_is_meant(number, tmp_path):
    draft = drawn("git", number)
    (tmp_path / "right").mkdir()
    assert played(draft, draft.solve, tmp_path / "right")
    about_history = [cheat for cheat in draft.cheats if "update-ref" in cheat or "commit-tree" in cheat]
    assert len(about_history) == 2
    for count, cheat in enumerate(about_history):
        (tmp_path / str(count)).mkdir()
        assert not played(draft, cheat, tmp_path / str(count)), cheat


def test_folders_without_end_are_no_work(tmp_path):
    place = tmp_path
    for _ in range(150):
        place = place / "a"
    place.mkdir(parents=True)
    with pytest.raises(DataError, match="inside one another"):
        pack(tmp_path)


def test_a_database_that_never_answers_is_no_answer(tmp_path):
    base = sqlite3.connect(tmp_path / "shop.db")
    slow = " + ".join(f"length(hex(zeroblob({50_000_000 + n})))" for n in range(40))
    base.executescript(f"CREATE VIEW totals AS SELECT 1 AS a, {slow} AS b")
    base.close()
    rules = [
        {"kind": "sqlite", "path": str(tmp_path / "shop.db"), "queries": [["SELECT a FROM totals WHERE b > 0", [[1]]]]}
    ]
    (tmp_path / "rules.json").write_text(json.dumps(rules))
    program = tmp_path / "check.py"
    with open(checks.__file__, encoding="utf-8") as file:
        program.write_text(file.read().replace("SECONDS = 40", "SECONDS = 1"))
    words = [sys.executable, "-I", str(program), str(tmp_path / "rules.json")]
    assert subprocess.run(words, check=False, capture_output=True, timeout=60).returncode != 0
