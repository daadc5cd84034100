"""The corpora that core can read; each target is called as ``target(config)``."""

from __future__ import annotations

import functools
import hashlib
import json
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from arcforge_core.config.sources import check_paths
from arcforge_core.configs import FilesDataConfig, HubDataConfig, MixtureDataConfig, StdlibDataConfig
from arcforge_core.console.progress import say
from arcforge_core.contracts.data import Document, DocumentSource, EncodingSource, QuotingSource
from arcforge_core.data.sources.functions import functions_in
from arcforge_core.data.sources.readers import (
    ROW_FILES,
    Skipped,
    Unreadable,
    cut_at_lines,
    is_utf8,
    read_rows,
    read_text,
    walk,
)
from arcforge_core.errors import DataError
from arcforge_core.plugins.loader import registry

NOT_THE_LIBRARY = ("site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test")


def digest(*parts: object) -> str:
    """Returns a hash of JSON-able values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def file_stamps(files: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Returns name, size and modification time of each file."""
    stats = ((str(path), path.stat()) for path in files)
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


class StdlibSource:
    """The running Python's standard library: its ``.py`` files and the reference topics of `pydoc_data`.

    Args:
        config: the share of single functions in training.
        root: the library's directory; None: the running Python's.

    Attributes:
        weights: shares of the training tokens by `Document.source`; None treats all documents as one list.
    """

    LICENCE = "PSF-2.0"

    def __init__(self, config: StdlibDataConfig, root: Path | None = None) -> None:
        self._root = root or Path(sysconfig.get_paths()["stdlib"])
        self._files = [
            path
            for path in walk(self._root, NOT_THE_LIBRARY)
            # the first is the builder's own settings, the second a dictionary of the topics read below
            if path.suffix == ".py" and not path.name.startswith("_sysconfigdata") and path.name != "topics.py"
        ]
        if not self._files:
            raise DataError(f"data=stdlib: this Python's library {str(self._root)!r} contains no .py files")
        share = config.functions
        self.weights = {"stdlib": 1 - share, "stdlib_functions": share} if share else None
        self._functions = functools.cache(lambda text: list(functions_in(text)))  # documents are read several times
        self._skipped = Skipped()

    def fingerprint(self) -> str:
        """Returns a hash of the files' names, sizes and times, of Python's version and of the use of functions."""
        return digest(sys.version, file_stamps(self._files), bool(self.weights))

    def documents(self) -> Iterator[Document]:
        """Yields every file, each followed by its functions, then every reference topic."""
        from pydoc_data.topics import topics

        skipped = Skipped()
        for path in self._files:
            key = path.relative_to(self._root).as_posix()
            try:
                text = read_text(path)
            except Unreadable as reason:
                skipped.add(str(reason), key)
                continue
            yield Document(key, text, "stdlib", self.LICENCE)
            for number, function in enumerate(self._functions(text) if self.weights else ()):
                yield Document(f"{key}:{number}", function, "stdlib_functions", self.LICENCE, part_of=key)
        self._skipped = _report_once(self._skipped, skipped, "stdlib")
        for name, text in sorted(topics.items()):
            yield Document(f"pydoc_data/topics/{name}", text, "stdlib", self.LICENCE)


class FilesSource:
    """Files and directories: jsonl and parquet give a document per row, any other readable text one per file."""

    def __init__(self, config: FilesDataConfig) -> None:
        if not config.paths:
            raise DataError("data.paths=[]: name at least one file or folder, e.g. data.paths=[my_texts]")
        check_paths(config.paths)
        self._config = config
        self._files: list[tuple[str, Path, bool]] = []  # key, file, named by the user
        for name in config.paths:
            path = Path(name).expanduser()
            if path.is_dir():
                found = [(f"{path.resolve().name}/{p.relative_to(path).as_posix()}", p, False) for p in walk(path)]
                self._files += [f for f in found if not config.suffixes or f[1].suffix in config.suffixes]
            else:
                self._files.append((path.as_posix(), path, True))
        if not self._files:
            only = f" with a suffix in {config.suffixes}" if config.suffixes else ""
            raise DataError(f"data.paths={config.paths}: contains no file{only}")
        self._skipped = Skipped()

    def fingerprint(self) -> str:
        """Returns a hash of the files' names, sizes and times and of the reading options."""
        config = self._config
        how = (config.text_field, config.document_bytes, config.licence)
        return digest(how, [key for key, _, _ in self._files], file_stamps(path for _, path, _ in self._files))

    def documents(self) -> Iterator[Document]:
        """Yields the documents in the order of `paths`, directories sorted by name.

        Raises:
            DataError: a file named by the user is not text, or a jsonl or parquet file is damaged.
        """
        skipped = Skipped()
        for key, path, named in self._files:
            try:
                for part, text in self._texts(path):
                    if text is None or not is_utf8(text):
                        skipped.add("rows without text" if text is None else "rows that are not UTF-8", key + part)
                    else:
                        yield Document(key + part, text, "files", self._config.licence)
            except Unreadable as reason:
                if named:
                    raise DataError(f"data.paths={str(path)!r}: {reason}; must be UTF-8 text") from reason
                skipped.add(str(reason), key)
        self._skipped = _report_once(self._skipped, skipped, "files")

    def _texts(self, path: Path) -> Iterator[tuple[str, str | None]]:
        """Yields (key suffix, text) for each document of a file."""
        if path.suffix in ROW_FILES:
            yield from ((f":{n}", text) for n, text in enumerate(read_rows(path, self._config.text_field)))
            return
        parts = cut_at_lines(read_text(path), self._config.document_bytes)
        yield from ((f":{n}" if len(parts) > 1 else "", text) for n, text in enumerate(parts))


class HubSource:
    """A data set of the `datasets` library."""

    def __init__(self, config: HubDataConfig) -> None:
        if not config.dataset:
            raise DataError("data.dataset='': name a data set of the hub or a local directory of data files")
        try:
            import datasets
        except ImportError as error:
            raise DataError("data=hub needs the datasets library: pip install 'arcforge-core[datasets]'") from error
        try:
            rows: Any = datasets.load_dataset(config.dataset, split=config.split)
        except Exception as error:  # the library raises dozens of types for names, splits, files and networks
            raise DataError(f"data.dataset={config.dataset!r} data.split={config.split!r}: {error}") from error
        if config.text_field not in rows.column_names:
            names = ", ".join(rows.column_names)
            raise DataError(f"data.text_field={config.text_field!r}: {config.dataset} has the columns {names}")
        self._config, self._rows = config, rows
        self._skipped = Skipped()

    def fingerprint(self) -> str:
        """Returns a hash of the data set's own fingerprint and of the reading options."""
        config = self._config
        return digest(config.dataset, config.split, config.text_field, config.licence, self._rows._fingerprint)

    def documents(self) -> Iterator[Document]:
        skipped = Skipped()
        name, field = self._config.dataset, self._config.text_field
        for number, row in enumerate(self._rows.select_columns([field])):
            text = row[field]
            if isinstance(text, str) and is_utf8(text):
                yield Document(f"{name}:{number}", text, name, self._config.licence)
            else:
                skipped.add("rows without UTF-8 text", f"row {number}")
        self._skipped = _report_once(self._skipped, skipped, name)


class MixtureSource:
    """Several sources; a document's `source` is its name in the mixture, then its part if the source has parts."""

    def __init__(self, config: MixtureDataConfig) -> None:
        if not config.sources:
            raise DataError("data.sources={}: a mixture needs sources, e.g. +data@data.sources.code=stdlib")
        self._sources: dict[str, DocumentSource] = {
            name: registry().get("data", source.name).load()(source) for name, source in config.sources.items()
        }
        for name, kept in self._sources.items():
            if isinstance(kept, EncodingSource):
                what = "cannot be part of a mixture: it encodes its own examples and has its own weights"
                raise DataError(f"data.sources.{name}={config.sources[name].name!r}: {what}")
        names = {source.name: name for name, source in reversed(config.sources.items())}
        self.weights: dict[str, float] = {}
        for name, source in self._sources.items():
            if isinstance(source, QuotingSource) and source.text_from in names:
                source.text_prefix = f"{names[source.text_from]}/"
            weight = config.weights.get(name, 1.0)
            parts: dict[str, float] = getattr(source, "weights", None) or {}
            self.weights |= {f"{name}/{part}": weight * share for part, share in parts.items()} or {name: weight}

    def fingerprint(self) -> str:
        """Returns a hash of the sources' fingerprints; weights apply when batches are drawn."""
        return digest([(name, source.fingerprint()) for name, source in self._sources.items()])

    def documents(self) -> Iterator[Document]:
        for name, source in self._sources.items():
            for document in source.documents():
                part = f"{name}/{document.source}"
                yield replace(
                    document,
                    key=f"{name}/{document.key}",
                    source=part if part in self.weights else name,
                    part_of=document.part_of and f"{name}/{document.part_of}",
                )


def _report_once(before: Skipped, skipped: Skipped, source: str) -> Skipped:
    """Prints the skipped files and rows unless an earlier pass printed the same."""
    if skipped.counts and skipped != before:
        say(f"{source}: skipped {skipped}")
    return skipped
