"""Matrices stored as integers in the layout of Ascend's tools (msModelSlim's ``ascendv1``, read by vllm-ascend).

int8: ``X.weight`` int8 [N, K], ``X.weight_scale`` [N, 1] and ``X.weight_offset``, zeros. int4: ``X.weight`` int8
[N / 2, K], an even row in the low half of a byte and the next in the high half, scale and offset as above, and
``X.scale_bias``. ``quant_model_description.json`` names the kind of every tensor.

The chip multiplies an int8 activation as two int4 values, ``x = 16 hi + (lo - 8) + 8``; ``scale_bias`` is the last
term's product, ``8 sum(w)`` of a row, [N, 1]. A row of ``down_proj`` is cut into `PARTS`, [N, PARTS], one for each rank
of tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from arcforge_core.checkpoint.packed import PackedShards
from arcforge_core.checkpoint.shards import LazyState
from arcforge_core.errors import CheckpointError
from arcforge_core.ops.quant import Format, Quantised, pack_int4, unpack_int4

METHOD = "ascend"
DESCRIPTION = "quant_model_description.json"
PARTS = 16
INT8_KIND, INT4_KIND, FLOAT_KIND = "W8A8_DYNAMIC", "W4A8_DYNAMIC", "FLOAT"
SURPLUS = "rot.weight"
"""The rotation between bases, which our model stores with its MTP module."""


def check(name: str, shape: torch.Size, form: Format) -> None:
    """Raises `ValueError` with the reason if a matrix [N, K] has no place in this layout."""
    if form.group is not None:
        raise ValueError(f"has a scale for each row, not for groups of {form.group}")
    if form.bits == 4 and shape[-2] % 2:
        raise ValueError(f"packs two rows into one: {name} has {shape[-2]}")
    if form.bits == 4 and _cut(name) and shape[-1] % PARTS:
        raise ValueError(f"cuts rows of {name} into {PARTS} parts: they have {shape[-1]} columns")


def encode(name: str, quantised: Quantised) -> dict[str, Tensor]:
    """Returns the stored tensors of a matrix ``X.weight``, under their names."""
    stem, (values, scale) = name.removesuffix(".weight"), quantised
    scale_N1 = scale.float()
    found = {f"{stem}.weight_scale": scale_N1, f"{stem}.weight_offset": torch.zeros_like(scale_N1)}
    if values.dtype == torch.int8:
        return {name: values, **found}
    integers_NK = unpack_int4(values)
    return {name: pack_rows(integers_NK), **found, f"{stem}.scale_bias": scale_bias(name, integers_NK, scale_N1)}


def pack_rows(values_NK: Tensor) -> Tensor:
    """Packs rows 2i and 2i + 1 of int4 values (int8) into row i: int8 [N / 2, K]."""
    return (values_NK[0::2] & 15) | (values_NK[1::2] << 4)


def unpack_rows(packed: Tensor) -> Tensor:
    """Reverses `pack_rows`."""
    low, high = (packed << 4) >> 4, packed >> 4
    return torch.stack((low, high), dim=1).flatten(0, 1)


def scale_bias(name: str, values_NK: Tensor, scale_N1: Tensor) -> Tensor:
    """Returns ``8 sum(w)`` of each row, or of each of a ``down_proj`` row's `PARTS`."""
    sums = values_NK.unflatten(1, (PARTS if _cut(name) else 1, -1)).sum(-1, dtype=torch.int64)
    bias: Tensor = 8 * sums.float() * scale_N1
    return bias


def _cut(name: str) -> bool:
    return "down_proj" in name


def describe(kinds: Mapping[str, str], rotated: str | None) -> dict[str, Any]:
    """Returns the contents of `DESCRIPTION`.

    Args:
        kinds: of every stored tensor.
        rotated: the file with the rotation of the residual stream; None without.
    """
    optional = {} if rotated is None else {"quarot": {"rotation_map": {"global_rotation": rotated}}}
    found = set(kinds.values())
    model = next(kind for kind in (INT4_KIND, INT8_KIND, FLOAT_KIND) if kind in found)
    return {
        **dict(sorted(kinds.items())), "version": "1.0.0", "model_quant_type": model, "metadata": {}, "group_size": 0,
        "is_rot_used": rotated is not None, "optional": optional,
    }  # fmt: skip


def kinds_of(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Returns the kind of every stored tensor of a checkpoint, by names alone."""
    found = {}
    for name in tensors:
        stem = name.rpartition(".")[0]
        integers = name.rpartition(".")[2] in ("weight", "weight_scale", "weight_offset", "scale_bias")
        kind = INT4_KIND if f"{stem}.scale_bias" in tensors else INT8_KIND
        found[name] = kind if integers and f"{stem}.weight_scale" in tensors else FLOAT_KIND
    return found


class AscendShards(PackedShards):
    """As `PackedShards`, for this layout.

    Raises:
        CheckpointError: a matrix with static activation scales, or packed rows without a scale for each.
    """

    def __init__(self, stored: LazyState, where: str) -> None:
        self._stored, self._where = stored, where
        self.shapes, self._packed = {}, set()
        for name, shape in stored.shapes.items():
            stem, _, kind = name.rpartition(".")
            if kind in ("deq_scale", "input_scale"):
                raise CheckpointError(f"{where}: {name}: activations with fixed scales cannot be served")
            if kind in ("weight_scale", "weight_offset", "scale_bias") or name == SURPLUS:
                continue
            scale = stored.shapes.get(f"{stem}.weight_scale")
            self.shapes[name] = shape
            if kind == "weight" and scale is not None:
                self._packed.add(name)
                self.shapes[name] = torch.Size((scale[0], shape[1]))
                halves = 2 if f"{stem}.scale_bias" in stored.shapes else 1
                if len(shape) != 2 or tuple(scale) != (halves * shape[0], 1):
                    raise CheckpointError(f"{where}: {stem}.weight_scale must be ({halves * shape[0]}, 1)")

    def quantised(self, name: str) -> tuple[Quantised, Format]:
        """See `PackedShards.quantised`."""
        stem = name.removesuffix(".weight")
        scale = self._stored[f"{stem}.weight_scale"].float()
        if f"{stem}.scale_bias" not in self._stored.shapes:
            return Quantised(self._stored[name], scale), Format(8)
        return Quantised(pack_int4(unpack_rows(self._stored[name])), scale), Format(4)
