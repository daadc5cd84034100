"""Reads records, one conversation each, from jsonl, json, parquet and folders of the `datasets` library.

A record that cannot be read is yielded with the reason, for the caller to count; an unreadable file raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.data.sources.readers import NotJson, is_utf8, json_lines, parquet_file, walk
from arcforge_core.errors import DataError

ENDINGS = (".jsonl", ".json", ".parquet")
DATASET_FILE = "dataset_info.json"
"""Files that `datasets` writes for ``save_to_disk``."""


@dataclass(frozen=True)
class Row:
    """One raw record.

    Attributes:
        file: its file.
        line: line number in jsonl, otherwise record number, from 1.
        record: its fields; None if it cannot be read.
        reason: why it cannot be read.
    """

    file: str
    line: int
    record: dict[str, Any] | None
    reason: str = ""


def find_files(paths: Iterable[str], field: str) -> list[Path]:
    """Returns the files and `datasets` directories below the given paths, in order.

    Raises:
        DataError: a path does not exist, or contains nothing readable.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            below = [path] if (path / DATASET_FILE).is_file() else [p for p in walk(path) if p.suffix in ENDINGS]
        elif path.is_file() and path.suffix in ENDINGS:
            below = [path]
        else:
            what = f"must end in {', '.join(ENDINGS)}" if path.is_file() else "no such file or directory"
            raise DataError(f"{field}={name!r}: {what}")
        if not below:
            raise DataError(f"{field}={name!r}: no file in it ends in {', '.join(ENDINGS)}")
        found += below
    return found


def read_rows(path: Path) -> Iterator[Row]:
    """Yields every record of a file or of a `datasets` directory.

    Raises:
        DataError: the file cannot be opened or has the wrong format.
    """
    if path.is_dir():
        values = _dataset(path)
    elif path.suffix == ".parquet":
        values = _parquet(path)
    elif path.suffix == ".json":
        values = _json(path)
    else:
        values = json_lines(path)
    for line, value in values:
        yield _row(path, line, value)


def _row(path: Path, line: int, value: Any) -> Row:
    if isinstance(value, NotJson):
        return Row(str(path), line, None, f"not JSON: {value.reason}")
    if not isinstance(value, dict):
        return Row(str(path), line, None, f"a record must be an object, not a {type(value).__name__}")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:  # NaN, bytes and times of parquet, cycles
        return Row(str(path), line, None, f"holds a value that JSON cannot represent: {error}")
    if not is_utf8(text):
        return Row(str(path), line, None, "not UTF-8: lone surrogate")
    return Row(str(path), line, value)


def _json(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; name a file of JSON lines .jsonl") from error
    yield from enumerate(value if isinstance(value, list) else [value], 1)


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    with parquet_file(path) as file:
        values = (value for batch in file.iter_batches() for value in batch.to_pylist())
        yield from ((number, without_nulls(value)) for number, value in enumerate(values, 1))


def _dataset(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{path}: needs the datasets library: pip install 'arcforge-core[datasets]'") from error
    try:
        rows: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises dozens of types
        raise DataError(f"{path}: not a readable data set: {error}") from error
    if not hasattr(rows, "column_names") or isinstance(rows.column_names, dict):
        raise DataError(f"{path}: contains several splits; name the directory of one")
    yield from ((number, without_nulls(value)) for number, value in enumerate(rows, 1))


def without_nulls(value: Any) -> Any:
    """Returns a value without null fields: columnar files give every message the fields of all messages."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value
