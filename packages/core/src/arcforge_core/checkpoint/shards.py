"""Tensors in safetensors files: ``model.safetensors``, or shards listed in ``model.safetensors.index.json``."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from arcforge_core.errors import CheckpointError

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NAMES = ((WEIGHTS, INDEX), ("quant_model_weights.safetensors", "quant_model_weights.safetensors.index.json"))
"""Names of a single file and of an index: transformers', and msModelSlim's."""
SHARD_BYTES = 5_000_000_000
"""Default maximum size of a shard, as on the hub."""


class LazyState(Protocol):
    """Tensors by name, read on access (a `Mapping`)."""

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Returns the shapes without reading the tensors."""

    def __getitem__(self, name: str, /) -> Tensor:
        """Returns a tensor; it may be mapped from a file."""


class _MappedFile:
    """A file that is mapped while a tensor of it is alive: pages of a mapping count as the process's memory."""

    def __init__(self, path: Path) -> None:
        self.path, self.alive = path, 0
        self._file: Any = None

    def opened(self) -> Any:
        """Returns the open file.

        Raises:
            CheckpointError: it is missing, truncated or no safetensors file.
        """
        try:
            return safe_open(self.path, framework="pt") if self._file is None else self._file
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{self.path} is damaged or incomplete: {error}") from error

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor; the file closes when the last one that it returned is gone."""
        self._file = self.opened()
        tensor: Tensor = self._file.get_tensor(name)
        self.alive += 1
        weakref.finalize(tensor, self._let_go).atexit = False
        return tensor

    def _let_go(self) -> None:
        self.alive -= 1
        if not self.alive:
            self._file = None  # views of a tensor keep their mapping


class ShardReader(Mapping[str, Tensor]):
    """The tensors of a directory by name, read on access; headers are checked on opening.

    Attributes:
        shapes: of every tensor, without reading it.

    Raises:
        CheckpointError: a file is missing, truncated or lacks a tensor that the index lists.
    """

    def __init__(self, directory: Path) -> None:
        self.shapes: dict[str, torch.Size] = {}
        self._files: dict[str, _MappedFile] = {}
        for path, promised in _files(directory).items():
            mapped = _MappedFile(path)
            file = mapped.opened()
            names = list(file.keys())
            self.shapes |= {name: torch.Size(file.get_slice(name).get_shape()) for name in names}
            absent = sorted(promised - set(names))
            if absent:
                raise CheckpointError(f"{path} does not contain {absent[0]}, which the index places there")
            self._files |= dict.fromkeys(names, mapped)

    def __getitem__(self, name: str) -> Tensor:
        """Returns a tensor, mapped from the file."""
        return self._files[name].tensor(name)

    def __contains__(self, name: object) -> bool:  # the inherited one would read the tensor
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _files(directory: Path) -> dict[Path, set[str]]:
    """Returns the directory's files, and the tensors that the index lists for each."""
    for weights, listing in NAMES:
        if (directory / weights).is_file():
            return {directory / weights: set()}
        if (index := directory / listing).is_file():
            break
    else:
        raise CheckpointError(f"{directory} has neither {WEIGHTS} nor {INDEX}")
    files: dict[Path, set[str]] = {}
    try:
        for name, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
            files.setdefault(directory / Path(file).name, set()).add(name)  # never a path outside this directory
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{index} is damaged: {error!r}") from error
    for path, names in files.items():
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; it holds {min(names)} and {len(names) - 1} more tensors")
    return files


class ShardWriter:
    """Writes tensors one after another; holds at most one shard in memory.

    Args:
        folder: an existing directory.
        max_bytes: size of a shard at which the next one is started.
    """

    def __init__(self, folder: Path, max_bytes: int = SHARD_BYTES) -> None:
        self.folder, self.max_bytes = folder, max_bytes
        self._pending: dict[str, Tensor] = {}
        self._pending_bytes = self._total_bytes = 0
        self._shards: list[list[str]] = []

    def add(self, name: str, tensor: Tensor) -> None:
        """Adds a tensor.

        Raises:
            OSError: a shard cannot be written.
        """
        if self._pending and self._pending_bytes + tensor.nbytes > self.max_bytes:
            self._flush()
        self._pending[name] = tensor.detach().cpu().contiguous()
        self._pending_bytes += tensor.nbytes
        self._total_bytes += tensor.nbytes

    def close(self) -> None:
        """Writes the last shard, gives the files their final names and writes the index if there are several."""
        if self._pending or not self._shards:
            self._flush()
        count = len(self._shards)
        if count == 1:
            self._part(0).rename(self.folder / WEIGHTS)
            return
        weight_map: dict[str, str] = {}
        for number, names in enumerate(self._shards):
            path = self.folder / f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            self._part(number).rename(path)
            weight_map |= dict.fromkeys(names, path.name)
        index = {"metadata": {"total_size": self._total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        (self.folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")

    def _flush(self) -> None:
        save_tensors(self._pending, self._part(len(self._shards)))
        self._shards.append(list(self._pending))
        self._pending, self._pending_bytes = {}, 0

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number}.safetensors"


def save_tensors(tensors: dict[str, Tensor], path: Path, notes: Mapping[str, str] | None = None) -> None:
    """Writes one file; `notes` are added to its metadata.

    Tensors of a device are copied to the host first: safetensors reads their storage, which not every device has.

    Raises:
        OSError: it cannot be written.
    """
    here = {name: tensor.cpu() for name, tensor in tensors.items()}
    try:
        save_file(here, path, metadata={"format": "pt", **(notes or {})})
    except SafetensorError as error:  # an OSError whose type was lost in Rust
        raise OSError(str(error)) from error
