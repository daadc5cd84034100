"""Matrices stored as integers in the layout of Ascend's tools (msModelSlim's ``ascendv1``, read by vllm-ascend).

int8: ``X.weight`` int8 [N, K], ``X.weight_scale`` [N, 1] and ``X.weight_offset``, zeros. int4: ``X.weight`` int8
[N / 2, K], an even row in the low half of a byte and the next in the high half, scale and offset as above, and
``X.scale_bias``. ``quant_model_description.json`` names the kind of every tensor.

The chip multiplies an int8 activation as two int4 values, ``x = 16 hi + (lo - 8) + 8``; ``scale_bias`` is the last
term's product, ``8 sum(w)`` of a row, [N, 1]. A row of ``down_proj`` is cut into `PARTS`, [N, PARTS], one for each rank
of tensor parallelism.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcforge_core.checkpoint.packed import PackedShards
from arcforge_core.checkpoint.sections import DESCRIPTION
from arcforge_core.checkpoint.shards import LazyState
from arcforge_core.errors import CheckpointError
from arcforge_core.ops.quant import Format, Quantised, pack_int4, unpack_int4

log = logging.getLogger("arcforge.checkpoint")
METHOD = "ascend"
PARTS = 16
INT8_KIND, INT4_KIND, FLOAT_KIND = "W8A8_DYNAMIC", "W4A8_DYNAMIC", "FLOAT"
READ = (FLOAT_KIND, INT8_KIND, INT4_KIND, "W8A8", "W8A8_MIX")
"""Kinds of tensors that are read; the last two have fixed scales of their inputs, always or while decoding."""
PARTS_OF_A_MATRIX = (
    "weight_scale", "weight_offset", "scale_bias", "deq_scale", "quant_bias", "input_scale", "input_offset",
)  # fmt: skip
"""Stored beside a matrix's integers, by the last part of the name."""
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


def read_description(directory: Path) -> dict[str, Any]:
    """Returns the contents of `DESCRIPTION`.

    Raises:
        CheckpointError: it is not a JSON object.
    """
    path = directory / DESCRIPTION
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} must be a JSON object")
    return found


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
    """As `PackedShards`, for this layout and for what msModelSlim writes.

    A matrix of kind ``W8A8`` has fixed scales of its inputs, ``deq_scale = input_scale * weight_scale``: the scale of
    its rows is recovered, and a server rounds its inputs by token, which is finer. A rotated model's MTP module is left
    out unless its two rotations are stored with it, as ours are: msModelSlim's has an embedding and a head of its own.

    Args:
        stored: the tensors of the files.
        where: named in errors.
        kinds: contents of `DESCRIPTION`.
        mtp: how names of the MTP module's tensors begin.

    Raises:
        CheckpointError: a kind of matrix that is not in `READ`, or a scale that is missing or of another shape.
    """

    def __init__(self, stored: LazyState, where: str, kinds: Mapping[str, Any] | None = None, mtp: str = "") -> None:
        self._stored, self._where = stored, where
        self.shapes, self._packed = {}, set()
        left_out = mtp if mtp and SURPLUS in stored.shapes and f"{mtp}{SURPLUS}" not in stored.shapes else None
        if left_out and any(name.startswith(left_out) for name in stored.shapes):
            log.warning("%s: the MTP module of a model rotated by msModelSlim is left out: it has its own head", where)
        for name, shape in stored.shapes.items():
            stem, _, part = name.rpartition(".")
            if (kind := (kinds or {}).get(name, FLOAT_KIND)) not in READ:
                raise CheckpointError(f"{where}: {name} is of kind {kind}: must be {', '.join(READ)}")
            if part in PARTS_OF_A_MATRIX or name == SURPLUS or (left_out and name.startswith(left_out)):
                continue
            self.shapes[name] = shape
            if part == "weight" and f"{stem}.weight_scale" in stored.shapes:
                rows = shape[0] * (2 if f"{stem}.scale_bias" in stored.shapes else 1)
                self._pack(name, f"{stem}.weight_scale", rows, (rows, 1))
            elif part == "weight" and f"{stem}.deq_scale" in stored.shapes:
                self._pack(name, f"{stem}.deq_scale", shape[0], (shape[0],))

    def _pack(self, name: str, scale: str, rows: int, wanted: tuple[int, ...]) -> None:
        shape = self._stored.shapes[name]
        if len(shape) != 2 or tuple(self._stored.shapes[scale]) != wanted:
            raise CheckpointError(f"{self._where}: {scale} must be {wanted}")
        self._packed.add(name)
        self.shapes[name] = torch.Size((rows, shape[1]))

    def quantised(self, name: str) -> tuple[Quantised, Format]:
        """See `PackedShards.quantised`.

        Raises:
            CheckpointError: the integers of a matrix are not symmetric.
        """
        stem = name.removesuffix(".weight")
        offset = f"{stem}.weight_offset"
        if offset in self._stored.shapes and bool(self._stored[offset].any()):
            raise CheckpointError(f"{self._where}: {offset} must be 0: integers with an offset cannot be served")
        scale = self._scale(stem)
        if f"{stem}.scale_bias" not in self._stored.shapes:
            return Quantised(self._stored[name], scale), Format(8)
        return Quantised(pack_int4(unpack_rows(self._stored[name])), scale), Format(4)

    def _scale(self, stem: str) -> Tensor:
        """Returns the float32 scales of a matrix's rows, [N, 1]."""
        if f"{stem}.weight_scale" in self._stored.shapes:
            return self._stored[f"{stem}.weight_scale"].float()
        factor_N = self._stored[f"{stem}.deq_scale"]
        if factor_N.dtype == torch.int64:  # float32 bits, for models in float16
            factor_N = factor_N.to(torch.int32).view(torch.float32)
        return (factor_N.float() / self._stored[f"{stem}.input_scale"].float())[:, None]
