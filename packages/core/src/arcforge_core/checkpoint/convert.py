"""Converts any readable checkpoint to any writable format, tensor by tensor."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from arcforge_core.checkpoint.hf.folder import OWN, copy_beside, write_hf
from arcforge_core.checkpoint.int8 import packed, rounded
from arcforge_core.checkpoint.pretrained import Checkpoint, find_checkpoint, open_checkpoint, own_config
from arcforge_core.checkpoint.sections import meta_model
from arcforge_core.checkpoint.shards import SHARD_BYTES, LazyState, ShardWriter
from arcforge_core.configs import ConvertConfig
from arcforge_core.console.progress import track
from arcforge_core.console.result import Result
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.files.atomic import replacing
from arcforge_core.files.find import CONFIG


@dataclass(frozen=True)
class CastState(Mapping[str, Tensor]):
    """Tensors cast on reading.

    Attributes:
        state: the tensors to cast.
        dtype: of the parameters; None keeps their dtypes, int8 gives the values that a file of int8 is read as.
        buffers: names that are never cast.
    """

    state: LazyState
    dtype: torch.dtype | None
    buffers: frozenset[str]

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.state[name]
        if self.dtype is None or name in self.buffers:
            return tensor
        return rounded(tensor) if self.dtype == torch.int8 else tensor.to(self.dtype)

    def stored(self, name: str) -> dict[str, Tensor]:
        """Returns the tensors that arcforge's own format stores for one."""
        if self.dtype == torch.int8 and name not in self.buffers:
            return packed(name, self.state[name])
        return {name: self[name]}

    def __iter__(self) -> Iterator[str]:
        return iter(self.state.shapes)

    def __len__(self) -> int:
        return len(self.state.shapes)


def run(config: ConvertConfig) -> Result:
    """Converts as configured, prints one line and returns the new directory; see `convert`."""
    written = convert(
        config.checkpoint,
        config.output_dir,
        to=config.to,
        dtype=None if config.dtype is None else getattr(torch, config.dtype),
        max_shard_bytes=config.max_shard_bytes(),
        overwrite=config.overwrite,
    )
    values = sum(shape.numel() for shape in written.state.shapes.values())
    print(f"{written.path}: {written.architecture}, {len(written.state.shapes)} tensors, {values:,} values")
    return Result(written.path, {"tensors": len(written.state.shapes), "values": values})


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str | None = None,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> Checkpoint:
    """Converts a checkpoint, compares the written files with the source bit for bit, and returns the opened result.

    Holds at most one shard and one tensor in memory.

    Args:
        source: an arcforge model, a run (its last checkpoint), a transformers directory, or a llama GGUF file.
        target: the directory to create.
        to: an architecture of transformers, or ``arcforge`` for arcforge's own format. None keeps the source's
            architecture, and chooses one for an arcforge model.
        dtype: of the parameters; None keeps the stored ones, and converts a GGUF file's to bfloat16. int8 writes
            arcforge's own format.
        max_shard_bytes: maximum size of a file.
        overwrite: replace an existing checkpoint.

    Raises:
        CheckpointError: the source cannot be read, the architecture does not fit, or the target exists.
        ConfigError: a field that the architecture cannot express; int8 in another format than arcforge's own.
    """
    if dtype == torch.int8:
        to = to or OWN
        if to != OWN:
            raise ConfigError("dtype", "int8", f"is written in arcforge's own format only, not as {to}")
    source, target = Path(source), Path(target).resolve()
    if target == source.resolve():
        raise CheckpointError(f"{target} is the source itself; choose another directory")
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise CheckpointError(f"{target} exists; choose another directory, or allow it to be replaced (--overwrite)")
    if source.suffix != ".gguf":
        return _convert(find_checkpoint(source), target, to, dtype, max_shard_bytes)
    if not source.is_file():
        raise CheckpointError(f"{source} is missing")
    from arcforge_core.checkpoint.gguf import convert_gguf

    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as between:
        # cast once: via bfloat16, float32 would lose bits
        stored = str(torch.float32 if dtype == torch.int8 else dtype or torch.bfloat16).removeprefix("torch.")
        return _convert(convert_gguf(source, Path(between) / "llama", stored), target, to, dtype, max_shard_bytes)


def _convert(source: Path, target: Path, to: str | None, dtype: torch.dtype | None, max_shard_bytes: int) -> Checkpoint:
    opened = open_checkpoint(source, None if dtype == torch.int8 else dtype)
    model = meta_model(opened.config, opened.attention, str(source))
    state = CastState(opened.state, dtype, frozenset(name for name, _ in model.named_buffers()))
    architecture = to or (None if opened.architecture == OWN else opened.architecture)
    with replacing(target, marker=CONFIG) as folder:
        if architecture == OWN:
            _write_own(folder, opened, state, max_shard_bytes)
        else:
            write_hf(
                folder, opened.config, opened.attention, state,
                architecture=architecture, tokenizer=source, max_shard_bytes=max_shard_bytes,
                track=lambda links: track(links, "writing"),
            )  # fmt: skip
        _verify(open_checkpoint(folder), state)
    return open_checkpoint(target)


def _write_own(folder: Path, opened: Checkpoint, state: CastState, max_shard_bytes: int) -> None:
    writer = ShardWriter(folder, max_shard_bytes)
    for name in track(state, "writing"):
        for stored, tensor in state.stored(name).items():
            writer.add(stored, tensor)
    writer.close()
    copy_beside(opened.path, folder)
    config = own_config(opened.config, opened.attention)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _verify(written: Checkpoint, state: CastState) -> None:
    """Compares bits, so that NaN equals itself."""
    for name in track(state, "verifying"):
        before, after = state[name].contiguous(), written.state[name].contiguous()
        if before.dtype != after.dtype or not torch.equal(before.view(torch.uint8), after.view(torch.uint8)):
            raise CheckpointError(f"{name} differs after writing: the disk or its file system is at fault")
