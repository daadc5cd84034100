"""``arcforge-env swe all``: lines are read, built by processes, and built once, however a run before ended."""

import json
import sys

import pytest

from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.files.lock import locked
from arcforge_rl.cli import main
from arcforge_rl.swe import listed
from arcforge_rl.swe.command import options_of
from arcforge_rl.swe.instance import FILE, read_instances
from arcforge_rl.swe.listed import OUT_OF_TIME, build_all, read_lines, table_of
from arcforge_rl.swe.setup import AGENT, RULES

WORKER = """
import json, pathlib, sys, time
action, source, *_, flag, to, archives, folder = sys.argv[1:]
to = pathlib.Path(to)
(to / "trees" / source).mkdir(parents=True)
by = "agent" if "--url=http://here" in sys.argv and source in ("bare", "hard", "away") else "rules"
fails = source == "bare" or source == "hard" and by == "rules"
row = {"language": "python", "reason": "it has no tests" if fails else "", "by": by}
(to / "attempts.jsonl").write_text(json.dumps(row) + chr(10))
if source == "away" and not (to.parent.parent / "server").exists():
    print("error: away: the agent's server gave no reply", file=sys.stderr)
    sys.exit(75)
if fails:
    sys.exit(source + " cannot be set up: it has no tests (1 attempts)")
if source == "slow":
    time.sleep(60)
lists = {"FAIL_TO_PASS": '["t::a"]', "PASS_TO_PASS": '["t::b"]'}
texts = dict.fromkeys(("repo", "base_commit", "patch", "test_patch", "problem_statement"), "")
texts["patch"] = chr(10).join(["diff --git a/x b/x", "--- a/x", "+++ b/x", "@@ -1 +1 @@", "-a", "+b", ""])
own = {"tree": source, "kind": "bug" if action == "bugs" else "release"}
(to / "instances.jsonl").write_text(json.dumps({"instance_id": source, **lists, **texts, "arcforge": own}) + chr(10))
"""


@pytest.fixture
def worker(monkeypatch, tmp_path):
    """The folder of an environment, and a small program instead of the command that builds a line."""
    monkeypatch.setattr(listed, "COMMAND", (sys.executable, "-S", "-c", WORKER))
    return tmp_path / "swe"


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("# Python\nbugs a --count 2  # few\n\nreleases 'a b' c\nbugs a --count 2\n")
    assert read_lines(path, options_of) == ["bugs a --count 2", "releases 'a b' c"]
    for text, reason in (("\n", "has no line"), ("bugs a\nbugs", ":2: "), ("bugs 'a", ":1: No closing quotation")):
        path.write_text(text)
        with pytest.raises(DataError, match=reason):
            read_lines(path, options_of)
    with pytest.raises(DataError, match="cannot be read"):
        read_lines(tmp_path / "none", options_of)


@pytest.mark.parametrize("line", [
    "export swe", "bugs a --to b", "bugs a --minutes=3", "all list.txt", "bugs a --url http://here",
    "bugs a --url=http://here --model x", "bugs a --ur http://here",
])  # fmt: skip
def test_lines_that_the_command_refuses(tmp_path, monkeypatch, capsys, line):
    (tmp_path / "list.txt").write_text(f"bugs a\n{line}\n")
    words = ["all", str(tmp_path / "list.txt"), "--to", str(tmp_path / "swe")]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 2
    assert "list.txt:2: " in (error := capsys.readouterr().err) and error.count("\n") == 1


def test_lines_are_built_and_their_instances_move(worker, tmp_path):
    lines = ["bugs a", "bugs bare", "releases b c"]
    built = build_all(lines, worker, tmp_path / "archives", 2, 1)
    assert [(one.kinds, one.reason) for one in built] == [
        (("bug",), ""), ((), "bare cannot be set up: it has no tests (1 attempts)"), (("release",), ""),
    ]  # fmt: skip
    assert sorted(one.instance_id for one in read_instances(worker)) == ["a", "b"]
    assert len((worker / listed.LOG).read_text().splitlines()) == 3
    assert not (worker / listed.PARTS).exists()
    assert table_of(built).splitlines()[1].split() == ["python", "3", "2", "0", "2", "2", "1"]
    assert table_of(built).splitlines()[2:] == ["bugs bare: bare cannot be set up: it has no tests (1 attempts)"]


def test_a_second_run_builds_what_the_first_did_not_end(worker, tmp_path):
    first = build_all(["bugs a", "bugs slow"], worker, tmp_path, 2, 0.05)
    assert [one.reason for one in first] == ["", OUT_OF_TIME]
    (worker / listed.BUILT).write_text("")  # as if it was killed after the instance was written
    (worker / "trees/a/mark").touch()
    second = build_all(["bugs a", "bugs b"], worker, tmp_path, 1, 1)
    assert [one.kinds for one in second] == [("bug",), ("bug",)]
    assert [one.instance_id for one in read_instances(worker)] == ["a", "b"] and (worker / "trees/a/mark").exists()
    rows = (worker / listed.BUILT).read_text()
    assert build_all(["bugs b", "bugs a"], worker, tmp_path, 1, 1) == second[::-1]
    assert (worker / listed.BUILT).read_text() == rows


def test_a_line_whose_agent_does_not_answer_is_built_by_the_next_run(worker, tmp_path):
    agent = ["--url=http://here"]
    built = build_all(["bugs away", "bugs a"], worker, tmp_path, 1, 1, agent)
    assert [one.reason for one in built] == ["error: away: the agent's server gave no reply", ""]
    assert "away" not in (worker / listed.BUILT).read_text() and not (worker / "trees/away").exists()
    assert table_of(built).splitlines()[1].split() == ["(not", "read)", "1", "0", "0", "0", "0", "0"]
    (worker / "server").touch()
    built = build_all(["bugs away", "bugs a"], worker, tmp_path, 1, 1, agent)
    assert [one.by for one in built] == [AGENT, RULES] and not any(one.reason for one in built)
    assert table_of(built).splitlines()[1].split() == ["python", "2", "2", "1", "2", "2", "0"]
    assert len((worker / listed.LOG).read_text().splitlines()) == 3, "attempts of all runs are kept"


def test_an_agent_gets_the_lines_that_rules_could_not_set_up(worker, tmp_path):
    lines = ["bugs a", "bugs hard", "bugs bare"]
    built = build_all(lines, worker, tmp_path, 1, 1)
    assert [one.is_set_up for one in built] == [True, False, False]
    rows = (worker / listed.BUILT).read_text().splitlines()
    old = [{name: value for name, value in json.loads(row).items() if name != "by"} for row in rows]
    (worker / listed.BUILT).write_text("".join(json.dumps(row) + "\n" for row in old))  # of a release without agents
    built = build_all(lines, worker, tmp_path, 1, 1, ["--url=http://here"])
    assert [(one.is_set_up, one.by) for one in built] == [(True, RULES), (True, AGENT), (False, AGENT)]
    assert table_of(built).splitlines()[1].split() == ["python", "3", "2", "1", "2", "2", "0"]
    assert len((worker / listed.BUILT).read_text().splitlines()) == 5
    assert build_all(lines, worker, tmp_path, 1, 1, ["--url=http://here"]) == built
    assert len((worker / listed.BUILT).read_text().splitlines()) == 5, "an agent gets a line once"


def test_one_command_builds_in_a_folder(worker, tmp_path):
    worker.mkdir()
    with locked(worker), pytest.raises(ArcforgeError, match="is in use by process"):
        build_all(["bugs a"], worker, tmp_path, 1, 1)


@pytest.mark.timeout(1200)
@pytest.mark.nightly(reason="builds a repository, with a dozen runs of pytest in sandboxes")
def test_the_command_builds_a_list(repository, tmp_path, monkeypatch, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/a.py").write_text("A = 1\n")
    (tmp_path / "list.txt").write_text(f"bugs {repository} --count 1\nbugs {tmp_path}/empty\n")
    words = ["all", str(tmp_path / "list.txt"), "--to", str(tmp_path / "swe")]
    monkeypatch.setattr(sys, "argv", ["arcforge-env", "swe", *words])
    assert main() == 0
    [one] = read_instances(tmp_path / "swe")
    assert one.kind == "bug" and one.language == "python"
    said = capsys.readouterr().out.splitlines()
    assert said[1].split() == ["python", "2", "1", "0", "1", "1", "0"]
    assert "empty cannot be set up: it has no tests" in said[2]
    assert len((tmp_path / "swe" / FILE).read_text().splitlines()) == 1
