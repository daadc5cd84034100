"""Faults are tried up to a bound, and what became of them is counted."""

import asyncio

import pytest

from arcforge_rl.swe import build
from arcforge_rl.swe.build import Repository, inject
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.results import TestRun

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
    tried = [one for one in runs if one]
    assert len({one["toy/__init__.py"] for one in tried}) == found.tried == 7 - 5 * bool(found.made)
    assert len(found.made) == (0 if found.refused else 2)
