"""Faults become instances whose oracle earns 1, and whose no-op and cheats earn 0."""

import ast
import asyncio
import json
import shutil
import sys
from importlib import metadata

import pytest

from arcforge_core.contracts.environment import Reply
from arcforge_core.episodes.scripted import SILENCE, play
from arcforge_core.errors import ConfigError, DataError
from arcforge_rl.cli import main
from arcforge_rl.configs.environments import SweConfig
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.build import code_of
from arcforge_rl.swe.command import take
from arcforge_rl.swe.environment import Swe, writing
from arcforge_rl.swe.instance import FILE, Instance, instance_of, read_instances
from arcforge_rl.swe.languages.known import language_in, language_of
from arcforge_rl.swe.languages.python.bugs import bugs
from arcforge_rl.swe.languages.python.setup import declared, missed
from arcforge_rl.swe.leaks import leak
from arcforge_rl.swe.patches import diff
from arcforge_rl.swe.results import BROKEN, TestRun
from arcforge_rl.swe.running import runs_of
from arcforge_rl.swe.setup import set_up
from arcforge_rl.swe.sources import copy_clean, source_tree

PYTHON = language_of("python")
LISTS = {
    "FAIL_TO_PASS": ("tests/test_toy.py::test_digits", "tests/test_toy.py::test_no_digits"),
    "PASS_TO_PASS": ("tests/test_toy.py::test_clamp[1-2]",),
}


@pytest.fixture
def folder(repository, tmp_path):
    """An environment with one instance."""
    to = tmp_path / "swe"
    tests = {"tests/test_toy.py": (repository / "tests/test_toy.py").read_text()}
    code = (repository / "toy/__init__.py").read_text()
    buggy = code.replace("total = 0", "total = 1")
    copy_clean(repository, to / "trees/toy-1")
    (to / "trees/toy-1/toy/__init__.py").write_text(buggy)
    (to / "trees/toy-1/tests/test_toy.py").unlink()
    patch = diff({"toy/__init__.py": buggy}, {"toy/__init__.py": code})
    one = Instance(
        "toy-1", "toy", "0" * 40, patch, diff({}, tests), "Repair it.", **LISTS, tree="toy-1", tests=tests, kind="bug"
    )
    (to / FILE).write_text(json.dumps(one.as_row()) + "\n")
    return to


def made(folder):
    return Swe(SweConfig(path=str(folder), whole=True, seconds=60))


def test_verdict_formats_no_tracebacks(folder):
    environment = made(folder)
    one = environment.instances[0]
    judged = asyncio.run(environment.tested(one, {}))
    told = asyncio.run(runs_of(PYTHON, folder / "trees/toy-1", one.tests, (), sorted(one.tests), 60, [0]))[0]
    assert judged.outcomes == told.outcomes and {*judged.outcomes.values()} == {"failed", "passed"}
    test = "tests/test_toy.py::test_digits"
    assert "def test_digits():" in told.texts[test] and "def test_digits():" not in judged.texts[test]


@pytest.mark.slow(reason="several runs of pytest, each in a sandbox")
def test_oracle_noop_and_cheats(folder):
    environment = made(folder)
    task = environment.task(0)

    def earned(script):
        outcome = asyncio.run(play(environment, task, script))[1]
        assert outcome.failure is None, outcome.failure
        return outcome.reward, outcome.reasons["reward"]

    assert earned(environment.oracle(task))[0] == 1.0
    assert earned(SILENCE)[0] == 0.0
    [call] = environment.cheats(task)[-1][0].calls
    assert call.arguments == {"command": "rm -f -- toy/__init__.py"}
    forged = environment.cheats(task)[4]
    assert earned(forged) == (0.0, "a planted test that fails was not reported as failed")


@pytest.mark.nightly(reason="every cheat, each a run of pytest in a sandbox")
def test_every_cheat(folder):
    environment = made(folder)
    task = environment.task(0)
    assert len(environment.cheats(task)) == 12
    for cheat in environment.cheats(task):
        assert asyncio.run(play(environment, task, cheat))[1].reward == 0.0


@pytest.mark.nightly(reason="builds instances, with dozens of runs of pytest")
def test_the_command_builds_bugs(repository, tmp_path, monkeypatch):
    to = tmp_path / "built"
    words = ["bugs", str(repository), "--to", str(to), "--count", "2", "--seconds", "60"]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 0
    found = read_instances(to)
    assert len(found) == 2 and all(one.FAIL_TO_PASS and one.PASS_TO_PASS for one in found)
    for one in found:
        tree = to / "trees" / one.tree
        assert not (tree / ".git").exists() and not (tree / "tests/test_toy.py").exists()
        assert "__init__" not in one.problem_statement and leak([tree], one.patch) is None
    assert json.loads((to / "attempts.jsonl").read_text())["reason"] == ""


@pytest.mark.nightly(reason="two builds of a release, with a dozen runs of pytest")
def test_the_command_compares_releases(repository, tmp_path, monkeypatch, capsys):
    old, to = tmp_path / "old", tmp_path / "built"
    copy_clean(repository, old)
    code = old / "toy/__init__.py"
    code.write_text(code.read_text().replace("total = 0", "total = 1"))
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", "releases", str(old), str(repository), "--to", str(to)])
    assert main() == 0
    [one] = read_instances(to)
    assert LISTS["FAIL_TO_PASS"] == one.FAIL_TO_PASS and len(one.PASS_TO_PASS) == 3 and one.kind == "release"
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", "releases", str(old), str(old), "--to", str(to)])
    assert main() == 2
    assert "cannot be set up" in (error := capsys.readouterr().err) or "the release changes no code" in error


@pytest.mark.slow(reason="a run of pytest in a sandbox")
def test_settings_and_tests_of_a_solver_do_not_count(folder):
    environment = made(folder)
    task = environment.task(0)
    files = {"tests/conftest.py": "x", "toy/new.py": "y = 1\n"}
    episode, outcome = asyncio.run(play(environment, task, [*writing(files), Reply("Done.")]))
    assert episode.artefacts == {"files": files, "flaw": ""} and outcome.rewards["files_changed"] == 2.0
    assert outcome.reward == 0.0 and "FAIL_TO_PASS" in outcome.reasons["reward"]


def test_faults_are_valid_python_and_differ(repository):
    text = (repository / "toy/__init__.py").read_text()
    found = list(bugs(text, "seed"))
    assert found == list(bugs(text, "seed")) != list(bugs(text, "other"))
    assert {"comparison", "arithmetic", "constant", "branch"} <= {bug.kind for bug in found}
    for bug in found:
        ast.parse(bug.text)
        assert bug.text != text and bug.function in ("clamp", "digits")
    assert list(bugs("def broken(:", "seed")) == []
    more = "def f(a, b):\n    return g(a, b) if not a and b in c else True\n"
    assert {bug.kind for bug in bugs(more, "s")} == {"arguments", "negation", "condition", "comparison", "constant"}


def test_swe_bench_in_and_out(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", "export", str(folder)])
    assert main() == 0
    row = json.loads(capsys.readouterr().out)
    assert json.loads(row["FAIL_TO_PASS"]) == list(LISTS["FAIL_TO_PASS"]) and "arcforge" not in row
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    to = tmp_path / "imported"
    to.mkdir()
    assert take(tmp_path / "rows.json", folder / "trees/toy-1", to) == 1
    [one], [before] = read_instances(to), read_instances(folder)
    assert (one.patch, one.tests, one.FAIL_TO_PASS) == (before.patch, before.tests, before.FAIL_TO_PASS)
    with pytest.raises(DataError, match=r"is in .* already"):
        take(tmp_path / "rows.json", folder / "trees/toy-1", to)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"FAIL_TO_PASS": "[]"}, "no test"),
        ({"FAIL_TO_PASS": "[1]"}, "list of tests"),
        ({"PASS_TO_PASS": "["}, "no JSON"),
        ({"patch": ""}, "changes no file"),
        ({"patch": None}, "must be a text"),
        ({"patch": "GIT binary patch\n"}, "binary"),
        ({"arcforge": {"tree": "x", "colour": "red"}}, "not known"),
    ],
)
def test_rows_that_are_refused(folder, change, reason):
    row = {**read_instances(folder)[0].as_row(), **change}
    with pytest.raises(DataError, match=rf"row 1: .*{reason}"):
        instance_of(row, "row 1")


def test_folders_that_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        made(tmp_path / "missing")

    def both_sides():
        return [Swe(SweConfig(path=str(folder), split=split)) for split in ("train", "heldout")]

    with pytest.raises(ConfigError, match="none of toy is there"):
        both_sides()
    (folder / FILE).write_text((folder / FILE).read_text() * 2)
    with pytest.raises(DataError, match="comes twice"):
        made(folder)
    shutil.rmtree(folder / "trees/toy-1")
    with pytest.raises(DataError, match="trees/toy-1 is not there"):
        made(folder)


def test_a_leak_is_found_by_one_who_knows_the_repair(folder):
    tree, [one] = folder / "trees/toy-1", read_instances(folder)
    patch = one.patch.replace("+    total = 0", "+    total = a_telling_line_of_the_repair")
    assert leak([tree], patch) is None
    for place in ("notes.txt", "toy/copy.bin"):
        (tree / place).write_bytes(b"\0    total = a_telling_line_of_the_repair\0")
        assert leak([tree], patch) == place
        (tree / place).unlink()
    installed = tree.parent / "installed"
    (installed / "toy").mkdir(parents=True)
    (installed / "toy/__init__.py").write_text("    total = a_telling_line_of_the_repair\n")
    assert leak([tree, installed], patch) == "toy/__init__.py"


def test_required_names_are_those_that_the_code_has_nowhere():
    tests = ["from toy import fresh, old\nimport toy\ntoy.other(1)\nimport pytest\npytest.raises(X)\n"]
    assert PYTHON.required_names(tests, {"toy.py": "def old(): pass"}) == ["fresh", "other"]


def test_required_names_are_the_repositorys():
    tests = [
        "from collections import OrderedDict\nimport os.path\nimport toy.parts\nimport hypothesis\n"
        "import json as toy2\nfrom added.more import shape\nfrom .helpers import made\nfrom toy.parts import *\n"
        "os.path.join('a'), os.sep\nhypothesis.given(1)\ntoy2.dumps(1)\ntoy.print(toy.turn)\n"
        "toy.parts.x.bend.more(1)\ntoy.parts.x.upper()\njson.tool.unknown(toy.turn().near)\n"
    ]
    code = {"src/toy/parts.py": "x = 1", "json.py": "y = 1", "added/more.py": None}
    assert PYTHON.required_names(tests, code) == ["bend", "shape", "turn"]


@pytest.mark.slow(reason="a run of pytest in a sandbox")
def test_parts_of_tests_are_one_test(repository):
    test = "import unittest\n\n\nclass T(unittest.TestCase):\n"
    for name, wanted in (("good", 3), ("bad", 1)):
        test += f"    def test_{name}(self):\n        for i in range(3):\n            with self.subTest(i=i):\n"
        test += f"                self.assertLess(i, {wanted})\n\n"
    files = {"tests/test_parts.py": test}
    [run] = asyncio.run(runs_of(PYTHON, repository, files, (), [*files], 60, [0]))
    assert run.whole, run.reason
    where = "tests/test_parts.py::T::test_"
    assert run.outcomes == {f"{where}good": "passed", f"{where}bad": "failed"}


def test_set_up_by_rules(repository):
    extras = "Requires-Dist: pytest; extra == 'test'\nRequires-Dist: sphinx; extra == 'docs'\n"
    extras += "Requires-Dist: pytest-checkdocs; extra == 'test'\n"  # a check of style
    (repository / "PKG-INFO").write_text(f"Requires-Dist: click>=8\n{extras}")
    project = '[project]\ndependencies = ["rich"]\n[dependency-groups]\ntest = ["toolz"]\n'
    (repository / "pyproject.toml").write_text(project)
    assert declared(repository) == ["click", "rich", "toolz"]
    assert missed({"a": "E   ModuleNotFoundError: No module named 'yaml.loader'", "b": "fine"}) == ["pyyaml"]
    usage = (
        "ERROR: usage: x [options]\nx: error: unrecognized arguments: --no-cov-on-fail --cov=a --reruns 2 --covers\n"
    )
    assert missed({BROKEN: f"{usage}  inifile: setup.cfg\n  rootdir: /testbed"}) == [
        "pytest-cov",
        "pytest-rerunfailures",
    ]
    assert language_in(repository) is PYTHON and PYTHON.test_files(repository) == ["tests/test_toy.py"]
    assert list(code_of(PYTHON, repository)) == ["toy/__init__.py"]


def test_packages_that_a_registry_does_not_know_are_left_out(repository, monkeypatch):
    (repository / "pyproject.toml").write_text('[project]\ndependencies = ["known", "odd-one", "toy"]\n')
    shown = []

    async def runs(language, tree, files, packages, *_):
        shown.append(packages)
        if "odd-one" in packages:
            raise LayerError("registry", "layer swe-site: No matching distribution found for odd-one")
        outcomes = dict.fromkeys("abcd", "passed") if packages else {}
        texts = {"x": "ModuleNotFoundError: No module named 'toy'"}  # its own, which nothing installs
        return [TestRun(outcomes, texts, whole=True)]

    monkeypatch.setattr("arcforge_rl.swe.setup.runs_of", runs)
    packages, attempts = asyncio.run(set_up(PYTHON, repository, 60))
    assert packages == ("known",) and shown == [(), ("known", "odd-one"), ("known",)]
    assert [bool(one.reason) for one in attempts] == [True, True, False]


def test_a_run_that_breaks_says_why(repository):
    hook = "def pytest_ignore_collect(path, config):\n    return None\n"
    for text, told in ((hook, "PluginValidationError"), ("import odd_one\n", "No module named 'odd_one'")):
        files, paths = {"tests/conftest.py": text}, PYTHON.test_files(repository)
        [run] = asyncio.run(runs_of(PYTHON, repository, files, (), paths, 60, [0]))
        assert not run.whole and run.reason.startswith("the run broke: ")
        assert told in run.texts[BROKEN] and PYTHON.missed(run) == ["odd_one"] * ("odd_one" in text)
    files = {"pytest.ini": "[pytest]\naddopts = --cov=toy\n"}
    [run] = asyncio.run(runs_of(PYTHON, repository, files, (), PYTHON.test_files(repository), 60, [0]))
    assert run.reason.endswith("unrecognized arguments: --cov=toy") and PYTHON.missed(run) == ["pytest-cov"]


def test_releases_have_the_metadata_of_installed_ones(repository):
    (repository / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: odd-toy\nVersion: 1.2\n\nVersion: 3\n")
    with source_tree(repository) as tree:
        [found] = metadata.distributions(path=[str(tree)])
        assert (tree / "odd_toy-1.2.dist-info/METADATA").is_file()
        assert (found.metadata["Name"], found.version) == ("odd-toy", "1.2")


@pytest.mark.parametrize(
    ("project", "wanted"),
    [
        ('name = "odd-toy"\nversion = "1.2"', "1.2"),
        ('name = "odd-toy"', "0"),
        ('name = "../x"', ""),
        ("name", ""),
        ("", ""),
    ],
)
def test_projects_have_metadata_too(repository, project, wanted):
    (repository / "pyproject.toml").write_text(f"[project]\n{project}\n")
    with source_tree(repository) as tree:
        found = [(one.metadata["Name"], one.version) for one in metadata.distributions(path=[str(tree)])]
    assert found == ([("odd-toy", wanted)] if wanted else [])


def test_sources(repository, tmp_path):
    with source_tree(repository) as tree:
        assert sorted(path.name for path in tree.iterdir()) == ["tests", "toy"]
    packed = shutil.make_archive(str(tmp_path / "packed"), "gztar", repository.parent, repository.name)
    with source_tree(tmp_path / packed) as tree:
        assert (tree / "toy/__init__.py").exists()
    (tmp_path / "bad.tar.gz").write_text("no archive")
    for source in (tmp_path / "none", tmp_path / "bad.tar.gz"):
        with pytest.raises(DataError), source_tree(source):
            pass


def test_arguments_of_the_command(monkeypatch, capsys):
    for words in (
        ["bugs"], ["releases", "one"], ["bugs", "x", "--count", "0"], ["bugs", "x", "--tries", "7"], ["grow", "x"],
    ):  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
        assert main() == 2
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("words", "name"), [
    (["bugs", "x", "--jobs", "3"], "jobs"), (["all", "x", "--count", "3"], "count"),
    (["export", "x", "--language", "c"], "language"), (["releases", "x", "y", "--seed", "1"], "seed"),
])  # fmt: skip
def test_options_that_an_action_does_not_read_are_refused(monkeypatch, capsys, tmp_path, words, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 2 and not [*tmp_path.iterdir()]
    assert f"--{name}: is no option of {words[0]}, which reads --to" in capsys.readouterr().err


def test_paths_of_tests():
    assert all(map(PYTHON.is_test, ("test_a.py", "a/tests/data.txt", "x/b_test.py")))
    assert not any(map(PYTHON.is_test, ("a/testimony.py", "contest.py", "toy/protest.txt")))
