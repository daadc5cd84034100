"""Reads a GGUF file with the `gguf` library: metadata, and memory-mapped tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from arcforge_core.errors import CheckpointError

if TYPE_CHECKING:
    from gguf import GGUFReader

T = TypeVar("T")


def open_gguf(path: Path) -> GGUFReader:
    """Reads a file's header and maps its tensors.

    Raises:
        CheckpointError: `gguf` is not installed; the file is missing, not a GGUF file, truncated (names the tensor)
            or of the other byte order.
    """
    try:
        import gguf
    except ImportError as error:
        raise CheckpointError("reading GGUF files needs gguf: pip install 'arcforge-core[gguf]'") from error

    class GgufReader(gguf.GGUFReader):
        """Names the tensor at which a truncated file ends."""

        def _build_tensors(self, start_offs: int, fields: list[gguf.ReaderField]) -> None:
            for field in fields:
                _, name, _, dims, kind, offset = field.parts
                block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind[0])]
                end = start_offs + int(offset[0]) + math.prod(dims.tolist()) // block * block_bytes
                if end > self.data.size:
                    raise CheckpointError(
                        f"{path} is truncated: tensor {bytes(name).decode()} ends at byte {end:,}, "
                        f"the file at {self.data.size:,}"
                    )
            super()._build_tensors(start_offs, fields)

    if not path.is_file():
        raise CheckpointError(f"{path} is missing")
    try:
        reader = GgufReader(path)
    except (ValueError, IndexError, KeyError) as error:  # raised by reading past the end of a header
        raise CheckpointError(f"{path} is damaged, truncated or not a GGUF file: {error}") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
    if reader.byte_order == "S":
        raise CheckpointError(f"{path} was written with the other byte order")
    return reader


@dataclass(frozen=True)
class Metadata:
    """The key-value part of a GGUF file."""

    path: Path
    values: Mapping[str, Any]

    @classmethod
    def of(cls, reader: GGUFReader, path: Path) -> Metadata:
        """Reads the metadata of an open file."""
        return cls(path, {name: field.contents() for name, field in reader.fields.items()})

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Returns the value of a key.

        Raises:
            CheckpointError: the key is missing and has no default, or its value is not of type `kind`.
        """
        value = self.values.get(key, default)
        if value is None:
            raise CheckpointError(f"{self.path}: {key} is missing")
        if not isinstance(value, kind):
            raise CheckpointError(f"{self.path}: {key}={str(value)[:40]}: must be of type {kind.__name__}")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        """Returns an integer of at least 1.

        Raises:
            CheckpointError: as in `get`, or the number is smaller.
        """
        value = self.get(key, int, default)
        if value < 1:
            raise CheckpointError(f"{self.path}: {key}={value}: must be at least 1")
        return value
