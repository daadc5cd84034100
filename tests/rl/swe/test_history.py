"""Histories of git repositories are read without anything that a repository may say about programs or other folders."""

import os
import shutil

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.history import opened
from support.git_repositories import commit, git


@pytest.fixture
def source(tmp_path):
    """A repository with three commits: the second is a merge, the last one renames a file."""
    folder = tmp_path / "toy"
    commit(folder, "First", {"a.txt": "1\n", "b.sh": "echo\n"})
    git(folder, "checkout", "-q", "-b", "side")
    (folder / "b.sh").chmod(0o755)
    commit(folder, "On the side", {"a.txt": "2\n"})
    git(folder, "checkout", "-q", "main")
    git(folder, "merge", "-q", "--no-ff", "-m", "Merge branch 'side'\n\nWith a body", "side")
    commit(folder, "Rename", {"a.txt": None, 'ä "c.txt': "2\n"})
    return folder


def files_at(source, to, branch="", number=0):
    """Returns the texts of the files of a commit."""
    with opened(source) as history:
        history.check_out(history.commits(branch)[number].hash, to)
    return {str(path.relative_to(to)): path.read_text() for path in to.rglob("*") if path.is_file()}


def test_commits_by_first_parents(source):
    with opened(source) as history:
        last, merge = history.commits()
        assert (last.message, last.created) == ("Rename\n", "2024-05-06T05:08:09Z") and last.parents == (merge.hash,)
        assert dict(last.changed) == {"a.txt": {"100644"}, 'ä "c.txt': {"100644"}}
        assert len(merge.parents) == 2 and merge.message == "Merge branch 'side'\n\nWith a body\n"
        assert dict(merge.changed) == {"a.txt": {"100644"}, "b.sh": {"100644", "100755"}}
        assert history.commits("main~1") == [merge] and history.commits("main~1..main") == [last]
        assert [one.message for one in history.commits("side")] == ["On the side\n"]


def test_a_work_tree_a_bare_repository_and_a_bundle_are_equal(source, tmp_path):
    git(source, "pack-refs", "--all")
    git(source, "clone", "-q", "--bare", str(source), str(tmp_path / "toy.git"))
    git(source, "bundle", "create", "-q", str(tmp_path / "toy.bundle"), "--all")
    git(source, "bundle", "create", "-q", str(tmp_path / "one.bundle"), "main")
    found = []
    for number, name in enumerate(("toy", "toy.git", "toy.bundle", "one.bundle")):
        with opened(tmp_path / name) as history:
            found.append([*history.commits()])
        assert files_at(tmp_path / name, tmp_path / f"out{number}") == {"b.sh": "echo\n", 'ä "c.txt': "2\n"}
        assert os.access(tmp_path / f"out{number}/b.sh", os.X_OK)
    assert found[0] == found[1] == found[2] == found[3]


def test_hashes_of_the_longer_kind(tmp_path):
    folder = tmp_path / "long"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main", "--object-format=sha256")
    for text in "12":
        commit(folder, text, {"a.txt": text})
    git(folder, "bundle", "create", "-q", str(tmp_path / "long.bundle"), "--all")
    for source in (folder, tmp_path / "long.bundle"):
        with opened(source) as history:
            [one] = history.commits()
            assert len(one.hash) == 64 and one.message == "2\n"


def test_nothing_of_a_hostile_repository_runs(source, tmp_path):
    """A config with programs, hooks, filters, attributes that change an export, and replaced objects."""
    mark = tmp_path / "mark"
    script = tmp_path / "run"
    script.write_text(f"#!/bin/sh\ntouch {mark}\ncat\n")
    script.chmod(0o755)
    attributes = "*.txt filter=evil diff=evil export-ignore\nb.sh export-subst\n"
    commit(source, "Attributes", {".gitattributes": attributes, "b.sh": "$Format:%H$\n"})
    replaced = git(source, "commit-tree", "HEAD^{tree}", "-m", "Replaced")
    git(source, "replace", "HEAD~1", replaced)
    for name, value in {
        "core.fsmonitor": script, "core.hooksPath": tmp_path, "filter.evil.smudge": script,
        "diff.evil.textconv": script, "diff.external": script, "core.pager": script, "core.sshCommand": script,
        "core.worktree": tmp_path / "x",
        "log.showSignature": "true", "gpg.program": script, "include.path": tmp_path / "none", "core.bare": "nonsense",
        "extensions.worktreeConfig": "true", "remote.origin.url": f"ext::{script}", "protocol.ext.allow": "always",
        "remote.origin.promisor": "true", "extensions.partialClone": "origin",
    }.items():  # fmt: skip
        with (source / ".git/config").open("a") as file:
            section, key = name.rsplit(".", 1)
            first, _, second = section.partition(".")
            file.write(f"[{first}{f' {chr(34)}{second}{chr(34)}' if second else ''}]\n\t{key} = {value}\n")
    for hook in ("post-checkout", "reference-transaction", "fsmonitor-watchman"):
        shutil.copy(script, source / ".git/hooks" / hook)
    before = sorted((path, path.stat().st_mtime_ns) for path in source.rglob("*"))
    assert files_at(source, tmp_path / "out") == {
        ".gitattributes": attributes, "b.sh": "$Format:%H$\n", "ä \"c.txt": "2\n",
    }  # fmt: skip
    with opened(source) as history:
        assert [one.message for one in history.commits()][:2] == ["Attributes\n", "Rename\n"]
    assert not mark.exists()
    assert sorted((path, path.stat().st_mtime_ns) for path in source.rglob("*")) == before


def test_objects_elsewhere_are_not_read(source, tmp_path):
    git(source, "clone", "-q", "--shared", str(source), str(tmp_path / "shared"))
    git(source, "worktree", "add", "-q", str(tmp_path / "linked"), "side")
    (tmp_path / "by_link").mkdir()
    (tmp_path / "by_link/.git").symlink_to(source / ".git")
    for name, told in (("shared", "objects in another folder"), ("linked", "linked work tree or a submodule"),
                       ("by_link", "objects in another folder")):  # fmt: skip
        with pytest.raises(DataError, match=f"{name} .*{told}"), opened(tmp_path / name):
            pass


def test_links_and_submodules_are_left_out(source, tmp_path):
    (source / "loop").symlink_to("loop")
    (source / "out").symlink_to("/etc/passwd")
    hashed = git(source, "rev-parse", "HEAD")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{hashed},part")
    git(source, "add", "loop", "out")
    git(source, "commit", "-q", "-m", "Links")
    assert [*files_at(source, tmp_path / "files")] == [*files_at(source, tmp_path / "earlier", number=1)]
    with opened(source) as history:
        assert dict(history.commits()[0].changed) == {"loop": {"120000"}, "out": {"120000"}, "part": {"160000"}}


@pytest.mark.parametrize(
    ("path", "reason"), [("..", "no path inside"), (".", "no path inside"), ("a.txt", "cannot be written")]
)
def test_trees_that_leave_their_folder(source, tmp_path, path, reason):
    blob = git(source, "hash-object", "-w", "--stdin", given="evil\n")
    inner = git(source, "mktree", given=f"100644 blob {blob}\tevil\n")
    kind, hashed = ("tree", inner) if path != "a.txt" else ("blob", blob)
    rows = f"{'040000' if kind == 'tree' else '100644'} {kind} {hashed}\t{path}\n"
    tree = git(source, "mktree", given=rows + (f"040000 tree {inner}\t{path}\n" if kind == "blob" else ""))
    evil = git(source, "commit-tree", tree, "-p", "HEAD", "-m", "Evil")
    with opened(source) as history, pytest.raises(DataError, match=reason):
        history.check_out(evil, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


def test_missing_objects_are_not_fetched(source, tmp_path):
    git(source, "config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    git(source, "clone", "-q", "--bare", "--filter=blob:none", f"file://{source}", str(partial))
    with opened(partial) as history, pytest.raises(DataError, match="objects are missing, as in a partial clone"):
        history.check_out(history.commits()[0].hash, tmp_path / "out")


def test_shallow_clones_have_the_commits_that_are_there(source, tmp_path):
    for depth, count in ((2, 1), (1, 0)):
        clone = tmp_path / f"depth{depth}"
        git(source, "clone", "-q", "--depth", str(depth), f"file://{source}", str(clone))
        with opened(clone) as history:
            if count:
                assert [one.message for one in history.commits()] == ["Rename\n"]
            else:
                with pytest.raises(DataError, match="depth1 is a shallow clone without a commit and the one before"):
                    history.commits()


def test_sources_that_are_refused(source, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("# no bundle\n")
    (tmp_path / "loop").symlink_to("loop")
    for name in ("empty", "text", "loop", "none"):
        with (
            pytest.raises(DataError, match="is neither a folder with a git repository nor a bundle"),
            opened(tmp_path / name),
        ):
            pass
    git(source, "bundle", "create", "-q", str(tmp_path / "part.bundle"), "main~1..main")
    with (
        pytest.raises(DataError, match=r"part\.bundle: .*a bundle must have a whole history"),
        opened(tmp_path / "part.bundle"),
    ):
        pass
    commit(tmp_path / "single", "Only", {"a": "1"})
    git(tmp_path / "empty", "init", "-q")
    for name, branch, told in (
        ("single", "", "single has 1 commits in HEAD, and none with one before it"),
        ("empty", "", "empty has no commit"),
        ("toy", "gone", "--branch gone: is no commit of .*toy; its branches are main, side"),
        ("toy", "--all", "must be a branch"), ("toy", "a...b", "must be a branch"),
        ("toy", "main..gone", "is no commit"),
    ):  # fmt: skip
        with opened(tmp_path / name) as history, pytest.raises(DataError, match=told):
            history.commits(branch)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LayerError, match="git was not found"), opened(source):
        pass
