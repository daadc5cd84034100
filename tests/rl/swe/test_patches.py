"""Patches are read and written as git does, and those that cannot be are named."""

import shutil
import subprocess

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.swe.patches import apply, diff, paths_of

OLD = {"a.py": "one\ntwo\nthree\n" * 10, "gone.txt": "bye\n", "b/c.txt": "no end"}
NEW = {"a.py": ("one\ntwo\nthree\n" * 10).replace("two", "2", 1) + "four\n", "new/d.py": "fresh\n", "b/c.txt": "end\n"}


def test_a_patch_is_undone_by_its_reader():
    patch = diff(OLD, NEW)
    assert apply(patch, OLD) == {**NEW, "gone.txt": None}
    assert paths_of(patch) == ["a.py", "b/c.txt", "gone.txt", "new/d.py"]
    assert diff(NEW, NEW) == ""


def test_git_applies_it(tmp_path):
    assert shutil.which("git") is not None
    for path, text in OLD.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    subprocess.run(["git", "apply", "-"], input=diff(OLD, NEW), text=True, cwd=tmp_path, check=True)
    found = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == NEW


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "changes no file"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 3\n", "binary"),
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "no path inside"),
        ("--- a/missing.py\n+++ b/missing.py\n@@ -1 +1 @@\n-a\n+b\n", "missing.py, which is not there"),
        ("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-other\n+b\n", "does not fit a.py at line 1"),
        ("--- a/a.py\n+++ b/a.py\n@@ -900 +900 @@\n-other\n+b\n", "no line 900"),
    ],
)
def test_patches_that_are_refused(patch, reason):
    with pytest.raises(DataError, match=reason):
        apply(patch, OLD)
