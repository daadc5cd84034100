"""Checksums of a folder in the format of ``sha256sum``, so that ``sha256sum -c SHA256SUMS`` checks it too."""

from __future__ import annotations

from pathlib import Path

from arcforge_core.data.shards import file_sha256
from arcforge_core.errors import CheckpointError

SUMS = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Writes the checksum of every file of a folder; nothing may be added afterwards.

    Raises:
        OSError: a file cannot be read or written.
    """
    lines = [f"{file_sha256(folder / name)}  {name}\n" for name in _files(folder)]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def check_checksums(folder: Path) -> None:
    """Reads every file of a folder and compares it with its checksum.

    Raises:
        CheckpointError: names the first file that is missing, damaged, or was not there when the sums were written.
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
            raise CheckpointError(f"{folder / name} is damaged: its content is not what was written")


def _files(folder: Path) -> list[str]:
    """Returns the names of all files but the sums, with ``/`` between folders; hidden ones are not ours."""
    paths = (p.relative_to(folder) for p in sorted(folder.rglob("*")) if p.is_file())
    return [p.as_posix() for p in paths if p.name != SUMS and not p.name.startswith(".")]
