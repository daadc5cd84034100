"""Archives of npm's packages: fetched once by npm, stored with their hash, and never run."""

import io
import subprocess
import tarfile

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.command import main
from arcforge_rl.swe.npm import fetch_pack
from arcforge_rl.swe.sources import source_tree


@pytest.fixture
def npm(monkeypatch):
    """A stand-in for npm that packs one module; returns the command lines that it was given."""
    given = []

    def run(command, *, cwd, **_):
        given.append(command)
        name = command[2].removeprefix("@").replace("/", "-").replace("@", "-")
        with tarfile.open(cwd / f"{name}.tgz", "w:gz") as archive:
            member = tarfile.TarInfo("package/index.js")
            member.size = 2
            archive.addfile(member, io.BytesIO(b"1\n"))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr("arcforge_rl.layers.npm.subprocess.run", run)
    monkeypatch.setattr("arcforge_rl.layers.npm.shutil.which", lambda name: f"/usr/bin/{name}")
    return given


def test_an_archive_is_fetched_once(npm, tmp_path):
    packed = fetch_pack("npm:@scope/odd-name==1.0.2-rc.1", tmp_path)
    assert packed.name == "npm-scope-odd-name-1.0.2-rc.1.tgz"
    assert npm[0][1:4] == ["pack", "@scope/odd-name@1.0.2-rc.1", "--ignore-scripts"]
    with source_tree(packed) as tree:
        assert [path.name for path in tree.iterdir()] == ["index.js"]
    assert fetch_pack("npm:@scope/odd-name==1.0.2-rc.1", tmp_path) == packed and len(npm) == 1
    packed.write_bytes(b"another")
    with pytest.raises(LayerError, match=r"was changed since it was fetched") as error:
        fetch_pack("npm:@scope/odd-name==1.0.2-rc.1", tmp_path)
    assert error.value.kind == "tampered"


@pytest.mark.parametrize("source", ["npm:qs", "npm:qs==latest", "npm:../qs==1.0.0", "npm:a/b==1.0.0", "npm:==1.0.0"])
def test_sources_that_are_none(npm, tmp_path, source):
    with pytest.raises(DataError, match=r"is not npm:NAME==VERSION"):
        fetch_pack(source, tmp_path)
    assert not npm


def test_refusals_of_npm(monkeypatch, npm, tmp_path):
    def run(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "npm ERR! code E404\nnpm ERR! 404 Not Found - odd\n")

    monkeypatch.setattr("arcforge_rl.layers.npm.subprocess.run", run)
    with pytest.raises(LayerError, match=r"npm:odd==1\.0\.0: npm: 404 Not Found") as error:
        fetch_pack("npm:odd==1.0.0", tmp_path)
    assert error.value.kind == "registry" and not list(tmp_path.iterdir())


def test_the_command_takes_them(npm, tmp_path):
    with pytest.raises(DataError, match=r"^odd cannot be set up: it has no tests"):
        main(["bugs", "npm:odd==1.0.0", "--to", str(tmp_path / "swe")])
    assert (tmp_path / "swe/archives/npm-odd-1.0.0.tgz").is_file()
