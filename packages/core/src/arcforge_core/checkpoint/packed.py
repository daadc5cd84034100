"""Matrices stored as integers in compressed-tensors' layout, which vLLM, SGLang and transformers read.

int8: ``X.weight`` int8 [N, K] and ``X.weight_scale`` [N, 1]. int4: ``X.weight_packed`` int32 [N, K / 8], eight values
plus 8 to a word, the first lowest; ``X.weight_scale`` [N, G]; ``X.weight_shape`` int64 [2].
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcforge_core.checkpoint.sections import read_json
from arcforge_core.checkpoint.shards import LazyState
from arcforge_core.errors import CheckpointError
from arcforge_core.ops.quant import Format, Quantised, dequantise

QUANTISED = "quantization_config"
METHOD = "compressed-tensors"
WORD, FLIP = 4, 0x88
"""Bytes of an int32, and the highest bits of a byte's two int4."""


def pack_words(packed_NB: Tensor) -> Tensor:
    """Returns int4 of `pack_int4`, uint8 [N, K / 2], as int32 [N, ceil(K / 8)]; missing values are zero bits.

    The bytes are the same on a little-endian machine, but for the highest bit of each value, as 8 is added to it.
    """
    flipped_NB = packed_NB ^ FLIP
    rest = -flipped_NB.shape[-1] % WORD
    padded_NB = torch.nn.functional.pad(flipped_NB, (0, rest)) if rest else flipped_NB  # `pad` copies always
    return padded_NB.contiguous().view(torch.int32)


def unpack_words(words: Tensor, columns: int) -> Tensor:
    """Reverses `pack_words`: uint8 [N, columns / 2].

    Raises:
        ValueError: `columns` is odd.
    """
    if columns % 2:
        raise ValueError(f"two int4 share a byte: the row length must be even, not {columns}")
    return words.contiguous().view(torch.uint8)[..., : columns // 2] ^ FLIP


def encode(name: str, quantised: Quantised) -> dict[str, Tensor]:
    """Returns the stored tensors of a matrix ``X.weight``, under their names."""
    stem, (values, scale) = name.removesuffix(".weight"), quantised
    if values.dtype == torch.int8:
        return {name: values, f"{stem}.weight_scale": scale.float()}
    shape = torch.tensor([*values.shape[:-1], 2 * values.shape[-1]], dtype=torch.int64)
    packed = {f"{stem}.weight_packed": pack_words(values), f"{stem}.weight_shape": shape}
    return {**packed, f"{stem}.weight_scale": scale.float()}


def describe(forms: Mapping[str, Format], rounds: bool, kept: Iterable[str]) -> dict[str, Any]:
    """Returns ``quantization_config`` of a checkpoint.

    Args:
        forms: format by name of each quantised matrix in the files.
        rounds: whether activations are rounded to int8 per token.
        kept: names of the matrices that stay floats.
    """
    groups = {}
    for number, form in enumerate(sorted(set(forms.values()), key=lambda f: (-f.bits, f.group or 0))):
        stems = {n.removesuffix(".weight") for n, f in forms.items() if f == form}
        targets = sorted({"re:^" + re.sub(r"\d+", r"\\d+", re.escape(stem)) + "$" for stem in stems})
        strategy = {"strategy": "channel"} if form.group is None else {"strategy": "group", "group_size": form.group}
        weights = {"num_bits": form.bits, "type": "int", "symmetric": True, "dynamic": False, **strategy}
        token = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}
        groups[f"group_{number}"] = {
            "targets": targets, "weights": weights, "input_activations": token if rounds else None,
            "output_activations": None, "format": "int-quantized" if form.bits == 8 else "pack-quantized",
        }  # fmt: skip
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": METHOD, "quantization_status": "compressed",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "config_groups": groups, "ignore": sorted(name.removesuffix(".weight") for name in kept),
    }  # fmt: skip


def read_rounds(directory: Path) -> bool:
    """Returns whether a quantised checkpoint's activations are rounded to int8 per token.

    Raises:
        CheckpointError: some are and some are not.
    """
    packed = read_json(directory)[QUANTISED]
    if packed["quant_method"] != METHOD:  # Ascend's layout holds nothing else
        return True
    groups = packed["config_groups"].values()
    rounds = {group.get("input_activations") is not None for group in groups}
    if len(rounds) != 1:
        raise CheckpointError(f"{directory}: {QUANTISED}: input_activations must be the same in every group")
    return rounds.pop()


class PackedShards(Mapping[str, Tensor]):
    """The tensors of files in which some matrices are integers; those are read as float32 values.

    Attributes:
        shapes: of every tensor, under the names of an unquantised checkpoint.

    Raises:
        CheckpointError: another method than compressed-tensors, a format that is not its integers, or a matrix
            without a scale.
    """

    def __init__(self, stored: LazyState, config: Mapping[str, Any], where: str) -> None:
        if config.get("quant_method") != METHOD:
            raise CheckpointError(f"{where}: {QUANTISED}.quant_method={config.get('quant_method')!r}: must be {METHOD}")
        self._stored, self._where = stored, where
        self.shapes: dict[str, torch.Size] = {}
        self._packed: set[str] = set()
        for name, shape in stored.shapes.items():
            stem, _, kind = name.rpartition(".")
            if kind == "weight_packed":
                shape = torch.Size(stored[f"{stem}.weight_shape"].tolist())
            if kind in ("weight_scale", "weight_shape"):
                continue
            full = f"{stem}.weight" if kind == "weight_packed" else name
            self.shapes[full] = shape
            if f"{stem}.weight_scale" in stored.shapes and kind in ("weight", "weight_packed"):
                self._packed.add(full)
            elif kind == "weight_packed":
                raise CheckpointError(f"{where}: {name} has no {stem}.weight_scale")

    def is_packed(self, name: str) -> bool:
        """Returns whether a matrix is stored as integers."""
        return name in self._packed

    def quantised(self, name: str) -> tuple[Quantised, Format]:
        """Returns a matrix's integers, int4 packed as in `arcforge_core.ops.quant`, and their format."""
        stem, columns = name.removesuffix(".weight"), self.shapes[name][-1]
        scale = self._stored[f"{stem}.weight_scale"].float()
        group = None if scale.shape[-1] == 1 else columns // scale.shape[-1]
        if f"{stem}.weight_packed" not in self._stored.shapes:
            return Quantised(self._stored[name], scale), Format(8, group)
        values = unpack_words(self._stored[f"{stem}.weight_packed"], columns)
        return Quantised(values, scale), Format(4, group)

    def __getitem__(self, name: str) -> Tensor:
        return dequantise(self.quantised(name)[0]) if name in self._packed else self._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
