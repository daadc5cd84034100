"""Layers are whole or not there, and name their fault in one line."""

import errno
import importlib.util
import json
import marshal
import multiprocessing
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from arcforge_core.errors import ArcforgeError, ConfigError
from arcforge_rl.cli import main
from arcforge_rl.layers.command import try_out
from arcforge_rl.layers.debian import alternatives, closure, fetch_debian, finish_java, finish_php, merge
from arcforge_rl.layers.downloads import Downloads
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import KNOWN, Recipe, recipe_of
from arcforge_rl.layers.store import PARTIAL, LayerError, LayerStore, tree_hash
from arcforge_rl.layers.wheels import fetch_wheels


@pytest.fixture
def tool(tmp_path):
    """A toolchain in a folder of this machine."""
    (tmp_path / "tool/bin").mkdir(parents=True)
    program = tmp_path / "tool/bin/greet"
    program.write_text("#!/bin/sh\necho hello from a layer\n")
    program.chmod(0o755)
    return Recipe("tool", "folder", (str(tmp_path / "tool"),), {"bin/greet": "../lib/tool/bin/greet"}, "/usr/lib/tool")


@pytest.fixture
def store(tmp_path):
    return LayerStore(tmp_path / "store")


def test_a_folder_becomes_a_layer_that_works(tool, store, monkeypatch):
    layer = ensure(tool, store)
    assert [at for _, at in layer.shown] == ["/usr"] and layer == ensure(tool, store) == store.find(tool)
    layer.check()
    checked = Recipe(tool.name, tool.source, tool.packages, tool.links, tool.prefix, ("greet",))
    monkeypatch.setitem(KNOWN, "tool", checked)
    assert try_out(layer) == "hello from a layer"
    store.free(layer)
    assert store.layers() == [] and not layer.folder.exists()


def test_the_same_contents_have_the_same_hash(tool, store, tmp_path):
    first, second = ensure(tool, store), ensure(tool, LayerStore(tmp_path / "other"))
    assert first.content == second.content and first.folder.name == second.folder.name


def test_a_tampered_layer_is_named(tool, store):
    layer = ensure(tool, store)
    file = layer.folder / "tree/usr/lib/tool/bin/greet"
    for change in (lambda: file.write_text("#!/bin/sh\necho bad\n"), lambda: file.chmod(0o644), file.unlink):
        change()
        with pytest.raises(LayerError, match="was changed: free it") as error:
            layer.check()
        assert error.value.kind == "tampered"
        store.free(layer)
        layer = ensure(tool, store)


def test_a_layer_of_another_architecture(tool, store):
    layer = ensure(tool, store)
    manifest = layer.folder / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "architecture": "pdp11"}))
    with pytest.raises(LayerError, match=f"for pdp11, this machine is {platform.machine()}") as error:
        store.find(tool)
    assert error.value.kind == "architecture"


def test_a_manifest_that_is_cut_off(tool, store):
    layer = ensure(tool, store)
    (layer.folder / "manifest.json").write_text('{"name": "to')
    with pytest.raises(LayerError, match="cannot be read") as error:
        store.layers()
    assert error.value.kind == "partial"


@pytest.mark.parametrize(
    ("error", "kind"),
    [(OSError(errno.ENOSPC, "No space left on device"), "space"), (LayerError("registry", "down"), "registry")],
)
def test_a_fetch_that_fails_leaves_nothing(tool, store, error, kind):
    def fetch(recipe, tree, downloads):
        (tree / "usr").mkdir()
        raise error

    with pytest.raises(LayerError) as found:
        store.ensure(tool, fetch)
    assert found.value.kind == kind and "\n" not in str(found.value)
    assert store.layers() == [] and not list(store.folder.glob(f"{PARTIAL}*"))
    assert ensure(tool, store).content, "and the next one works"


def test_what_a_killed_build_left_is_removed(tool, store):
    left = store.folder / f"{PARTIAL}killed/tree/usr"
    left.mkdir(parents=True)
    left.chmod(0o555)
    ensure(tool, store)
    assert not list(store.folder.glob(f"{PARTIAL}*")) and len(store.layers()) == 1


def test_a_cached_layer_needs_no_registry(tool, store):
    ensure(tool, store)

    def fetch(recipe, tree, downloads):
        raise LayerError("registry", "down")

    assert store.ensure(tool, fetch) == store.find(tool)


def hold(folder, ready, done):
    store = LayerStore(folder)
    with store._writing():
        ready.set()
        done.wait(20)


def test_two_builders_at_once(tool, store):
    """The second one waits for the first; commands that free layers are refused with its id."""
    context = multiprocessing.get_context("fork")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=hold, args=(store.folder, ready, done))
    other.start()
    assert ready.wait(20)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ensure, tool, store)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        with pytest.raises(ArcforgeError, match=f"in use by process {other.pid}"), store._writing():
            pass
        done.set()
        other.join()
        assert waiting.result(20).content == ensure(tool, store).content


def test_the_command(store, monkeypatch, capsys):
    def run(*words):
        monkeypatch.setattr(sys, "argv", ["arcforge-env", "layers", *words, "--store", str(store.folder)])
        return main()

    assert run() == 0 and "not fetched" in capsys.readouterr().out
    for words, said in (
        (("fetch", "gp"), "layer='gp'"),
        (("fetch",), "name at least one"),
        (("verify", "go"), "layer go is not in"),
        (("clean",), "invalid choice"),
    ):
        assert run(*words) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_recipes():
    assert recipe_of("go").packages == ("golang-go",)
    with pytest.raises(ConfigError, match="did you mean 'chromium'"):
        recipe_of("chromum")
    for fields in (("x", "git", ("a",)), ("x", "debian", ()), ("x", "wheels", ("a",))):
        with pytest.raises(ConfigError):
            Recipe(*fields)
    one = Recipe("x", "debian", ("a", "b"))
    assert one.digest == Recipe("x", "debian", ("b", "a")).digest != Recipe("x", "debian", ("a",)).digest


def test_what_scripts_of_packages_would_have_done(tmp_path):
    tree = tmp_path
    for path in (
        "bin/sh-like",
        "usr/bin/php8.2",
        "usr/lib/jvm/j17/bin/javac",
        "usr/bin/real",
        "lib/x/y",
        "usr/lib/x/z",
    ):
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(path)
    settings = tree / "usr/share/php8.2-xml/xml/dom.ini"
    settings.parent.mkdir(parents=True)
    settings.write_text("; priority=15\nextension=dom.so\n")
    alternatives("update-alternatives \\\n  --install /usr/bin/name name /usr/bin/real 50 \\\n", tree)
    merge(tree)
    finish_java(tree)
    finish_php(tree)
    assert (tree / "usr/bin/name").read_text() == "usr/bin/real"
    assert (tree / "usr/bin/sh-like").exists() and not (tree / "bin").exists()
    assert sorted(path.name for path in (tree / "usr/lib/x").iterdir()) == ["y", "z"]
    assert (tree / "usr/bin/javac").resolve() == tree / "usr/lib/jvm/j17/bin/javac"
    assert (tree / "usr/bin/php").read_text() == "usr/bin/php8.2"
    assert (tree / "etc/php/8.2/cli/conf.d/15-dom.ini").read_text().endswith("dom.so\n")


APT = """#!/bin/sh
case "$*" in
*update*) echo 'E: Failed to fetch http://archive: cannot connect' >&2; exit 100 ;;
*simulate*) echo 'Inst tool (1.2 Debian:12 [amd64])'; echo 'Inst lib [1.0] (1.1 Debian:12 [amd64])' ;;
*) echo "E: You don't have enough free space in /var/cache" >&2; exit 100 ;;
esac
"""


def test_debian_without_archive_or_space(tmp_path, monkeypatch):
    program = tmp_path / "bin/apt-get"
    program.parent.mkdir()
    program.write_text(APT)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    recipe, lists, tree = Recipe("tool", "debian", ("tool", "own")), tmp_path / "lists", tmp_path / "build/tree"
    tree.mkdir(parents=True)
    assert closure(recipe, ()) == ["lib=1.1", "own", "tool=1.2"]
    with pytest.raises(LayerError, match="cannot be reached: E: Failed to fetch") as error:
        fetch_debian(recipe, tree, Downloads(tmp_path), lists)
    assert error.value.kind == "registry"
    (lists / "lists/archive_Packages.lz4").touch()  # lists of an earlier call
    with pytest.raises(LayerError, match="enough free space") as error:
        fetch_debian(recipe, tree, Downloads(tmp_path), lists)
    assert error.value.kind == "space"
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LayerError, match="apt-get was not found"):
        fetch_debian(recipe, tree, Downloads(tmp_path), lists)


def test_modules_are_compiled_equally_each_time(tmp_path):
    recipe = Recipe("ini", "installed", ("iniconfig",), prefix="/usr/lib/arcforge/ini")
    first, second = (ensure(recipe, LayerStore(tmp_path / name)) for name in "ab")
    assert first.content == second.content
    place = first.folder / "tree/usr/lib/arcforge/ini/iniconfig/exceptions.py"
    data = Path(importlib.util.cache_from_source(str(place))).read_bytes()
    assert data[4:8] == b"\x01\0\0\0"  # no time or size of a source is compared
    assert marshal.loads(data[16:]).co_filename == "/usr/lib/arcforge/ini/iniconfig/exceptions.py"


def test_the_reason_of_pip_names_the_package(tmp_path, monkeypatch):
    said = (
        "ERROR: Ignored the following versions that require a different python version: 1.9.5 Requires-Python <3\n"
        "ERROR: Could not find a version that satisfies the requirement odd-one (from versions: none)\n"
        "ERROR: No matching distribution found for odd-one\n"
    )
    failed = CompletedProcess((), 1, "", said)
    monkeypatch.setattr("arcforge_rl.layers.wheels.subprocess.run", lambda *_, **__: failed)
    recipe = Recipe("site", "wheels", ("odd-one",), prefix="/usr/lib/site")
    with pytest.raises(LayerError, match=r"layer site: Could not find a version .* the requirement odd-one") as error:
        fetch_wheels(recipe, tmp_path, Downloads(tmp_path))
    assert error.value.kind == "registry"


def test_the_hash_sees_names_kinds_and_contents(tmp_path):
    seen = set()
    for change in (
        lambda: (tmp_path / "a").write_text("1"),
        lambda: (tmp_path / "a").write_text("2"),
        lambda: (tmp_path / "a").rename(tmp_path / "b"),
        lambda: (tmp_path / "a").symlink_to("b"),
        lambda: (tmp_path / "c").mkdir(),
        lambda: (tmp_path / "b").chmod(0o755),
    ):
        change()
        seen.add(tree_hash(tmp_path))
    assert len(seen) == 6


@pytest.mark.network
def test_a_package_is_fetched_and_runs(store):
    layer = ensure(recipe_of("jq"), store)
    layer.check()
    assert try_out(layer).startswith("jq-") and any(one.startswith("jq=") for one in layer.contents)
