"""Reads records, one conversation each, from jsonl, json, parquet and folders of the `datasets` library.

A record that cannot be read is yielded with the reason, for the caller to count; a file that cannot is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_core.data.readers import is_utf8, walk
from arcforge_core.errors import DataError

ENDINGS = (".jsonl", ".json", ".parquet")
DATASET_FILE = "dataset_info.json"
"""What `datasets` writes beside the files of ``save_to_disk``."""


@dataclass(frozen=True)
class Row:
    """One record as it was found.

    Attributes:
        file: where.
        line: in jsonl the line, elsewhere the number of the record, from 1.
        record: its fields; None when it cannot be read.
        reason: why not.
    """

    file: str
    line: int
    record: dict[str, Any] | None
    reason: str = ""


def find_files(paths: Iterable[str], field: str) -> list[Path]:
    """Returns the files, and folders of `datasets`, below what the user named, in order.

    Raises:
        DataError: a path is not there, or holds nothing that is read.
    """
    found: list[Path] = []
    for name in paths:
        path = Path(name).expanduser()
        if path.is_dir():
            below = [path] if (path / DATASET_FILE).is_file() else [p for p in walk(path) if p.suffix in ENDINGS]
        elif path.is_file() and path.suffix in ENDINGS:
            below = [path]
        else:
            what = f"files end in {', '.join(ENDINGS)}" if path.is_file() else "there is no such file or folder"
            raise DataError(f"{field}={name!r}: {what}")
        if not below:
            raise DataError(f"{field}={name!r}: no file there ends in {', '.join(ENDINGS)}")
        found += below
    return found


def read_rows(path: Path) -> Iterator[Row]:
    """Yields every record of a file or of a folder of `datasets`.

    Raises:
        DataError: it cannot be opened, or is no such file.
    """
    if path.is_dir():
        values = _dataset(path)
    elif path.suffix == ".parquet":
        values = _parquet(path)
    elif path.suffix == ".json":
        values = _json(path)
    else:
        values = _jsonl(path)
    for line, value in values:
        yield value if isinstance(value, Row) else _row(path, line, value)


def _row(path: Path, line: int, value: Any) -> Row:
    if not isinstance(value, dict):
        return Row(str(path), line, None, f"a record is an object, not a {type(value).__name__}")
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:  # NaN, bytes and times of parquet, cycles
        return Row(str(path), line, None, f"holds what JSON cannot: {error}")
    if not is_utf8(text):
        return Row(str(path), line, None, "not UTF-8: half of a surrogate pair")
    return Row(str(path), line, value)


def _jsonl(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:  # broken JSON, broken UTF-8, nesting beyond the stack
                    value = Row(str(path), number, None, f"not JSON: {error}")
                yield number, value
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error


def _json(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be opened: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}; a file of lines is to be named .jsonl") from error
    yield from enumerate(value if isinstance(value, list) else [value], 1)


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path}: parquet files need pyarrow: pip install 'arcforge-core[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for value in batch.to_pylist():
                    number += 1
                    yield number, without_nulls(value)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: not a readable parquet file: {error}") from error


def _dataset(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{path}: needs the datasets library: pip install 'arcforge-core[datasets]'") from error
    try:
        rows: Any = datasets.load_from_disk(str(path))
    except Exception as error:  # the library raises dozens of kinds
        raise DataError(f"{path}: not a readable data set: {error}") from error
    if not hasattr(rows, "column_names") or isinstance(rows.column_names, dict):
        raise DataError(f"{path}: holds several splits; name the folder of one")
    yield from ((number, without_nulls(value)) for number, value in enumerate(rows, 1))


def without_nulls(value: Any) -> Any:
    """Returns a value without the fields that are null: columns give every message the fields of all messages."""
    if isinstance(value, dict):
        return {name: without_nulls(part) for name, part in value.items() if part is not None}
    if isinstance(value, list):
        return [without_nulls(part) for part in value]
    return value
