"""How a quantised checkpoint's files hold integers: compressed-tensors' layout, or that of Ascend's tools."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcforge_core.checkpoint import packed, packed_ascend
from arcforge_core.checkpoint.packed import PackedShards
from arcforge_core.checkpoint.packed_ascend import SURPLUS, AscendShards
from arcforge_core.checkpoint.sections import DESCRIPTION
from arcforge_core.checkpoint.shards import INDEX, LazyState, save_tensors
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.ops.quant import Format, Quantised
from arcforge_hw.quantization.transform import MTP_ROT, TransformedState

ROT, TURN = "rot.safetensors", "optional/quarot.safetensors"


class FileLayout(ABC):
    """One way to store integers."""

    @abstractmethod
    def check(self, shapes: Mapping[str, torch.Size], forms: Mapping[str, Format]) -> None:
        """Raises `ConfigError` if a matrix has no place in the layout; both arguments have the files' names."""

    @abstractmethod
    def encode(self, name: str, quantised: Quantised) -> dict[str, Tensor]:
        """Returns the stored tensors of a matrix."""

    @abstractmethod
    def shards(self, stored: LazyState, config: Mapping[str, Any], where: str) -> PackedShards:
        """Returns a reader of the files."""

    @abstractmethod
    def finish(
        self, work: Path, state: TransformedState, forms: Mapping[str, Format], kept: Sequence[str], rounds: bool
    ) -> dict[str, Any]:
        """Writes the files beside the weights and returns ``quantization_config``."""

    def verify(self, shards: PackedShards, stored: LazyState, name: str) -> Quantised:
        """Returns the integers of a matrix, unpacked from its files.

        Raises:
            CheckpointError: the files hold anything else than these integers packed again.
        """
        found = shards.quantised(name)[0]
        for part, wanted in self.encode(name, found).items():
            if part not in stored.shapes or not torch.equal(stored[part], wanted):
                raise CheckpointError(f"{part} is not what its integers give: the disk or its file system is at fault")
        return found


class CompressedTensors(FileLayout):
    """`arcforge_core.checkpoint.packed`, which has a place for every format."""

    def check(self, shapes: Mapping[str, torch.Size], forms: Mapping[str, Format]) -> None:
        """See `FileLayout.check`."""

    def encode(self, name: str, quantised: Quantised) -> dict[str, Tensor]:
        """See `FileLayout.encode`."""
        return packed.encode(name, quantised)

    def shards(self, stored: LazyState, config: Mapping[str, Any], where: str) -> PackedShards:
        """See `FileLayout.shards`."""
        return PackedShards(stored, config, where)

    def finish(
        self, work: Path, state: TransformedState, forms: Mapping[str, Format], kept: Sequence[str], rounds: bool
    ) -> dict[str, Any]:
        """See `FileLayout.finish`."""
        return packed.describe(forms, rounds, kept)


class Ascend(FileLayout):
    """`arcforge_core.checkpoint.packed_ascend`, with the rotation that vllm-ascend's MTP module reads."""

    def check(self, shapes: Mapping[str, torch.Size], forms: Mapping[str, Format]) -> None:
        """See `FileLayout.check`."""
        for name, form in forms.items():
            try:
                packed_ascend.check(name, shapes[name], form)
            except ValueError as error:
                raise ConfigError("layout", "ascend", str(error)) from error

    def encode(self, name: str, quantised: Quantised) -> dict[str, Tensor]:
        """See `FileLayout.encode`."""
        return packed_ascend.encode(name, quantised)

    def shards(self, stored: LazyState, config: Mapping[str, Any], where: str) -> PackedShards:
        """See `FileLayout.shards`."""
        return AscendShards(stored, where)

    def finish(
        self, work: Path, state: TransformedState, forms: Mapping[str, Format], kept: Sequence[str], rounds: bool
    ) -> dict[str, Any]:
        """See `FileLayout.finish`."""
        index = json.loads((work / INDEX).read_text(encoding="utf-8"))
        if state.rotations is not None:
            (work / TURN).parent.mkdir(exist_ok=True)
            save_tensors({"global_rotation": state.rotations.hidden.float().contiguous()}, work / TURN)
            save_tensors({SURPLUS: state.between_bases(MTP_ROT).float().contiguous()}, work / ROT)
            index["weight_map"][SURPLUS] = ROT
            (work / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        kinds = packed_ascend.kinds_of(index["weight_map"])
        described = packed_ascend.describe(kinds, None if state.rotations is None else TURN)
        (work / DESCRIPTION).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        return {"quant_method": packed_ascend.METHOD, "description": DESCRIPTION}


LAYOUTS: dict[str, FileLayout] = {"compressed-tensors": CompressedTensors(), "ascend": Ascend()}
