"""Source packages of Debian, with programs in place of apt's."""

import os
import shutil

import pytest

from arcforge_core.errors import DataError
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.debian import build_depends, fetch_source, patched

APT = """#!/bin/sh
echo "$*" >> {log}
case "$*" in
  *update*) grep -h Types {folder}/apt/parts/* >> {log}; exit 0 ;;
  *gone*) echo "E: Unable to find a source package for gone" >&2; exit 100 ;;
  *) touch toy_1.dsc ;;
esac
"""
DPKG = """#!/bin/sh
mkdir -p "$4/debian/patches" "$4/.pc"
printf 'a\\nthree\\nd\\n' > "$4/text"
printf 'first.patch\\n# words\\nsecond.patch -p1\\n' > "$4/debian/patches/series"
printf -- '--- a/text\\n+++ b/text\\n@@ -1,3 +1,3 @@\\n a\\n-one\\n+two\\n d\\n' > "$4/debian/patches/first.patch"
printf -- '--- a/text\\n+++ b/text\\n@@ -1,3 +1,3 @@\\n a\\n-two\\n+three\\n d\\n' > "$4/debian/patches/second.patch"
"""


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """Programs that act as apt-get and dpkg-source; returns the folder of packages, the log and apt's sources."""
    folder, log, places = tmp_path / "archives", tmp_path / "log", tmp_path / "sources.list.d"
    for path in (folder, places, tmp_path / "bin"):
        path.mkdir()
    (places / "debian.sources").write_text("Types: deb\nURIs: http://deb.example\nSuites: x\nComponents: main\n")
    for name, text in (("apt-get", APT.format(log=log, folder=folder)), ("dpkg-source", DPKG)):
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    return folder, log, [places]


def test_a_package_is_fetched_once_and_does_not_hold_its_patches(archive):
    folder, log, places = archive
    tree = fetch_source("debian:toy=1:2-3", folder, places)
    assert tree == folder / "toy-1_2-3" and (tree / "text").is_file()
    assert not (tree / "debian/patches").exists() and not (tree / ".pc").exists()
    said = log.read_text()
    assert "Types: deb-src" in said and "source --download-only -qq toy=1:2-3" in said
    assert fetch_source("debian:toy=1:2-3", folder, places) == tree and log.read_text() == said
    assert sorted(path.name for path in folder.iterdir()) == ["apt", "toy-1_2-3", "toy-1_2-3.patches"]


def test_trees_before_and_after_a_patch(archive, tmp_path):
    if shutil.which("patch") is None:
        pytest.skip("there is no patch")
    folder, _, places = archive
    tree = fetch_source("debian:toy", folder, places)
    for name, texts in (("first.patch", ("one", "two")), ("second.patch", ("two", "three"))):
        found = patched(tree, name, tmp_path / name)
        assert tuple(path.joinpath("text").read_text().split()[1] for path in found) == texts
    with pytest.raises(DataError, match=r"no patch 'third'; it has first\.patch, second\.patch"):
        patched(tree, "third", tmp_path / "third")
    (tree / "text").write_text("other\n")
    with pytest.raises(DataError, match=r"second\.patch cannot be undone"):
        patched(tree, "first.patch", tmp_path / "again")


def test_packages_that_are_refused(archive):
    folder, _, places = archive
    with pytest.raises(DataError, match="is not debian:NAME"):
        fetch_source("debian:../toy", folder, places)
    with pytest.raises(LayerError, match="Unable to find a source package for gone"):
        fetch_source("debian:gone", folder, places)
    assert not list(folder.glob("gone*"))


def test_what_a_source_package_builds_with(tmp_path):
    assert build_depends(tmp_path) == set()
    (tmp_path / "debian").mkdir()
    (tmp_path / "debian/control").write_text(
        "Source: toy\nBuild-Depends: debhelper-compat (= 13),\n libfoo-dev (>= 2) | libold-dev, php-json:native,\n"
        " toy-data <!nocheck>\nStandards-Version: 4\nBuild-Depends-Indep: ruby-x\n\nPackage: toy-data\nDepends: y\n"
    )
    assert build_depends(tmp_path) == {"debhelper-compat", "libfoo-dev", "libold-dev", "php-json", "ruby-x"}
    (tmp_path / "debian/control").write_text("Source: toy\nBuild-Depends: gem2deb")
    assert build_depends(tmp_path) == {"gem2deb"}
