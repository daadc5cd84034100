"""The verifier's program: each rule holds for the right thing only, and links and special files are no answers."""

import hashlib
import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.terminal import checks
from arcforge_rl.terminal.rewards import of_json, of_text, total
from arcforge_rl.terminal.trees import pack, unpack


def holds(kind, *words, **more):
    try:
        checks.CHECKS[kind](*map(str, words), **more)
    except checks.Flaw:
        return False
    return True


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_texts(tmp_path):
    path = tmp_path / "answer"
    assert not holds("lines", path, lines=[])
    path.write_text("a \nb\n\n")
    assert holds("lines", path, lines=["a", "b"]) and not holds("lines", path, lines=["a"])
    assert not holds("lines", path, lines=["a", "c"]) and holds("same", path, sha256=sha("a \nb\n\n"))
    path.write_text('{"a": [1, 2.5, true]}')
    assert holds("json", path, value={"a": [1, 2.5, True]}) and not holds("json", path, value={"a": [1, 2.5, 1]})
    assert not holds("json", path, value={"a": [1, 2.5, True], "b": 0}) and not holds("json", path, value=[])
    path.write_text('a,"b, c"\n\n1,2\n')
    assert holds("rows", path, rows=[["a", "b, c"], ["1", "2"]]) and not holds("rows", path, rows=[["1", "2"]])
    path.write_bytes(b"\xff")
    assert not any(holds(kind, path, **{name: []}) for kind, name in (("lines", "lines"), ("json", "value")))


def test_links_pipes_and_folders_are_no_answers(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a").write_text("x")
    os.symlink(tmp_path / "real", tmp_path / "linked")
    os.symlink(tmp_path / "real/a", tmp_path / "alias")
    os.mkfifo(tmp_path / "pipe")
    assert holds("same", tmp_path / "real/a", sha256=sha("x"))
    for name in ("linked/a", "alias", "pipe", "real", "missing"):
        assert not holds("same", tmp_path / name, sha256=sha("x")), name
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(checks.LARGEST + 1)
    assert not holds("lines", tmp_path / "huge", lines=[])


def test_trees_and_archives(tmp_path):
    tree = tmp_path / "tree"
    (tree / "in").mkdir(parents=True)
    (tree / "in/a").write_text("1")
    wanted = {"in/a": sha("1")}
    assert holds("tree", tree, files=wanted)
    assert not holds("tree", tree, files={**wanted, "b": sha("")}) and not holds("tree", tree, files={"in/a": sha("2")})
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tree, ".")
    assert holds("archive", tmp_path / "a.tar", files=wanted) and not holds("archive", tmp_path / "a.tar", files={})
    os.symlink("/etc", tree / "link")
    assert not holds("tree", tree, files=wanted)
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        archive.add(tree, ".")
    assert not holds("archive", tmp_path / "b.tar", files=wanted) and not holds("archive", tree / "in/a", files={})


def test_databases(tmp_path):
    path = tmp_path / "x.db"
    base = sqlite3.connect(path)
    base.executescript("CREATE TABLE t (a, b); INSERT INTO t VALUES (1, 'x'), (2, NULL);")
    query = "SELECT a, b FROM t ORDER BY 1"
    assert holds("sqlite", path, queries=[(query, [[1, "x"], [2, None]])])
    assert not holds("sqlite", path, queries=[(query, [[1, "x"]])])
    assert not holds("sqlite", path, queries=[("SELECT * FROM nothing", [])])
    base.executescript("""DROP TABLE t; CREATE VIEW t AS WITH RECURSIVE r(a) AS (SELECT 1 UNION ALL SELECT a FROM r)
        SELECT count(*) AS a, 1 AS b FROM r;""")
    base.close()
    assert not holds("sqlite", path, queries=[(query, [[1, 1]])])  # which would never end


def test_repositories(tmp_path):
    def git(*words):
        subprocess.run(["git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=b", *words], check=True)

    git("init", "-q", "-b", "main")
    (tmp_path / "f").write_text("one\n")
    git("add", "f")
    git("commit", "-q", "-m", "first")
    git("config", "alias.log", "!touch ran")
    git("config", "core.fsmonitor", "touch ran")
    shown = ["show", "main:f"], "one\n", False
    assert holds("git", tmp_path, commands=[shown, (["log", "--format=%s"], "fir", True)])
    assert not holds("git", tmp_path, commands=[(["log", "--format=%s"], "fir", False)])
    assert not holds("git", tmp_path, commands=[(["show", "other:f"], "one\n", False)])
    assert not (tmp_path / "ran").exists()
    assert not holds("git", tmp_path / ".git", commands=[])


def test_the_program(tmp_path):
    (tmp_path / "a").write_text("x\n")
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps([{"kind": "lines", "path": str(tmp_path / "a"), "lines": ["x"]}] * 2))

    def ran():
        done = subprocess.run(
            [sys.executable, "-I", checks.__file__, rules], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout.strip()

    assert ran() == (0, "2 rules hold")
    (tmp_path / "a").write_text("y\n")
    assert ran() == (1, f"{tmp_path}/a: line 1 is not as wanted")


@pytest.mark.parametrize(
    ("data", "rewards"),
    [(b"1", {"reward": 1.0}), (b'{"a": 0, "b": 1}', {"a": 0.0, "b": 1.0}), (b'{"reward": 0.5}', {"reward": 0.5})],
)
def test_rewards(data, rewards):
    assert of_json(data) == rewards and of_text(b" 0.25\n") == {"reward": 0.25}
    assert 0 <= total(rewards) <= 1


@pytest.mark.parametrize("data", [b"", b"nan", b"inf", b"-inf", b"1e999", b"1 1", b"yes", b"\xff", b"\0"])
def test_texts_that_are_no_rewards(data):
    with pytest.raises(DataError, match=r"^reward\.txt: "):
        of_text(data)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[1]", b"null", b"true", b'"1"', b"NaN", b"Infinity", b"1e999", b'{"reward": true}', b"[" * 10_000,
        b'{"reward": {"reward": 1}}', b'{"reward": null}', b"1" * 400,
    ],
)  # fmt: skip
def test_json_that_is_no_reward(data):
    with pytest.raises(DataError, match=r"^reward\.json: ") as error:
        of_json(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [-0.1, 1.1, 1e308])
def test_rewards_out_of_scale(value):
    with pytest.raises(DataError, match="must be in"):
        total({"reward": value})


def test_packed_trees(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "in").mkdir(parents=True)
    (source / "in/a").write_bytes(b"1")
    (source / "in/a").chmod(0o640)
    os.symlink("/etc/passwd", source / "link")
    os.mkfifo(source / "pipe")
    (source / "in").chmod(0o750)
    target.mkdir()
    data = pack(source)
    unpack(data, target)
    assert {path.name for path in target.rglob("*")} == {"in", "a", "link"}
    assert (target / "in/a").stat().st_mode & 0o777 == 0o640 and (target / "in").stat().st_mode & 0o777 == 0o750
    assert os.readlink(target / "link") == "/etc/passwd"
    (part := tmp_path / "part").mkdir()
    unpack(data, part, "in")
    assert [path.name for path in part.iterdir()] == ["in"]
    for bad in (b"", b"no archive", _archive("../up"), _archive("/up")):
        with pytest.raises(DataError):
            unpack(bad, tmp_path)


def _archive(name):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def test_trees_that_are_too_large(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12345")
    monkeypatch.setattr("arcforge_rl.terminal.trees.LARGEST", 4)
    with pytest.raises(DataError, match="MiB"):
        pack(tmp_path)
