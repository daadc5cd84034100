"""Layers of wheels and of folders of this machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from arcforge_rl.layers.archives import fetch_release
from arcforge_rl.layers.debian import SPACE
from arcforge_rl.layers.downloads import Downloads
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.layers.store import LayerError, remove

SECONDS = 1800.0
QUIET = ("--disable-pip-version-check", "--no-input")
IGNORED = "Ignored the following"
"""In pip's lines about versions that do not fit, which are not the reason for which it gives up."""
OF_THE_INSTALLER = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Files that say who unpacked a wheel, and where."""


def fetch_wheels(recipe: Recipe, tree: Path, downloads: Downloads) -> list[str]:
    """Unpacks distributions, and what they need unless they are asked for alone, into a folder; no source is built.

    Directories of `Recipe.archives` are unpacked beside them. Without pip, uv installs and keeps no downloads.

    Raises:
        LayerError: the index cannot be reached or has no such wheel, there is no space, or pip and uv are missing.
    """
    target = tree / recipe.prefix.lstrip("/")
    target.mkdir(parents=True)
    asked = ["--only-binary", ":all:", *(["--no-deps"] if recipe.source == "wheels-alone" else []), *recipe.packages]
    if importlib.util.find_spec("pip"):
        pip = [sys.executable, "-m", "pip"]
        if downloads.known is None:
            _run(recipe, [*pip, "download", *QUIET, "--dest", str(downloads.folder), *asked])
        wheels = sorted(map(str, downloads.folder.glob("*.whl")))
        here = ["--no-compile", "--no-index", "--no-deps", "--target", str(target)]
        _run(recipe, [*pip, "install", *QUIET, *here, *wheels])
    else:
        _run(recipe, [_uv(recipe), "pip", "install", "--python", sys.executable, "--target", str(target), *asked])
    contents = _cleaned(target)
    for release in recipe.archives:  # one that is there needs no index
        _unpacked(fetch_release(release, downloads.folder), release.partition("==")[0], target)
    _compiled(target, recipe.prefix)
    return [*contents, *recipe.archives]


def _run(recipe: Recipe, command: Sequence[str]) -> None:
    """Runs an installer.

    Raises:
        LayerError: it fails.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LayerError("registry", f"layer {recipe.name}: the index gave no answer in {SECONDS:g} s") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and IGNORED not in line]
        reason = next((line for line in lines if line.startswith("ERROR:")), (lines or ["no reason given"])[-1])
        kind = "space" if any(sign in done.stderr for sign in SPACE) else "registry"
        raise LayerError(kind, f"layer {recipe.name}: {reason.removeprefix('ERROR: ')}")


def _unpacked(archive: Path, name: str, target: Path) -> None:
    """Unpacks a directory of a source archive, without its first component.

    Raises:
        LayerError: the archive has none, or leads elsewhere.
    """
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            inner = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if inner.parts[:1] != (name,):
                continue
            try:
                tar.extract(member.replace(name=str(inner), deep=False), target, filter="data")
            except tarfile.FilterError as error:
                raise LayerError("tampered", f"{archive.name}: {error}") from error
    if not (target / name).is_dir():
        raise LayerError("partial", f"{archive.name} has no directory {name}")


def _uv(recipe: Recipe) -> str:
    if (uv := shutil.which("uv")) is None:
        raise LayerError("tool", f"layer {recipe.name}: neither pip nor uv was found")
    return uv


def _cleaned(target: Path) -> list[str]:
    """Removes what differs between installations of the same wheels; returns names and versions."""
    found = []
    for info in sorted(target.glob("*.dist-info")):
        name, _, version = info.name.removesuffix(".dist-info").partition("-")
        found.append(f"{name}=={version}")
        for file in OF_THE_INSTALLER:
            (info / file).unlink(missing_ok=True)
    for path in [*target.rglob("__pycache__"), target / "bin"]:  # scripts there name this machine's interpreter
        if path.is_dir():
            remove(path)
    (target / ".lock").unlink(missing_ok=True)
    return found


def _compiled(target: Path, prefix: str) -> None:
    """Compiles a folder's modules for this interpreter, equally each time; sandboxes keep no compiled ones.

    Files that are no Python of this version are left as they are.
    """
    words = ["-P", "-s", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    command = [sys.executable, *words, "-s", str(target), "-p", prefix, str(target)]
    subprocess.run(command, env={"PYTHONHASHSEED": "0"}, stdout=subprocess.DEVNULL, timeout=SECONDS, check=False)


def fetch_installed(recipe: Recipe, tree: Path) -> list[str]:
    """Copies distributions of this interpreter's environment, with all that they need.

    Raises:
        LayerError: one is not installed, or not from a wheel.
    """
    target, found, left = tree / recipe.prefix.lstrip("/"), dict[str, str](), list(recipe.packages)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found:
            continue
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            reason = f"{name} is not installed in {sys.prefix}"
            raise LayerError("missing", f"layer {recipe.name}: {reason}") from error
        found[name] = f"{name}=={one.version}"
        left += [re.split(r"[^\w.-]", line)[0] for line in one.requires or () if _needed(line)]
        for file in one.files or ():
            skipped = ".." in file.parts or "__pycache__" in file.parts or file.name in OF_THE_INSTALLER
            if not skipped and os.path.isfile(file.locate()):
                place = target / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(os.fspath(file.locate()), place)
    _compiled(target, recipe.prefix)
    return sorted(found.values())


def _needed(requirement: str) -> bool:
    """Returns whether a requirement applies here, without extras."""
    marker = Requirement(requirement).marker
    return marker is None or marker.evaluate({"extra": ""})


def fetch_folder(recipe: Recipe, tree: Path) -> list[str]:
    """Copies a folder of this machine, such as a toolchain below a home.

    Raises:
        LayerError: it is none.
    """
    source = Path(recipe.packages[0]).expanduser()
    if not source.is_dir():
        raise LayerError("missing", f"layer {recipe.name}: {source} is not a directory")
    shutil.copytree(source, tree / recipe.prefix.lstrip("/"), symlinks=True, ignore=_special)
    return [os.fspath(source)]


def _special(folder: str, names: list[str]) -> set[str]:
    """Returns the names of devices, pipes and sockets."""
    paths = {name: Path(folder, name) for name in names}
    return {name for name, path in paths.items() if not (path.is_symlink() or path.is_file() or path.is_dir())}
