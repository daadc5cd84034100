"""Reads files as texts: plain text, jsonl and parquet."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from arcforge_core.errors import ArcforgeError, DataError

T = TypeVar("T")

ROW_FILES = (".jsonl", ".parquet")
"""Extensions of files with one document per row."""


class Unreadable(Exception):
    """A file that is not text; the message gives the reason."""


@dataclass(frozen=True)
class NotJson:
    """Takes the place of the value of a line that is not JSON."""

    reason: str


@dataclass
class Skipped:
    """Skipped files and rows of a corpus, counted by reason, with the first example of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, name)

    def __str__(self) -> str:
        return "; ".join(f"{n:,} {reason} (e.g. {self.examples[reason]})" for reason, n in self.counts.items())


def walk(folder: Path, skip_folders: Sequence[str] = ()) -> Iterator[Path]:
    """Yields the regular files below `folder` in sorted order, without hidden files and directories."""
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in skip_folders and not name.startswith("."))
        found = (Path(root, name) for name in sorted(files) if not name.startswith("."))
        yield from (path for path in found if path.is_file())  # neither pipes nor dangling links


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file with its original newlines.

    Raises:
        Unreadable: the file cannot be opened, is binary (holds NUL bytes) or is not UTF-8.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise Unreadable(f"cannot be opened: {error.strerror}") from error
    if b"\0" in raw:
        raise Unreadable("binary")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8") from error


def read_rows(path: Path, text_field: str) -> Iterator[str | None]:
    """Yields the text of each row of a jsonl or parquet file; None for a row without text.

    Raises:
        DataError: the file is damaged or lacks the column; names the file and row.
    """
    yield from (_read_jsonl if path.suffix == ".jsonl" else _read_parquet)(path, text_field)


def _read_jsonl(path: Path, text_field: str) -> Iterator[str | None]:
    for number, row in json_lines(path):
        where = f"{path}:{number}"
        if isinstance(row, NotJson):
            raise DataError(f"{where}: not JSON: {row.reason}")
        if not isinstance(row, dict) or text_field not in row:
            has = ", ".join(row) if isinstance(row, dict) else f"a {type(row).__name__}"
            raise DataError(f"{where}: data.text_field={text_field!r} does not exist; the row has {has}")
        yield _checked(row[text_field], where, text_field)


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields the number, from 1, and the value of each line that is not blank; `NotJson` for a damaged line.

    Raises:
        DataError: the file cannot be opened.
    """
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, nesting beyond the stack
                    value = NotJson(str(error))
                yield number, value
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error


def continued(path: Path, make: Callable[..., T], what: str) -> list[T]:
    """Returns what the lines of a growing record make; a last line that a killed process left unfinished is removed.

    Args:
        path: of the file, which may not be there.
        make: gets the fields of a line.
        what: the name of a line in errors.

    Raises:
        DataError: a line before the last one is damaged.
        ArcforgeError: the file cannot be written.
    """
    found, whole = list[T](), ""
    lines = [*json_lines(path)] if path.exists() else []
    for place, (number, row) in enumerate(lines):
        try:
            if isinstance(row, NotJson):
                raise TypeError(row.reason)
            if not isinstance(row, dict):
                raise TypeError(f"it is a {type(row).__name__}")
            found.append(make(**row))
        except TypeError as error:
            if place == len(lines) - 1:
                break
            raise DataError(f"{path}:{number}: is no {what}: {error}") from error
        whole += json.dumps(row) + "\n"
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(whole, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ArcforgeError(f"cannot write {path}: {error.strerror}") from error
    return found


def json_objects(path: Path, fields: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the place, ``FILE:NUMBER``, and the object of each line that is not blank.

    Args:
        path: of the file.
        fields: that an object may have.

    Raises:
        DataError: the file cannot be opened, or a line is no JSON, no object, or has another field.
    """
    for number, row in json_lines(path):
        where = f"{path}:{number}"
        if isinstance(row, NotJson):
            raise DataError(f"{where}: not JSON: {row.reason}")
        if not isinstance(row, dict):
            raise DataError(f"{where}: must be an object, not a {type(row).__name__}")
        if strange := sorted(set(row) - set(fields)):
            raise DataError(f"{where}: has no field {strange[0]!r}; fields are {', '.join(fields)}")
        yield where, row


def _read_parquet(path: Path, text_field: str) -> Iterator[str | None]:
    with parquet_file(path) as file:
        columns = file.schema_arrow.names
        if text_field not in columns:
            raise DataError(f"{path}: data.text_field={text_field!r} does not exist; columns: {', '.join(columns)}")
        values = (value for batch in file.iter_batches(columns=[text_field]) for value in batch.column(0).to_pylist())
        for number, value in enumerate(values, 1):
            yield _checked(value, f"{path} row {number}", text_field)


@contextmanager
def parquet_file(path: Path) -> Iterator[Any]:
    """Opens a ``pyarrow.parquet.ParquetFile``.

    Raises:
        DataError: pyarrow is missing, or the file cannot be read, now or while it is open.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: parquet files need pyarrow: pip install 'arcforge-core[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from error


def _checked(value: object, where: str, text_field: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise DataError(f"{where}: data.text_field={text_field!r} holds a {type(value).__name__}, not text")


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text; JSON may contain lone surrogates, which it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def cut_at_lines(text: str, num_bytes: int | None) -> list[str]:
    """Cuts a text at newlines into parts of about `num_bytes` UTF-8 bytes; the parts join to the text."""
    if num_bytes is None:
        return [text]
    parts: list[list[str]] = [[]]
    size = 0
    for line in text.splitlines(keepends=True):
        if size >= num_bytes:
            parts.append([])
            size = 0
        parts[-1].append(line)
        size += len(line.encode())
    return ["".join(part) for part in parts]
