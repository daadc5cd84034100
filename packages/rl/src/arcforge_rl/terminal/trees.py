"""Folders that agents wrote, as bytes: read from a copy on the host, laid into an empty folder without following links.

Owners, hard links and special files are left out; modes stay.
"""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arcforge_core.errors import DataError
from arcforge_rl.terminal.harbor import inner

LARGEST = 64 << 20
"""Bytes of the files of a tree."""
MOST = 20_000
"""Its files, folders and links."""
DEEPEST = 100
"""Folders inside one another."""


def pack(folder: Path) -> bytes:
    """Returns a folder that no program writes to meanwhile as a compressed archive.

    Raises:
        DataError: it has more than `LARGEST` bytes or `MOST` members, or is deeper than `DEEPEST`.
    """
    out, size, count = io.BytesIO(), 0, 0
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1, format=tarfile.GNU_FORMAT) as archive:
        for path in _walk(folder):
            info = path.lstat()
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.mode, count = info.st_mode & 0o777, count + 1
            if stat.S_ISREG(info.st_mode):
                size += info.st_size
            if size > LARGEST or count > MOST:
                raise DataError(f"the work has more than {LARGEST >> 20} MiB or {MOST:,} files")
            if stat.S_ISREG(info.st_mode):
                member.size = info.st_size
                with _readable(path, info.st_mode), open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                    archive.addfile(member, file)
            elif stat.S_ISDIR(info.st_mode):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif stat.S_ISLNK(info.st_mode):
                member.type, member.linkname = tarfile.SYMTYPE, os.readlink(path)
                archive.addfile(member)
    return out.getvalue()


def unpack(data: bytes, folder: Path, below: str = "") -> None:
    """Lays an archive of `pack` into an existing, empty folder.

    Args:
        data: the archive.
        folder: receives the members.
        below: of the archive, this file or folder only; empty: all.

    Raises:
        DataError: it is not an archive that `pack` made.
    """
    links, folders = [], []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            for member in archive:
                name = member.name
                if below and name != below and not name.startswith(f"{below}/"):
                    continue
                if not inner(name):
                    raise DataError(f"{name[:80]!r} is no path of a packed folder")
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.isdir():
                    target.mkdir(exist_ok=True)
                    folders.append((target, member.mode))
                elif member.issym():
                    links.append((target, member.linkname))
                elif member.isreg():
                    source = archive.extractfile(member)
                    assert source is not None
                    with open(target, "xb") as file:
                        file.write(source.read())
                    target.chmod(member.mode & 0o777)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"the work cannot be unpacked: {error}") from error
    for target, text in links:  # after all files, so that nothing is written through one
        os.symlink(text, target)
    for target, mode in reversed(folders):
        target.chmod(mode & 0o777)


@contextmanager
def _readable(path: Path, mode: int) -> Iterator[None]:
    """Lets an ordinary user read what the agent closed to itself."""
    closed = os.geteuid() != 0 and not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(mode) else 0))
    if closed:
        path.chmod(mode & 0o777 | 0o700)
    try:
        yield
    finally:
        if closed:
            path.chmod(mode & 0o777)


def _walk(folder: Path, depth: int = 0) -> Iterator[Path]:
    if depth > DEEPEST:
        raise DataError(f"the work has more than {DEEPEST} folders inside one another")
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda one: one.name)
    for entry in entries:
        path = folder / entry.name
        yield path
        if entry.is_dir(follow_symlinks=False):
            with _readable(path, path.lstat().st_mode):
                yield from _walk(path, depth + 1)
