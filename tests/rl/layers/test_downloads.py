"""A layer that was freed is made again of its kept downloads, without a registry, with the same contents."""

import json
import zipfile

import pytest

from arcforge_core.errors import ArcforgeError
from arcforge_rl.layers.command import main
from arcforge_rl.layers.downloads import FILES, LOCKS, Downloads
from arcforge_rl.layers.fetch import ensure
from arcforge_rl.layers.recipes import Recipe, recipe_of
from arcforge_rl.layers.store import LayerError, LayerStore

NOWHERE = "http://127.0.0.1:1"
GREET = Recipe("greet", "wheels", ("greet",), prefix="/usr/lib/arcforge/greet")


@pytest.fixture
def store(tmp_path):
    return LayerStore(tmp_path / "store")


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder with two wheels, of which one needs the other; pip finds nothing else."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name, needs in (("greet", "Requires-Dist: words\n"), ("words", "")):
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", f"NAME = {name!r}\n")
            info = f"{name}-1.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def without(index):
    """Takes the wheels away."""
    for wheel in index.iterdir():
        wheel.unlink()


def test_wheels_are_installed_again_without_an_index(index, store):
    first = ensure(GREET, store)
    assert first.contents == ("greet==1.0", "words==1.0")
    store.free(first)
    without(index)
    again = ensure(GREET, store)
    assert again == first and (again.folder / "tree/usr/lib/arcforge/greet/words/__init__.py").is_file()
    assert not (again.folder / FILES).exists()
    again.check()
    assert main(["free", "greet", "--downloads", "--store", str(store.folder)]) == 0
    assert not [*(store.folder / FILES).iterdir()] and not [*(store.folder / LOCKS).iterdir()]
    with pytest.raises(LayerError, match="greet") as error:
        ensure(GREET, store)
    assert error.value.kind == "registry"


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_bytes(b"no wheel")])
def test_downloads_that_are_missing_or_changed_are_fetched(index, store, capsys, damage):
    first = ensure(GREET, store)
    store.free(first)
    for file in (store.folder / FILES).iterdir():
        damage(file)
    assert ensure(GREET, store) == first
    assert "of layer greet is missing or was changed: the layer is fetched from its registry" in capsys.readouterr().err


def test_a_lock_that_cannot_be_read_is_said(index, store, capsys):
    store.free(first := ensure(GREET, store))
    (lock,) = (store.folder / LOCKS).iterdir()
    lock.write_text('{"content": ')
    assert ensure(GREET, store) == first and "cannot be read" in capsys.readouterr().err


def test_a_layer_that_comes_out_otherwise_is_refused(index, store):
    store.free(ensure(GREET, store))
    (path,) = (store.folder / LOCKS).iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "content": "0" * 64}))
    with pytest.raises(LayerError, match="layers free greet --downloads, then fetch it") as error:
        ensure(GREET, store)
    assert error.value.kind == "tampered" and store.layers() == []


def test_files_that_another_layer_uses_stay(store):
    def fetch(recipe, tree, downloads):
        (tree / "usr").mkdir()
        (tree / "usr" / recipe.name).write_text("x")
        if downloads.known is None:
            (downloads.folder / "shared").write_text("shared")
            (downloads.folder / recipe.name).write_text(recipe.name)
        return sorted(path.name for path in downloads.folder.iterdir())

    recipes = [Recipe(name, "debian", (name,)) for name in ("one-of-two", "two")]
    layers = [store.ensure(recipe, fetch) for recipe in recipes]
    assert len([*(store.folder / FILES).iterdir()]) == 3
    assert store.free_downloads("one-of-two") == len("one-of-two")
    store.free(layers[1])
    assert store.ensure(recipes[1], fetch) == layers[1]
    assert len([*(store.folder / FILES).iterdir()]) == 2


def test_a_build_that_fails_keeps_nothing(store):
    def fetch(recipe, tree, downloads):
        (downloads.folder / "half").write_text("x")
        raise LayerError("registry", "down")

    with pytest.raises(LayerError):
        store.ensure(GREET, fetch)
    assert not (store.folder / FILES).exists() and not (store.folder / LOCKS).exists()


def test_known_downloads_are_those_of_before(store):
    seen = []

    def fetch(recipe, tree, downloads: Downloads):
        seen.append((downloads.known, sorted(path.name for path in downloads.folder.iterdir())))
        (tree / "usr").mkdir()
        (tree / "usr/file").write_text("x")
        (downloads.folder / "a.deb").write_text("a")
        return ["a=1"]

    store.free(store.ensure(GREET, fetch))
    store.ensure(GREET, fetch)
    assert seen == [(None, []), (("a=1",), ["a.deb"])]


def test_the_option_is_of_free_alone(store):
    with pytest.raises(ArcforgeError, match="--downloads: is an option of free, not of fetch"):
        main(["fetch", "jq", "--downloads", "--store", str(store.folder)])


@pytest.mark.network
@pytest.mark.parametrize(
    "recipe",
    [recipe_of("jq"), recipe_of("pytest"), Recipe("tap", "npm", ("tape@5.9.0",), prefix="/usr/lib/arcforge/tap"),
     Recipe("old", "wheels-alone", ("hashids==1.3.1",), prefix="/usr/lib/old", archives=("jericho==3.3.1",))],
    ids=lambda recipe: recipe.source,
)  # fmt: skip
def test_every_source_makes_its_layer_again_without_a_registry(recipe, store, monkeypatch):
    first = ensure(recipe, store)
    store.free(first)
    for name in ("PIP_INDEX_URL", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, NOWHERE)
    for name in ("no_proxy", "NO_PROXY", "PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    assert ensure(recipe, store) == first
    with pytest.raises(LayerError):
        ensure(recipe, LayerStore(store.folder.parent / "other"))
