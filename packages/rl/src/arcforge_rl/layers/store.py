"""The store of layers: folders named after the hash of their contents, with a manifest beside their files.

A layer is built in a partial folder under a lock and renamed when it is whole, so that a killed build leaves nothing
that could be taken for one. A layer's folder holds ``tree/``, which sandboxes show, and ``manifest.json``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_core.errors import DISK_FULL, ArcforgeError
from arcforge_core.files.cache import cache_folder
from arcforge_core.files.lock import locked
from arcforge_rl.layers.downloads import FILES, Downloads, DownloadStore, sha256_of
from arcforge_rl.layers.recipes import Recipe

MANIFEST = "manifest.json"
SHOWN = ("usr", "etc")
"""Top-level directories of a layer's tree; each is shown at ``/`` and its name."""
PARTIAL = ".partial-"
LONGEST_BUILD = 3600.0
"""Seconds for which a layer waits for those that other processes fetch."""


class LayerError(ArcforgeError):
    """A layer that cannot be fetched or must not be used.

    Attributes:
        kind: ``missing``, ``partial``, ``tampered``, ``architecture``, ``space``, ``registry`` or ``tool``.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Layer:
    """A layer in a store.

    Attributes:
        name: of its recipe.
        recipe: digest of its recipe.
        content: hash of its tree.
        architecture: of the machine that made it.
        bytes: size of its files.
        contents: packages with their versions.
        folder: where it is.
    """

    name: str
    recipe: str
    content: str
    architecture: str
    bytes: int
    contents: tuple[str, ...]
    folder: Path

    @property
    def shown(self) -> list[tuple[Path, str]]:
        """The argument ``layers`` of `SandboxBackend.open`."""
        tree = self.folder / "tree"
        return [(tree / name, f"/{name}") for name in SHOWN if (tree / name).is_dir()]

    def check(self) -> None:
        """Compares the tree with its hash.

        Raises:
            LayerError: it was changed, or is of another architecture.
        """
        self.check_architecture()
        if tree_hash(self.folder / "tree") != self.content:
            raise LayerError("tampered", f"layer {self.name} in {self.folder} was changed: free it and fetch it again")

    def check_architecture(self) -> None:
        """Raises `LayerError` if the layer is of another architecture than this machine."""
        if self.architecture != platform.machine():
            what = f"is for {self.architecture}, this machine is {platform.machine()}"
            raise LayerError("architecture", f"layer {self.name} in {self.folder} {what}: fetch it here")


Fetch = Callable[[Recipe, Path, Downloads], Sequence[str]]
"""Makes the tree of a recipe; see `LayerStore.ensure`."""


class LayerStore:
    """A folder of layers.

    Args:
        folder: None: ``layers`` in the cache of arcforge.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = cache_folder("layers") if folder is None else folder
        self.kept = DownloadStore(self.folder)

    def layers(self) -> list[Layer]:
        """Returns the layers, by name; partial ones are none.

        Raises:
            LayerError: a manifest cannot be read.
        """
        if not self.folder.is_dir():
            return []
        found = [self._read(path.parent) for path in sorted(self.folder.glob(f"[!.]*/{MANIFEST}"))]
        return sorted(found, key=lambda layer: (layer.name, layer.content))

    def find(self, recipe: Recipe) -> Layer:
        """Returns the layer of a recipe.

        Raises:
            LayerError: it is not in the store, or is of another architecture.
        """
        wanted = [layer for layer in self.layers() if (layer.name, layer.recipe) == (recipe.name, recipe.digest)]
        fitting = [layer for layer in wanted if layer.architecture == platform.machine()]
        for layer in wanted if not fitting else ():
            layer.check_architecture()
        if not fitting:
            fetch = f"fetch it with arcforge-env layers fetch {recipe.name}"
            raise LayerError("missing", f"layer {recipe.name} is not in {self.folder}: {fetch}")
        return fitting[-1]

    def ensure(self, recipe: Recipe, fetch: Fetch) -> Layer:
        """Returns the layer of a recipe; makes one that is not there, of kept downloads or of those that it fetches.

        Args:
            recipe: to make.
            fetch: puts the recipe's files into an empty folder, and what it downloads into another one, and returns its
                packages with their versions.

        Raises:
            LayerError: it cannot be fetched; nothing of it remains.
        """
        try:
            return self.find(recipe)
        except LayerError as error:
            if error.kind not in ("missing", "architecture"):
                raise
        with self._writing(LONGEST_BUILD):
            try:  # another process may have fetched it while this one waited
                return self.find(recipe)
            except LayerError as error:
                if error.kind not in ("missing", "architecture"):
                    raise
            partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=self.folder))
            try:
                for name in ("tree", FILES):
                    (partial / name).mkdir()
                if (lock := self.kept.lock(recipe)) is not None:
                    self.kept.lay(lock, partial / FILES)
                downloads = Downloads(partial / FILES, None if lock is None else lock.contents)
                contents = tuple(fetch(recipe, partial / "tree", downloads))
                return self._keep(recipe, partial, contents, None if lock is None else lock.content)
            except OSError as error:
                if error.errno in DISK_FULL:
                    raise LayerError("space", f"layer {recipe.name}: no space left in {self.folder}") from error
                raise LayerError("tool", f"layer {recipe.name}: {error}") from error
            finally:
                if partial.exists():
                    remove(partial)

    def free(self, layer: Layer) -> None:
        """Deletes a layer; sandboxes must not show it."""
        with self._writing():
            gone = self.folder / f"{PARTIAL}{layer.content}"
            layer.folder.rename(gone)
            remove(gone)

    def free_downloads(self, name: str) -> int:
        """Deletes the kept downloads of layers of a name; returns the freed bytes."""
        with self._writing():
            return self.kept.free(name)

    def _keep(self, recipe: Recipe, partial: Path, contents: tuple[str, ...], wanted: str | None) -> Layer:
        for path, text in recipe.links.items():
            link = partial / "tree/usr" / path
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(text)
            if not link.exists():
                raise LayerError("partial", f"layer {recipe.name}: /usr/{path} leads to {text}, which it does not have")
        tree = partial / "tree"
        strange = sorted(path.name for path in tree.iterdir() if path.name not in SHOWN)
        for name in strange:
            remove(tree / name)  # files of /var, /run and so on are of no use inside
        if not any(tree.iterdir()):
            raise LayerError("partial", f"layer {recipe.name} has no file in /usr or /etc")
        content = tree_hash(tree)
        if wanted not in (None, content):
            what = f"layer {recipe.name}, made of its kept downloads, is not the one that they made before"
            raise LayerError("tampered", f"{what}: arcforge-env layers free {recipe.name} --downloads, then fetch it")
        self.kept.take(recipe, content, contents, partial / FILES)
        remove(partial / FILES)
        size = sum(path.lstat().st_size for path in tree.rglob("*") if not path.is_dir())
        target = self.folder / f"{recipe.name}-{content[:16]}"
        layer = Layer(recipe.name, recipe.digest, content, platform.machine(), size, contents, target)
        (partial / MANIFEST).write_text(json.dumps({**asdict(layer), "folder": None}, indent=1) + "\n")
        if target.exists():  # another recipe with the same contents: its manifest is replaced
            remove(target)
        partial.rename(target)
        return layer

    def _read(self, folder: Path) -> Layer:
        path = folder / MANIFEST
        try:
            fields = json.loads(path.read_text())
            layer = Layer(**{**fields, "contents": tuple(fields["contents"]), "folder": folder})
        except (OSError, ValueError, TypeError, KeyError) as error:
            reason = f"{path} cannot be read ({error}): delete {folder} and fetch the layer again"
            raise LayerError("partial", reason) from error
        if not (folder / "tree").is_dir():
            raise LayerError(
                "partial", f"layer {layer.name} in {folder} has no tree: delete the folder and fetch again"
            )
        return layer

    @contextmanager
    def _writing(self, seconds: float = 0.0) -> Iterator[None]:
        """Holds the store's lock, for which it waits so long, and removes what killed builds left."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            kind = "space" if error.errno == errno.ENOSPC else "tool"
            raise LayerError(kind, f"{self.folder} cannot be made: {error.strerror}") from error
        with locked(self.folder, seconds):
            for left in self.folder.glob(f"{PARTIAL}*"):
                say(f"removing {left.name}, which a stopped build left")
                remove(left)
            yield


def tree_hash(tree: Path) -> str:
    """Returns a hash of paths, kinds, permissions and contents; times and owners do not count."""
    digest = hashlib.sha256()
    for path in sorted(tree.rglob("*"), key=lambda path: os.fsencode(path.relative_to(tree))):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            kind, data = "link", os.fsencode(os.readlink(path))
        elif stat.S_ISREG(mode):
            kind, data = f"file {stat.S_IMODE(mode) & 0o755:o}", sha256_of(path).encode()
        else:
            kind, data = "folder" if stat.S_ISDIR(mode) else "other", b""
        digest.update(b"%s\0%s\0%s\0" % (os.fsencode(path.relative_to(tree)), kind.encode(), data))
    return digest.hexdigest()


def remove(path: Path) -> None:
    """Deletes a file or a folder, read-only directories included."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o755)
    shutil.rmtree(path)
