"""Changes of a git repository become instances, with the class, text and commit of each, or a reason why not."""

import asyncio
import json
import sys
from types import ModuleType

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.cli import main
from arcforge_rl.swe import build, setup
from arcforge_rl.swe.changes import POINTER, ChangeWalk
from arcforge_rl.swe.command import options_of
from arcforge_rl.swe.history import opened
from arcforge_rl.swe.instance import FILE, OURS, read_instances
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.listed import read_lines
from arcforge_rl.swe.results import FAILED, PASSED, TestRun
from support.git_repositories import commit, git

CODE = '''"""Small numbers."""


def digits(number):
    """Returns the sum of digits."""
    total = 1
    while number:
        total = total + number % 10
        number = number // 10
    return max(total - 1, 1)
'''
TESTS = """from toy import digits

def test_one():
    assert digits(1) == 1

def test_two():
    assert digits(2) == 2

def test_many():
    assert digits(123) == 6

def test_zero():
    assert digits(0) == 1
"""
FIXED = CODE.replace("max(total - 1, 1)", "sum([total, -1], start=0)")
FIXED_TESTS = TESTS.replace("digits(0) == 1", "digits(0) == 0")
CLAMP = "\n\ndef clamp(value, low):\n    return low if value < low else value\n"
CLAMP_TESTS = "from toy import clamp\n\ndef test_clamp():\n    assert clamp(1, 2) == 2\n"


@pytest.fixture
def toy(tmp_path):
    """A repository whose latest commits are a refactoring, a bare merge of a feature, and a described fix."""
    folder = tmp_path / "toy"
    commit(folder, "First", {"toy.py": CODE, "tests/test_toy.py": TESTS})
    commit(folder, "docs: say more", {"README": "Toy\n"})
    message = (
        "fix: the sum of the digits of zero is zero (#3)\n\nSee toy.py for the cause.\n\nSigned-off-by: A <a@b.org>\n"
    )
    commit(folder, message, {"toy.py": FIXED, "tests/test_toy.py": FIXED_TESTS})
    git(folder, "checkout", "-q", "-b", "side")
    commit(folder, "Code", {"toy.py": FIXED + CLAMP})
    commit(folder, "Tests", {"tests/test_clamp.py": CLAMP_TESTS})
    git(folder, "checkout", "-q", "main")
    git(folder, "merge", "-q", "--no-ff", "-m", "Merge branch 'side'", "side")
    files = {"toy.py": FIXED.replace("digits(", "digit_sum(") + CLAMP, "tests/test_clamp.py": CLAMP_TESTS + "\n"}
    commit(folder, "Rename digits", {**files, "tests/test_toy.py": FIXED_TESTS.replace("digits", "digit_sum")})
    return folder


async def runs_in_process(language, tree, files, packages, paths, seconds, numbers=range(3)):
    """Runs the tests of a toy, a module without imports, here."""
    texts = {path: files.get(path, (tree / path).read_text() if (tree / path).is_file() else None) for path in paths}
    code = files["toy.py"] if "toy.py" in files else (tree / "toy.py").read_text()
    outcomes, told = {}, {}
    module = sys.modules["toy"] = ModuleType("toy")
    try:
        exec(code or "", module.__dict__)
        for path, text in texts.items():
            names = {}
            try:
                exec(text or "", names)
            except ImportError as error:
                told[path] = f"E  ImportError: {error}"
            for name, test in names.items():
                if name.startswith("test_"):
                    try:
                        test()
                        outcomes[f"{path}::{name}"] = PASSED
                    except AssertionError:
                        outcomes[f"{path}::{name}"], told[f"{path}::{name}"] = FAILED, "E  assert 1 == 0\nE  toy.py:9"
    finally:
        del sys.modules["toy"]
    return [TestRun(outcomes, told, whole=True) for _ in numbers]


@pytest.fixture
def built(toy, tmp_path, monkeypatch):
    """Runs the walk over a repository."""
    for module in (build, setup):
        monkeypatch.setattr(module, "runs_of", runs_in_process)
    monkeypatch.setattr(type(language_of("python")), "tools", lambda self: [])

    def run(source=toy, classes=("fix", "feature"), count=8, tries=20, **more):
        with opened(source) as history:
            return asyncio.run(ChangeWalk(history, "toy", tmp_path, count, tries, classes, **more).build())

    return run


def test_changes_become_instances(built, toy, tmp_path, monkeypatch, capsys):
    found = built()
    assert str(found) == "2 of 2 changes tried" and found.made == read_instances(tmp_path)
    feature, fix = found.made
    for one, number, change in ((feature, 1, "feature"), (fix, 2, "fix")):
        own = git(toy, "rev-parse", f"HEAD~{number}")
        assert (one.kind, one.change, one.version) == ("change", change, own[:10])
        assert one.base_commit == git(toy, "rev-parse", f"HEAD~{number + 1}")
        assert one.created_at == "2024-05-06T05:08:09Z"
        assert {path.name for path in (tmp_path / "trees" / one.tree).iterdir()} <= {"toy.py", "tests", "README"}
    assert fix.FAIL_TO_PASS == ("tests/test_toy.py::test_zero",) and len(fix.PASS_TO_PASS) == 3
    assert fix.problem_statement.startswith(
        "This change is wanted in toy:\n\nthe sum of the digits of zero is zero\n\nThis was observed:\n"
        "- zero: assert 1 == 0\n\nHidden"
    )
    assert feature.FAIL_TO_PASS == ("tests/test_clamp.py::test_clamp",)
    assert feature.problem_statement.startswith("Something in toy does not behave as it should.")
    assert "These names are required: clamp." in feature.problem_statement
    assert feature.repair(tmp_path / "trees" / feature.tree) == {"toy.py": FIXED + CLAMP}
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", "export", str(tmp_path)])
    assert main() == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert all({"change", "kind", OURS}.isdisjoint(row) for row in rows)


def test_changes_of_other_classes_are_built_when_they_are_asked_for(built, tmp_path):
    with pytest.raises(DataError, match="toy: none of its 1 changes with tests is of --classes other"):
        built(classes=("other",), branch="main~2")
    [one] = built(classes=("refactor",)).made
    assert one.change == "refactor" and "names are required: digit_sum" in one.problem_statement
    assert str(built(classes=("fix",))) == "2 of 2 changes tried: 1 is of class feature"  # as its tests say


def test_a_second_walk_passes_over_instances_that_are_there(built, tmp_path):
    assert [one.change for one in built(count=1).made] == ["feature"]
    assert [one.change for one in built(count=1).made] == ["fix"]
    with pytest.raises(DataError, match="toy: no change became an instance; 0 of 0 changes tried"):
        built(count=1)
    assert len((tmp_path / FILE).read_text().splitlines()) == 2


def test_tries_branch_and_language(built, toy):
    with pytest.raises(DataError, match="1 of 3 changes tried: 1 no test fails before and passes after"):
        commit(toy, "Sums of digits", {"toy.py": FIXED + "\n", "tests/test_toy.py": FIXED_TESTS + "\n"})
        git(toy, "reset", "-q", "--soft", "HEAD~2")  # without the renaming
        commit(toy, "Sums of digits", {"toy.py": FIXED + CLAMP + "\n", "tests/test_toy.py": FIXED_TESTS + "\n"})
        built(tries=1)
    assert [one.change for one in built(branch="HEAD~2").made] == ["fix"]
    with pytest.raises(DataError, match="none of its 4 commits changes code and tests of go"):
        built(language="go")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"part": None}, "changes a submodule, whose files are not here"),
        ({"toy.py": FIXED, "tests/data.bin": f"{POINTER.decode()}v1\noid sha256:0\n"}, "changes a file of Git LFS"),
        ({"toy.py": FIXED, "other.py": "link"}, "changes a link among code or tests"),
        ({"toy.py": "x = '\udcff'\n"}, "changes code that is no text"),
        ({"toy.py": FIXED, "new\nline.py": "x = 1\n"}, "changes code that is no text"),
        ({"toy.py": CODE}, "the change changes no code"),
        ({"toy.py": CODE, "tests/test_toy.py": None}, "has no tests"),
        ({"toy.py": CODE + "\n"}, "no test fails before and passes after"),
    ],
)
def test_changes_that_are_refused(built, tmp_path, files, reason):
    folder = tmp_path / "one"
    commit(folder, "First", {"toy.py": CODE, "tests/test_toy.py": TESTS})
    (folder / "tests/test_toy.py").write_text(FIXED_TESTS)
    (folder / "toy.py").chmod(0o755)  # no content
    if "part" in files:
        (folder / "toy.py").write_text(FIXED)
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{git(folder, 'rev-parse', 'HEAD')},part")
        (folder / "part").mkdir()
    for path, text in files.items():
        if text == "link":
            (folder / path).symlink_to("toy.py")
        elif text is not None:
            (folder / path).write_bytes(text.encode(errors="surrogateescape"))
        elif path != "part":
            (folder / path).unlink()
    commit(folder, "Sums of digits", {})
    with pytest.raises(DataError, match=f"toy: no change became an instance; 1 of 1 changes tried: 1 .*{reason}"):
        built(folder)


def test_a_repository_without_tests(built, tmp_path):
    for text in "12":
        commit(tmp_path / "bare", text, {"toy.py": f"x = {text}\n"})
    with pytest.raises(DataError, match="toy: none of its 1 commits changes code and tests of python"):
        built(tmp_path / "bare")


def test_requirements_are_set_up_once(built, toy, monkeypatch):
    tried = []

    async def attempts_at(name, language, tree, seconds, log, agent):
        tried.append((agent, *language.declared(tree)))
        left_out = () if tried[-1][1:] else ("tests/test_clamp.py",)
        return [setup.Attempt((), "odd is not known" if not left_out else "", left_out=left_out)]

    monkeypatch.setattr("arcforge_rl.swe.changes.attempts_at", attempts_at)
    commit(toy, "Sums", {"toy.py": CODE, "tests/test_toy.py": TESTS,
                         "pyproject.toml": '[project]\ndependencies = ["odd"]\n'})  # fmt: skip
    found = built(agent="a model")
    assert (
        str(found)
        == "3 of 3 changes tried: 1 cannot be set up: odd is not known, 1 no test fails before and passes after"
    )
    assert tried == [("a model", "odd"), ("a model",)] and [one.change for one in found.made] == ["fix"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["changes", "x", "--classes", "fix,big"], "--classes 'big': must be of fix, feature, refactor, other"),
        (["changes", "x", "--seed", "1"], "--seed: is no option of changes"),
        (["bugs", "x", "--branch", "main"], "--branch: is no option of bugs"),
        (["bugs", "x", "--classes", "fix"], "--classes: is no option of bugs"),
        (["changes", "x"], "x is neither a folder with a git repository nor a bundle"),
        (["changes", "x", "y"], "changes: takes 1 sources, not 2"),
    ],
)
def test_words_that_are_refused(tmp_path, monkeypatch, capsys, words, told):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 2
    assert told in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_the_command(built, toy, tmp_path, monkeypatch, capsys):
    (tmp_path / "list.txt").write_text(f"changes {toy} --count 2 --branch main --classes fix,other\n")
    assert read_lines(tmp_path / "list.txt", options_of)
    git(toy, "bundle", "create", "-q", str(tmp_path / "small.toy.bundle"), "--all")
    for words, name in (([str(tmp_path / "small.toy.bundle")], "small.toy"), ([str(toy), "--repo", "a/b"], "a/b"),
                        (["."], "toy")):  # fmt: skip
        monkeypatch.chdir(toy)
        argv = ["arcforge-env", "swe", "changes", *words, "--to", str(tmp_path / "swe"), "--count", "1"]
        monkeypatch.setattr(sys, "argv", [*argv, "--branch", "main~2", "--tries", "1"])
        assert main() == 0 and f"1 of 1 instances of {name} in " in capsys.readouterr().out
    assert [one.repo for one in read_instances(tmp_path / "swe")] == ["small.toy", "a/b", "toy"]


@pytest.mark.nightly(reason="builds two instances, with two dozen runs of pytest in sandboxes")
def test_a_real_walk(toy, tmp_path, monkeypatch, capsys):
    (tmp_path / "list.txt").write_text(f"changes {toy} --count 2\n")
    words = ["all", str(tmp_path / "list.txt"), "--to", str(tmp_path / "swe")]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 0
    assert [one.change for one in read_instances(tmp_path / "swe")] == ["feature", "fix"]
    assert capsys.readouterr().out.splitlines()[1].split() == ["python", "1", "1", "0", "1", "2", "2"]
