"""``arcforge-env swe --url``: its options, its failures, and instances of set-ups that leave test files out."""

import asyncio
import json
import sys
import zipfile

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.cli import main
from arcforge_rl.swe import listed
from arcforge_rl.swe.agent_options import OPTIONS, words_of
from arcforge_rl.swe.build import Origin, Repository, compare, inject
from arcforge_rl.swe.command import options_of
from arcforge_rl.swe.instance import read_instances
from arcforge_rl.swe.languages.known import language_of
from arcforge_rl.swe.results import TestRun
from arcforge_rl.swe.sources import copy_clean
from support.setup_agents import World, model_server, results_of, trying
from support.swe_builds import validate
from support.trees import write_files

PYTHON = language_of("python")
CODE, NET = "toy/__init__.py", "tests/test_net.py"
URL = "--url=http://127.0.0.1:9"


@pytest.fixture
def odd(repository):
    """A repository whose tests need a module of a distribution that no file names, and with one that ends the run."""
    test = repository / "tests/test_toy.py"
    test.write_text(f"from oddmod import odd\n{test.read_text()}\n\ndef test_odd():\n    assert odd(3)\n")
    return write_files(repository, {NET: "import os\n\n\ndef test_net():\n    os._exit(7)\n"})


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A folder of wheels with odd-dist as the only registry, and a cache without layers."""
    info = "odd_dist-1.0.dist-info"
    files = {
        "oddmod.py": "def odd(number):\n    return number % 2 == 1\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: odd-dist\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels/odd_dist-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))
    for installer in ("PIP", "UV"):
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("ARCFORGE_CACHE", str(tmp_path / "cache"))


def run(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *map(str, words)])
    return main()


@pytest.mark.parametrize(("words", "reason"), [
    (["bugs", "x", "--model", "m"], "--model and --key-variable are of a server: name --url"),
    (["bugs", "x", "--agent-calls", "3"], "--agent-calls: is of an agent: name its server with --url"),
    (["bugs", "x", "--url", "ftp://x"], "--url='ftp://x': must begin with http:// or https://"),
    (["bugs", "x", "--url", "http://[x"], "--url='http://[x': must begin with"),
    (["bugs", "x", "--url", ""], "--url='': must begin with"),
    (["bugs", "x", "--url", "http://"], "and name a host"),
    (["bugs", "x", "--url", "http://x:99999"], "and name a host"),
    (["bugs", "x", URL, "--agent-calls", "0"], "--agent-calls must be at least 1"),
    (["bugs", "x", URL, "--agent-seconds", "inf"], "--agent-seconds finite and above 0"),
    (["bugs", "x", URL, "--key-variable", "NO_KEY"], "--key-variable='NO_KEY': must be an environment variable"),
    (["export", "x", URL], "--url: is no option of export"),
    (["import", "x", "y", "--agent-seconds", "3"], "--agent-seconds: is no option of import"),
])  # fmt: skip
def test_options_that_are_refused(monkeypatch, capsys, words, reason):
    assert run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1


def test_a_list_hands_the_agent_to_its_lines(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("KEY", "secret")
    given = [URL, "--model=m", "--key-variable=KEY", "--agent-calls=3", "--agent-seconds=9"]
    options = options_of(["bugs", "x", *given])
    assert options_of(["bugs", "y", *words_of(options)]).model == "m"
    assert [getattr(options_of(["all", "x", *words_of(options)]), name) for name in OPTIONS] == [
        "http://127.0.0.1:9", "m", "KEY", 3, 9.0,
    ]  # fmt: skip
    (tmp_path / "list.txt").write_text("bugs a\n")
    monkeypatch.setattr(listed, "COMMAND", (sys.executable, "-S", "-c", "import sys; sys.exit(repr(sys.argv[1:]))"))
    assert run(monkeypatch, "all", tmp_path / "list.txt", "--to", tmp_path / "swe", *given) == 1
    [row] = map(json.loads, (tmp_path / "swe" / listed.BUILT).read_text().splitlines())
    assert repr(["bugs", "a", *words_of(options), "--to"])[:-1] in row["reason"]
    assert "secret" not in row["reason"] + capsys.readouterr().err


def test_a_server_that_is_down_is_no_verdict_on_a_repository(odd, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("arcforge_rl.endpoints.PAUSE", 0.01)
    for module in ("setup", "setup_tools"):
        monkeypatch.setattr(f"arcforge_rl.swe.{module}.runs_of", World(["odd-dist"]))
    assert run(monkeypatch, "bugs", odd, "--to", tmp_path / "swe", URL) == 75
    error = capsys.readouterr().err
    assert error.startswith("error: toy: the agent's server gave no reply: http://127.0.0.1:9/v1/chat/completions: ")
    assert error.count("\n") == 1 and "cannot be set up" not in error
    rows = [json.loads(line) for line in (tmp_path / "swe/attempts.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and {row["by"] for row in rows} == {"rules"} and rows[-1]["reason"]


def test_an_agent_that_fails_is_a_verdict_on_a_repository(odd, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("KEY", "secret")
    for module in ("setup", "setup_tools"):
        monkeypatch.setattr(f"arcforge_rl.swe.{module}.runs_of", World(["odd-dist"]))
    with model_server([trying("wrong")]) as (url, asked):
        words = ["--url", url, "--agent-calls", 2, "--key-variable", "KEY", "--model", "m"]
        assert run(monkeypatch, "bugs", odd, "--to", tmp_path / "swe", *words) == 2
    assert asked[0]["model"] == "m" and asked[0]["key"] == "Bearer secret"
    assert "toy cannot be set up: 0 tests pass" in (error := capsys.readouterr().err)
    assert "; the agent has used its 2 calls (--seconds is 120; 5 attempts, see attempts.jsonl)" in error
    rows = [json.loads(line) for line in (tmp_path / "swe/attempts.jsonl").read_text().splitlines()]
    assert [row["by"] for row in rows] == ["rules"] * 3 + ["agent"] * 2


@pytest.mark.parametrize("words", [["bugs"], ["releases", "{0}"]])
def test_builders_get_the_set_up_of_the_agent(odd, tmp_path, monkeypatch, words):
    for module in ("setup", "setup_tools"):
        monkeypatch.setattr(f"arcforge_rl.swe.{module}.runs_of", World(["odd-dist"], NET))
    got = []

    async def build(repo, *_):
        got.append(repo)
        raise DataError("enough")

    for name in ("inject", "compare"):
        monkeypatch.setattr(f"arcforge_rl.swe.command.{name}", build)
    with model_server([trying("odd-dist", leave_out=[NET])]) as (url, _):
        words = [*(word.format(odd) for word in words), odd, "--to", tmp_path / "swe", "--url", url]
        assert run(monkeypatch, *words) == 2
    [repo] = got
    assert (repo.packages, repo.left_out) == (("odd-dist",), (NET,))


@pytest.mark.parametrize("action", ["bugs", "releases"])
def test_an_instance_has_no_test_file_that_is_left_out(odd, tmp_path, monkeypatch, action):
    good, old, shown = (odd / CODE).read_text(), tmp_path / "old", []
    copy_clean(odd, old)
    (old / CODE).write_text(good.replace("total = 0", "total = 1"))

    async def runs(language, tree, files, packages, paths, seconds, numbers=range(3)):
        shown.append({*paths} | {path for path in files if language.is_test(path)})
        text = files.get(CODE, (tree / CODE).read_text())
        names = [f"{path}::test_{name}" for path in paths for name in ("digits", "a", "b")]
        right = {True: "passed", False: "failed"}
        outcomes = {name: right[text is not None and ("digits" not in name or text == good)] for name in names}
        return [TestRun(outcomes, whole=True) for _ in numbers]

    monkeypatch.setattr("arcforge_rl.swe.build.runs_of", runs)
    repo = Repository(PYTHON, "toy", "1", (), tmp_path / "swe", 60, (NET,))
    repo.to.mkdir()
    work = inject(repo, odd, 1, 0, 20) if action == "bugs" else compare(repo, old, odd, Origin("release"))
    asyncio.run(work)
    [one] = read_instances(repo.to)
    assert one.FAIL_TO_PASS == ("tests/test_toy.py::test_digits",) and [*one.tests] == ["tests/test_toy.py"]
    assert shown and not any(NET in paths for paths in shown)


@pytest.mark.timeout(1200)
@pytest.mark.nightly(reason="builds and validates a repository, with dozens of runs of pytest in sandboxes")
def test_a_list_of_a_repository_that_an_agent_sets_up(odd, registry, tmp_path, monkeypatch, capsys):
    (tmp_path / "list.txt").write_text(f"bugs {odd} --count 1 --seconds 60\n")
    words = ["all", tmp_path / "list.txt", "--to", tmp_path / "swe"]
    assert run(monkeypatch, *words, URL) == 1
    assert "the agent's server gave no reply" in capsys.readouterr().out
    assert not (tmp_path / "swe" / listed.BUILT).exists()
    with model_server([trying("odd-one"), trying("odd-dist"), trying("odd-dist", leave_out=[NET])]) as (url, asked):
        assert run(monkeypatch, *words, "--url", url) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["python", "1", "1", "1", "1", "1", "0"]
    rows = [json.loads(line) for line in (tmp_path / "swe/attempts.jsonl").read_text().splitlines()]
    unknown, whole, part = (row for row in rows if row["by"] == "agent")
    assert "the requirement odd-one" in unknown["reason"] and unknown["reason"] in results_of(asked)[0]
    assert "the run did not end by itself" in whole["reason"] and (part["reason"], part["left_out"]) == ("", [NET])
    [one] = read_instances(tmp_path / "swe")
    assert one.packages == ["odd-dist"] and [*one.tests] == ["tests/test_toy.py"]
    validate(tmp_path / "swe", tmp_path, monkeypatch)
