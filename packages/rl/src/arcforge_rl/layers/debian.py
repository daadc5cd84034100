"""Layers of Debian packages: the host's sources with lists of our own; nothing is installed and nobody is root.

Scripts of packages do not run. Effects that programs need are produced here: alternatives that are named
literally, the tools of a JDK, and PHP's configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from arcforge_rl.layers.downloads import Downloads
from arcforge_rl.layers.recipes import Recipe
from arcforge_rl.layers.store import LayerError, remove

SECONDS = 1800.0
"""For each call of apt-get or dpkg-deb."""
MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Directories of packages that are below /usr on a system with merged directories."""
ALTERNATIVE = re.compile(r"update-alternatives\s+--install\s+(/usr/\S+)\s+\S+\s+(/usr/\S+)\s")
SPACE = ("No space left", "don't have enough free space", "not enough free space")


def fetch_debian(recipe: Recipe, tree: Path, downloads: Downloads, lists: Path) -> list[str]:
    """Puts packages, and what they need and the host lacks, into a folder.

    Args:
        recipe: names the packages.
        tree: empty folder.
        downloads: the packages.
        lists: folder in which the archive's lists are kept for later calls.

    Raises:
        LayerError: the archive cannot be reached, a package is unknown, there is no space, or apt-get is missing.
    """
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise LayerError("tool", f"layer {recipe.name}: {program} was not found; its source is Debian's archive")
    wanted = _downloaded(recipe, downloads.folder, lists) if downloads.known is None else downloads.known
    for archive in sorted(downloads.folder.glob("*.deb")):
        _run(recipe, ["dpkg-deb", "-x", str(archive), str(tree)])
        with tempfile.TemporaryDirectory(dir=tree.parent) as place:
            control = Path(place) / "control"
            _run(recipe, ["dpkg-deb", "-e", str(archive), str(control)])
            if (control / "postinst").is_file():
                alternatives((control / "postinst").read_text(errors="replace"), tree)
    merge(tree)
    finish_java(tree)
    finish_php(tree)
    return sorted(wanted)


def _downloaded(recipe: Recipe, folder: Path, lists: Path) -> list[str]:
    """Downloads packages, and what they need and the host lacks; returns them with their versions."""
    options = _options(lists)
    updated = _run(recipe, ["apt-get", *options, "update", "-qq"], check=False)
    if updated.returncode and not any((lists / "lists").glob("*_Packages*")):
        raise LayerError("registry", f"layer {recipe.name}: Debian's archive cannot be reached: {_reason(updated)}")
    wanted = closure(recipe, options)
    _run(recipe, ["apt-get", *options, "download", "-qq", *wanted], cwd=str(folder))
    return wanted


def closure(recipe: Recipe, options: Sequence[str]) -> list[str]:
    """Returns ``package=version`` of the packages and of all that would be installed with them."""
    install = ["install", "--simulate", "--no-install-recommends", "-y", *recipe.packages]
    listed = _run(recipe, ["apt-get", *options, *install]).stdout
    found = dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+) ", listed, re.MULTILINE))
    own = set(recipe.packages) - found.keys()  # the host has them; the layer must hold them all the same
    return sorted([*(f"{name}={version}" for name, version in found.items()), *own])


def _options(lists: Path) -> list[str]:
    """Returns apt's options: state and cache in a folder of ours, without locks and users of the system."""
    for name in ("lists/partial", "archives/partial"):
        (lists / name).mkdir(parents=True, exist_ok=True)
    settings = {
        "Dir::State": lists, "Dir::State::lists": lists / "lists", "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": lists, "Dir::Cache::archives": lists / "archives", "Debug::NoLocking": "1",
        "APT::Sandbox::User": "root" if os.getuid() == 0 else "", "APT::Get::List-Cleanup": "0",
        "Acquire::Retries": "2", "Acquire::Languages": "none", "APT::Update::Post-Invoke::": "",
    }  # fmt: skip
    return [part for key, value in settings.items() if value != "" for part in ("-o", f"{key}={value}")]


def _run(
    recipe: Recipe, command: Sequence[str], cwd: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise LayerError("registry", f"layer {recipe.name}: {command[0]} did not end in {SECONDS:g} s") from error
    if done.returncode and check:
        text = _reason(done)
        kind = "space" if any(sign in text for sign in SPACE) else "registry"
        raise LayerError(kind, f"layer {recipe.name}: {command[0]}: {text}")
    return done


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:", "dpkg-deb:"))]
    return (lines or done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]


def alternatives(script: str, tree: Path) -> None:
    """Makes the links of alternatives that a package's script names literally."""
    for link, target in ALTERNATIVE.findall(script.replace("\\\n", " ")):
        place = tree / link.lstrip("/")
        if not os.path.lexists(place) and os.path.lexists(tree / target.lstrip("/")):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(os.path.relpath(target, os.path.dirname(link)))


def merge(tree: Path) -> None:
    """Moves ``/bin``, ``/lib`` and the like below ``/usr``, where the sandbox's links lead."""
    for name in MERGED:
        folder = tree / name
        if folder.is_dir() and not folder.is_symlink():
            _move(folder, tree / "usr" / name)


def _move(source: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in list(source.iterdir()):
        place = target / path.name
        if path.is_dir() and not path.is_symlink() and place.is_dir():
            _move(path, place)
        elif not os.path.lexists(place):
            path.rename(place)
        else:
            remove(path)
    source.rmdir()


def finish_java(tree: Path) -> None:
    """Links the tools of a JDK into ``/usr/bin``: its script makes alternatives in a loop."""
    for program in sorted(tree.glob("usr/lib/jvm/*/bin/*")):
        link = tree / "usr/bin" / program.name
        if not os.path.lexists(link):
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(program, link.parent))


def finish_php(tree: Path) -> None:
    """Enables PHP's extensions and gives its command line a configuration and its name."""
    for program in sorted(tree.glob("usr/bin/php[0-9]*")):
        link = tree / "usr/bin/php"
        if not os.path.lexists(link):
            link.symlink_to(program.name)
    for settings in sorted(tree.glob("usr/share/php[0-9]*-*/*/*.ini")):
        version = settings.relative_to(tree / "usr/share").parts[0].removeprefix("php").partition("-")[0]
        found = re.search(r"priority=(\d+)", settings.read_text(errors="replace"))
        place = tree / f"etc/php/{version}/cli/conf.d/{found[1] if found else '20'}-{settings.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(place):
            shutil.copyfile(settings, place)
    for settings in sorted(tree.glob("usr/lib/php/*/php.ini-production.cli")):
        place = tree / "etc/php" / settings.parent.name / "cli/php.ini"
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(place):
            shutil.copyfile(settings, place)
