"""Faults are tried up to a bound, and what became of them is counted."""

import asyncio
import shutil

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.swe import build
from arcforge_rl.swe.build import Origin, Repository, compare, inject
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.patches import diff
from arcforge_rl.swe.results import TestRun
from arcforge_rl.swe.running import RUNS

EACH = 2 * RUNS + 1
"""Runs of a pair of releases: three before, three after, one without code."""
TESTS = ("tests/test_toy.py::test_clamp", "tests/test_toy.py::test_digits", "tests/test_toy.py::test_no_digits")


@pytest.mark.parametrize(
    ("outcomes", "told"),
    [
        (("passed", "passed", "passed"), "7 of {} faults tried: 7 noticed by no test"),
        (("failed", "failed", "failed"), "7 of {} faults tried: 7 broke too many tests"),
        (("failed", "passed", "passed"), "2 of {} faults tried"),
    ],
)
def test_tries_are_bounded(repository, tmp_path, monkeypatch, outcomes, told):
    runs = []

    async def runs_of(language, tree, files, packages, paths, seconds, numbers=range(3)):
        runs.append(dict(files))
        found = dict(zip(TESTS, outcomes if files else ("passed",) * 3, strict=True))
        return [TestRun(found, whole=True) for _ in numbers]

    monkeypatch.setattr(build, "runs_of", runs_of)
    repo = Repository(language_of("python"), "toy", "1", (), tmp_path, 60)
    found = asyncio.run(inject(repo, repository, 2, 0, tries=7))
    assert str(found) == told.format(found.candidates) and found.candidates > 7
    tried = [one for one in runs if one.get("toy/__init__.py")]
    assert len({one["toy/__init__.py"] for one in tried}) == found.tried == 7 - 5 * bool(found.made)
    assert len(found.made) == (0 if found.refused else 2)


def test_code_that_is_installed_elsewhere_makes_no_instance(repository, tmp_path, monkeypatch):
    """Without the repository's code its tests pass: deleting it would be a repair."""

    async def runs_of(language, tree, files, packages, paths, seconds, numbers=range(3)):
        faulty = any(text is not None for text in files.values())
        found = dict(zip(TESTS, ("failed" if faulty else "passed", "passed", "passed"), strict=True))
        return [TestRun(found, whole=True) for _ in numbers]

    monkeypatch.setattr(build, "runs_of", runs_of)
    found = asyncio.run(inject(Repository(language_of("python"), "toy", "1", (), tmp_path, 60), repository, 2, 0, 3))
    assert not found.made and dict(found.refused) == {build.COPY: 3}


def test_repairs_in_the_toolchain_are_found(repository, tmp_path, monkeypatch):
    """A copy has its file's name; the same line in another file of a large toolchain says nothing."""
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "cache"))
    python = language_of("python")
    repo = Repository(python, "toy", "1", (), tmp_path / "swe", 60)
    repo.to.mkdir()
    right, bad = (f"def repaired():\n    return sum(range({number}, 1000))\n" for number in (1, 2))
    gold = diff({"toy/new.py": bad}, {"toy/new.py": right})
    for number, (file, text, refused) in enumerate(
        [("new.py", right, True), ("other.py", right, False), ("new.py", bad, False)]
    ):
        folder = tmp_path / f"tools{number}"
        folder.mkdir()
        (folder / file).write_text(text)
        tools = Recipe(f"tools{number}", "folder", (str(folder),), {}, "/usr/lib/tools")
        monkeypatch.setattr(type(python), "tools", lambda self, tools=tools: [tools])
        made = build.write(repo, repository, {"toy/new.py": bad}, gold, TESTS[:1], TESTS[1:], {}, "", Origin("bug"))
        assert (made is None) == refused


@pytest.mark.parametrize(
    ("turns", "copied", "runs", "reason"),
    [
        (False, False, 2, "no test fails before"),
        (True, True, 2 * RUNS + 1, build.COPY),
        (True, False, 2 * RUNS + 1, ""),
    ],
)
def test_pairs_of_releases(repository, tmp_path, monkeypatch, turns, copied, runs, reason):
    """One that turns no test costs a run of each side; one whose code is installed elsewhere is refused."""
    done = []

    async def runs_of(language, tree, files, packages, paths, seconds, numbers=range(3)):
        text = files.get("toy/__init__.py", "faulty")
        repaired = (copied if text is None else "= 5" in text) and turns
        found = {TESTS[0]: "passed" if repaired else "failed", TESTS[1]: "passed"}
        done.extend(numbers)
        return [TestRun(found, whole=True) for _ in numbers]

    monkeypatch.setattr(build, "runs_of", runs_of)
    new, repo = tmp_path / "new", Repository(language_of("python"), "toy", "2", (), tmp_path / "swe", 60)
    shutil.copytree(repository, new)
    repo.to.mkdir()
    code = new / "toy/__init__.py"
    code.write_text(f"{code.read_text()}\nREPAIRED_BY_A_LATER_RELEASE = 5\n")
    if reason:
        with pytest.raises(DataError, match=reason):
            asyncio.run(compare(repo, repository, new, Origin("release")))
    else:
        made = asyncio.run(compare(repo, repository, new, Origin("release")))
        assert list(made.FAIL_TO_PASS) == [TESTS[0]]
    assert len(done) == runs
