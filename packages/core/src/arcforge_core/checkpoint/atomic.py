"""Replaces a folder all or nothing: write beside it, flush to disk, rename."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arcforge_core.errors import CheckpointError


@contextmanager
def replacing(directory: str | Path, *, marker: str) -> Iterator[Path]:
    """Yields an empty sibling folder that takes the place of `directory` when the block ends without error.

    Until then, and after any error, what `directory` held before is still there. A process killed between the two
    renames leaves the former folder beside it; `previous` names that place.

    Args:
        directory: the folder to create or replace.
        marker: a file that every such folder holds; an occupied folder without it is somebody else's and is refused.

    Raises:
        CheckpointError: the folder is not ours, or cannot be written (full disk, permissions).
    """
    directory = Path(directory).resolve()
    partial, old = directory.with_name(f".{directory.name}.partial"), previous(directory)
    if (
        directory.exists()
        and not (directory / marker).is_file()
        and (not directory.is_dir() or any(directory.iterdir()))
    ):
        raise CheckpointError(f"{directory} exists and has no {marker}: it is not replaced, choose another folder")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
        for path in [*partial.rglob("*"), partial]:
            flush(path)
        _exchange(directory, partial, old)
    except OSError as error:
        raise CheckpointError(f"cannot write {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def previous(directory: Path) -> Path:
    """Returns where the former folder is kept while `directory` is being replaced."""
    return directory.with_name(f".{directory.name}.previous")


def flush(path: Path) -> None:
    """Flushes a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(directory: Path, partial: Path, old: Path) -> None:
    """Moves `directory` to `old` and `partial` to `directory`, or neither."""
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.rename(directory, old)
    try:
        os.rename(partial, directory)
        flush(directory.parent)
    except BaseException:
        if directory.exists():
            os.rename(directory, partial)
        if old.exists():
            os.rename(old, directory)
        raise
