"""Folders that are on disk whole or not at all: written beside their place, flushed, renamed.

A name that is free takes one rename. A name that is taken takes two, which no portable call makes one: a process
killed between them leaves the former folder under the name that `previous` returns.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arcforge_core.errors import CheckpointError


@contextmanager
def creating(directory: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes `directory`, a free name, when the block ends without error.

    What a killed process left half-written is removed first, so only one process at a time may write a folder.

    Raises:
        OSError: it cannot be written (full disk, permissions), or the name is taken. Nothing is left behind.
    """
    if directory.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
    with _writing(directory) as partial:
        yield partial


@contextmanager
def replacing(directory: str | Path, *, marker: str | None) -> Iterator[Path]:
    """Yields an empty folder that takes the place of `directory` when the block ends without error.

    Until then, and after any error, what `directory` held before is still there.

    Args:
        directory: the folder to create or replace.
        marker: a file that every such folder holds; an occupied folder without it is somebody else's and is refused.
            None replaces whatever is there.

    Raises:
        CheckpointError: the folder is not ours, or cannot be written (full disk, permissions).
    """
    directory = Path(directory).resolve()
    old = previous(directory)
    ours = marker is None or (directory / marker).is_file()
    if not ours and directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise CheckpointError(f"{directory} exists and has no {marker}: it is not replaced, choose another folder")
    try:
        if old.exists() and not directory.exists():  # a process was killed between the two renames
            os.rename(old, directory)
        with _writing(directory) as partial:
            yield partial
    except OSError as error:
        raise CheckpointError(f"cannot write {directory}: {error.strerror or error}") from error
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


@contextmanager
def _writing(directory: Path) -> Iterator[Path]:
    partial = directory.with_name(f".{directory.name}.partial")
    made = [folder for folder in directory.parents if not folder.exists()]
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        for folder in made:
            flush(folder.parent)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        yield partial
        for path in [*partial.rglob("*"), partial]:
            flush(path)
        _exchange(directory, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _exchange(directory: Path, partial: Path) -> None:
    """Moves what is at `directory` to its previous place and `partial` to `directory`, or neither."""
    old = previous(directory)
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
