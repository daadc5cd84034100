"""The view of a sandbox: layers, writable folders, and the path of the work directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcforge_core.contracts.sandbox import WORKSPACE, SandboxError

SYSTEM = ("/usr", "/etc")
"""Paths at which layers lie over the system's own files."""
TAKEN = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/dev", "/sys", "/tmp", *SYSTEM)
"""Paths that a sandbox has already."""
LONGEST = 200
"""Bytes of a path."""
MOST_LAYERS = 64
MOST_FOLDERS = 32


@dataclass(frozen=True)
class View:
    """Checked paths of one sandbox.

    Attributes:
        layers: path inside -> folders of the host, lower ones first.
        folders: writable by agents, read-only for the verifier.
        verifier_folders: writable by the verifier, invisible to agents.
        workdir: path of the work directory.
    """

    layers: dict[str, list[str]]
    folders: list[str]
    verifier_folders: list[str]
    workdir: str = WORKSPACE

    @property
    def plain(self) -> bool:
        """Whether a sandbox without views of its own can be opened so."""
        return not (self.layers or self.folders or self.verifier_folders) and self.workdir == WORKSPACE


def view_of(
    layers: Sequence[tuple[Path, str]],
    folders: Sequence[str],
    verifier_folders: Sequence[str],
    workdir: str,
    name: str,
    over: Sequence[str] | None,
    shown: Sequence[str] = (),
) -> View:
    """Checks the arguments of `SandboxBackend.open`.

    Args:
        layers, folders, verifier_folders, workdir: as there.
        name: of the backend.
        over: its `views`.
        shown: further paths that its sandboxes have.

    Raises:
        SandboxError: the backend has no views, a path is malformed or twice there, or a layer is not a directory.
    """
    at: dict[str, list[str]] = {}
    for folder, path in layers:
        if not folder.is_dir():
            raise SandboxError(f"layers: {folder} is not a directory")
        at.setdefault(_checked("layers", path), []).append(str(folder.absolute()))
    view = View(
        at,
        [_checked("folders", path) for path in folders],
        [_checked("verifier_folders", path) for path in verifier_folders],
        _checked("workdir", workdir),
    )
    if over is None:
        if not view.plain:
            given = "layers" if at else "folders" if folders else "verifier_folders" if verifier_folders else "workdir"
            raise SandboxError(f"{given}: {name} has no file system of its own; must be bubblewrap or docker")
        return view
    refused = [path for path in at if path in SYSTEM and path not in over]
    if refused:
        raise SandboxError(f"layers: {name} cannot lay a folder over its {refused[0]}; must be bubblewrap")
    for what, bound in (("layers", MOST_LAYERS), ("folders", MOST_FOLDERS)):
        count = len(layers) if what == "layers" else len(folders) + len(verifier_folders)
        if count > bound:
            raise SandboxError(f"{what}: {count} of them, must be at most {bound}")
    own = [*(path for path in at if path not in SYSTEM), *view.folders, *view.verifier_folders, view.workdir]
    taken = [*TAKEN, *shown]
    for place, path in enumerate(own):
        for other in (*taken, *own[:place]):
            if path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/"):
                raise SandboxError(f"{path}: must not be, contain or lie in {other}, which the sandbox has already")
    return view


def _checked(what: str, path: str) -> str:
    """Returns an absolute path in its normal form; raises `SandboxError` if it is none."""
    normal = (
        path.isprintable() and os.path.normpath(path) == path and path.startswith("/") and path[1:2] not in ("", "/")
    )
    if not normal or len(path.encode(errors="replace")) > LONGEST or ":" in path or "," in path:
        accepted = f"must be an absolute path without .., colons and commas, of at most {LONGEST} bytes"
        raise SandboxError(f"{what}: {path[:80]!r} {accepted}")
    return path
