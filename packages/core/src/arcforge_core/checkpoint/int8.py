"""Weights stored as int8 with a scale per row: a quarter of float32, read back as bfloat16.

A matrix NAME is stored as ``NAME`` (int8) and ``NAME.int8_scale`` (fp32, one per row); vectors are stored as bfloat16,
buffers as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from arcforge_core.checkpoint.shards import LazyState
from arcforge_core.errors import CheckpointError
from arcforge_core.ops.quant import INT8, Quantised, dequantise, quantise

SCALE = ".int8_scale"
READ_AS = torch.bfloat16


def is_packed(tensor: Tensor) -> bool:
    """Returns whether a parameter is stored as int8: matrices, and stacks of them."""
    return tensor.ndim >= 2 and tensor.is_floating_point()


def packed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Returns the stored tensors of a parameter; a vector is stored in bfloat16."""
    if not is_packed(tensor):
        return {name: tensor.to(READ_AS)}
    values, scale = quantise(tensor, INT8)
    return {name: values, name + SCALE: scale}


def rounded(tensor: Tensor) -> Tensor:
    """Returns the values, in bfloat16, that a parameter has after `packed` stored it and a reader unpacked it."""
    return dequantise(quantise(tensor, INT8), READ_AS) if is_packed(tensor) else tensor.to(READ_AS)


class UnpackedState(Mapping[str, Tensor]):
    """The tensors of a directory in which some are int8; those are converted to bfloat16 on access.

    Attributes:
        shapes: of every tensor, without the scales.

    Raises:
        CheckpointError: a scale has no tensor, or another number of rows.
    """

    def __init__(self, stored: LazyState, where: str) -> None:
        self._stored = stored
        self.shapes = {name: shape for name, shape in stored.shapes.items() if not name.endswith(SCALE)}
        for name, shape in stored.shapes.items():
            if name.endswith(SCALE) and shape != (*self.shapes.get(name.removesuffix(SCALE), ())[:-1], 1):
                raise CheckpointError(f"{where}: {name} has the shape {list(shape)}, which belongs to no int8 tensor")

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._stored[name]
        if name + SCALE not in self._stored.shapes:
            return tensor
        return dequantise(Quantised(tensor, self._stored[name + SCALE]), READ_AS)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)
