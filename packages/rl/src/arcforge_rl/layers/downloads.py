"""Downloads of layers, kept by their hashes with a lock for each recipe: a layer is made again without a registry."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from arcforge_core.console.progress import say
from arcforge_rl.layers.recipes import Recipe

FILES, LOCKS = "downloads", "locks"
BLOCK = 1 << 20


@dataclass(frozen=True)
class Downloads:
    """Files of registries of which a layer is made.

    Attributes:
        folder: of the files.
        known: packages with their versions, where the files are those of an earlier build: no registry is asked. None:
            the files are to be fetched.
    """

    folder: Path
    known: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Lock:
    """The files of which a layer was made.

    Attributes:
        content: hash of its tree.
        contents: packages with their versions.
        files: name of a download -> its SHA-256, in hexadecimal.
    """

    content: str
    contents: tuple[str, ...]
    files: Mapping[str, str]


class DownloadStore:
    """Downloads and locks in the folder of a store.

    A lock is of this machine's architecture and interpreter, for which modules are compiled.
    """

    def __init__(self, store: Path) -> None:
        self.files, self.locks = store / FILES, store / LOCKS

    def lock(self, recipe: Recipe) -> Lock | None:
        """Returns the lock of a recipe if all of its files are there and whole."""
        path = self._path(recipe)
        if not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            lock = Lock(found["content"], tuple(found["contents"]), dict(found["files"]))
        except (ValueError, KeyError, TypeError) as error:
            say(f"{path} cannot be read ({error}): the layer is fetched from its registry")
            return None
        for name, digest in lock.files.items():
            file = self.files / digest
            if not file.is_file() or sha256_of(file) != digest:
                say(f"{name} of layer {recipe.name} is missing or was changed: the layer is fetched from its registry")
                return None
        return lock

    def lay(self, lock: Lock, folder: Path) -> None:
        """Puts the files of a lock into a folder under their names."""
        for name, digest in lock.files.items():
            shutil.copyfile(self.files / digest, folder / name)

    def take(self, recipe: Recipe, content: str, contents: Sequence[str], folder: Path) -> None:
        """Keeps the files of a folder, and writes the lock; a recipe without files has none."""
        names = {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()}
        if not names:
            return
        self.files.mkdir(exist_ok=True)
        self.locks.mkdir(exist_ok=True)
        for name, digest in names.items():
            os.replace(folder / name, self.files / digest)
        path = self._path(recipe)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(Lock(content, tuple(contents), names)), indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def free(self, name: str) -> int:
        """Deletes the locks of layers of a name, and files that no other lock has; returns the freed bytes."""
        for path in self._all():
            if path.stem.rsplit("-", 2)[0] == name:
                path.unlink()
        used = {digest for path in self._all() for digest in json.loads(path.read_text())["files"].values()}
        freed = 0
        for file in self.files.iterdir() if self.files.is_dir() else ():
            if file.name not in used:
                freed += file.stat().st_size
                file.unlink()
        return freed

    def _all(self) -> list[Path]:
        return sorted(self.locks.glob("*.json")) if self.locks.is_dir() else []

    def _path(self, recipe: Recipe) -> Path:
        here = f"{platform.machine()}-{sys.implementation.cache_tag}"
        return self.locks / f"{recipe.name}-{recipe.digest}-{here.replace('-', '_')}.json"


def sha256_of(path: Path) -> str:
    """Returns the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
