"""Source packages of Debian: the host's archives with lists of our own, unpacked without running any of their code.

A source is ``debian:NAME`` or ``debian:NAME=VERSION``. Its tree has the distribution's patches applied and does not
hold them: they lie beside it, as they tell repairs. `patched` gives the trees before and after one of them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.layers.store import LayerError
from arcforge_rl.swe.instance import read_text

DEBIAN = "debian:"
SOURCE = re.compile(r"debian:([a-z0-9][a-z0-9.+-]+)(?:=([\w.+~:-]+))?")
SECONDS = 900.0
PLACES = (Path("/etc/apt/sources.list"), Path("/etc/apt/sources.list.d"))


def build_depends(tree: Path) -> set[str]:
    """Returns the packages that a source package's ``debian/control`` builds with, without those that it makes."""
    control = read_text(tree / "debian/control") or ""
    own = set(re.findall(r"^(?:Package|Source):\s*(\S+)", control, re.MULTILINE))
    fields = re.findall(r"^Build-Depends(?:-\w+)?:(.*?)(?=^\S|\Z)", control, re.MULTILINE | re.DOTALL)
    return {name for text in fields for name in re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]+)", text)} - own


def fetch_source(source: str, folder: Path, places: Sequence[Path] = PLACES) -> Path:
    """Returns the folder of an unpacked source package; one that is there is used without the archive.

    Args:
        source: ``debian:NAME`` or ``debian:NAME=VERSION``.
        folder: of unpacked packages, and of apt's lists.
        places: files and folders with apt's sources, of which the same places' source packages are used.

    Raises:
        DataError: the source is malformed.
        LayerError: the archive cannot be reached or lacks the package, or a tool is missing.
    """
    found = SOURCE.fullmatch(source)
    if found is None:
        raise DataError(f"{source!r} is not debian:NAME or debian:NAME=VERSION")
    name, version = found[1], found[2] or ""
    target = folder / f"{name}-{version or 'newest'}".replace(":", "_")
    if target.is_dir():
        return target
    for program in ("apt-get", "dpkg-source"):
        if shutil.which(program) is None:
            raise LayerError("tool", f"{source}: {program} was not found")
    options = _options(folder / "apt", places)
    updated = _run(source, ["apt-get", *options, "update", "-qq"], folder, check=False)
    if updated.returncode and not any((folder / "apt/lists").glob("*_Sources*")):
        raise LayerError("registry", f"{source}: Debian's archive cannot be reached: {_reason(updated)}")
    partial = folder / f"{target.name}.part"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        wanted = name + (f"={version}" if version else "")
        _run(source, ["apt-get", *options, "source", "--download-only", "-qq", wanted], partial)
        [description] = partial.glob("*.dsc")
        _run(source, ["dpkg-source", "--no-check", "-x", str(description), str(partial / "tree")], partial)
        shutil.rmtree(partial / "tree/.pc", ignore_errors=True)
        beside = _patches(target)
        shutil.rmtree(beside, ignore_errors=True)
        if (partial / "tree/debian/patches").is_dir():
            (partial / "tree/debian/patches").rename(beside)
        (partial / "tree").rename(target)
    except ValueError as error:
        raise LayerError("registry", f"{source}: the archive gave no source package") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def patched(tree: Path, name: str, to: Path) -> tuple[Path, Path]:
    """Returns trees of a source package before and after one of its patches, and without those that come later.

    Args:
        tree: as `fetch_source` returns it.
        name: of the patch, as ``debian/patches/series`` lists it.
        to: folder of the two trees.

    Raises:
        DataError: the package has no such patch, or one does not fit.
    """
    series = _patches(tree) / "series"
    listed = series.read_text(encoding="utf-8", errors="replace").splitlines() if series.is_file() else []
    names = [line.split("#")[0].split() for line in listed]
    patches = [words[0] for words in names if words]
    if name not in patches:
        raise DataError(f"{tree.name} has no patch {name!r}; it has {', '.join(patches) or 'none'}")
    after, before = to / "after", to / "before"
    shutil.copytree(tree, after, symlinks=True)
    for later in reversed(patches[patches.index(name) + 1 :]):
        _undo(after, _patches(tree) / later)
    shutil.copytree(after, before, symlinks=True)
    _undo(before, _patches(tree) / name)
    return before, after


def _patches(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.patches")


def _undo(tree: Path, path: Path) -> None:
    command = ["patch", "-p1", "-R", "-s", "-f", "--no-backup-if-mismatch", "-r", "-"]
    try:
        patch = path.read_bytes()
        done = subprocess.run(command, cwd=tree, input=patch, capture_output=True, timeout=SECONDS, check=False)
    except OSError as error:
        raise DataError(f"the patch {path.name} cannot be undone: {error.strerror}: {error.filename}") from error
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise DataError(f"the patch {path.name} cannot be undone: {said[0]}")


def _options(folder: Path, places: Sequence[Path]) -> list[str]:
    """Returns apt's options: state of our own, and the sources of `places` as source packages."""
    for part in ("lists/partial", "archives/partial", "parts"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    found = [path for place in places for path in (sorted(place.iterdir()) if place.is_dir() else [place])]
    for path in found:
        if path.suffix in (".sources", ".list") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            text = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
            (folder / "parts" / path.name).write_text(re.sub(r"^deb ", "deb-src ", text, flags=re.MULTILINE))
    settings = {
        "Dir::State": folder, "Dir::State::lists": folder / "lists", "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::Cache": folder, "Dir::Cache::archives": folder / "archives", "Debug::NoLocking": "1",
        "Dir::Etc::sourcelist": "/dev/null", "Dir::Etc::sourceparts": folder / "parts", "APT::Sandbox::User": "",
        "APT::Get::List-Cleanup": "0", "Acquire::Retries": "2", "Acquire::Languages": "none",
    }  # fmt: skip
    return [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]


def _run(source: str, command: Sequence[str], cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise LayerError("registry", f"{source}: {command[0]} did not end in {SECONDS:g} s") from error
    if done.returncode and check:
        raise LayerError("registry", f"{source}: {command[0]}: {_reason(done)}")
    return done


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg-source: error"))]
    return (lines or done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]
