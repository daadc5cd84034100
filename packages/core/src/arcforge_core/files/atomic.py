"""Atomic directories: written beside their target, flushed, renamed.

A new name needs one rename. An existing name needs two, which no portable call combines: a process
killed between them leaves the old directory at the path that `previous` returns.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from arcforge_core.errors import CheckpointError


@contextmanager
def creating(directory: Path) -> Iterator[Path]:
    """Yields an empty directory that becomes `directory`, a new name, when the block ends without error.

    Removes partial files of a killed process first, so only one process at a time may write a directory.

    Raises:
        OSError: it cannot be written (full disk, permissions), or the name exists. No partial files remain.
    """
    if directory.exists():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(directory))
    with _writing(directory) as partial:
        yield partial


def write_new(directory: Path, files: Mapping[str, str]) -> None:
    """Writes texts by their paths below `directory`, a new name: all of them or none.

    Raises:
        OSError: as by `creating`.
    """
    with creating(directory) as partial:
        for path, text in files.items():
            file = partial / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


@contextmanager
def replacing(directory: str | Path, *, marker: str | None) -> Iterator[Path]:
    """Yields an empty directory that replaces `directory` when the block ends without error.

    Until then, and after any error, the old contents of `directory` stay.

    Args:
        directory: the directory to create or replace.
        marker: a file that every such directory contains; an existing directory without it is refused as not ours.
            None replaces any directory.

    Raises:
        CheckpointError: the directory is not ours, or cannot be written (full disk, permissions).
    """
    directory = Path(directory).resolve()
    old = previous(directory)
    ours = marker is None or (directory / marker).is_file()
    if not ours and directory.exists() and not (directory.is_dir() and not any(directory.iterdir())):
        raise CheckpointError(f"{directory} exists without {marker} and is not replaced; choose another directory")
    try:
        if old.exists() and not directory.exists():  # a process was killed between the two renames
            os.rename(old, directory)
        with _writing(directory) as partial:
            yield partial
    except OSError as error:
        raise CheckpointError(f"cannot write {directory}: {error.strerror or error}") from error
    shutil.rmtree(old, ignore_errors=True)


def previous(directory: Path) -> Path:
    """Returns the path of the old directory while `directory` is being replaced."""
    return directory.with_name(f".{directory.name}.previous")


def flush(path: Path) -> None:
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
    """Moves the contents of `directory` to `previous` and `partial` to `directory`, or neither."""
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
