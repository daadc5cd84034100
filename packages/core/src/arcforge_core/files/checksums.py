"""Checksums of a directory in the format of ``sha256sum``, so that ``sha256sum -c SHA256SUMS`` can check it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from arcforge_core.errors import CheckpointError

SUMS = "SHA256SUMS"


def file_sha256(path: Path) -> str:
    """Returns the hash of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path) -> None:
    """Writes the checksum of every file in a directory; no file may be added afterwards.

    Raises:
        OSError: a file cannot be read or written.
    """
    lines = [f"{file_sha256(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_checksums(folder: Path) -> None:
    """Reads every file in a directory and compares it with its checksum.

    Raises:
        CheckpointError: names the first file that is missing, damaged, or not listed.
    """
    path = folder / SUMS
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is missing or damaged: {error}") from error
    found = _files(folder)
    for name in sorted(sums.keys() | set(found)):
        if name not in found:
            raise CheckpointError(f"{folder / name} is missing")
        if name not in sums:
            raise CheckpointError(f"{folder / name} is not listed in {SUMS}")
        try:
            digest = file_sha256(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be read: {error.strerror}") from error
        if digest != sums[name]:
            raise CheckpointError(f"{folder / name} is damaged: its contents differ from its checksum")


def _files(folder: Path) -> list[str]:
    """Returns the names of all files except the sums, with ``/`` between directories; skips hidden files."""
    paths = (p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file())
    return [p.as_posix() for p in paths if p.name != SUMS and not p.name.startswith(".")]
