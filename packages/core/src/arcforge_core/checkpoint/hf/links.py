"""Maps the tensors of a Hugging Face directory to arcforge's, and back.

Most have the same name and contents. Three differ: rows of half-split RoPE are reordered into pairs, experts are
stacked, and the MTP module is the layer after the last (``model.layers.{num_hidden_layers}``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from arcforge_core.contracts.checkpoint import Link

MTP_OWN_HEAD = ("embed_tokens.weight", "shared_head.head.weight")
"""Copies of the main model's embedding and head that some releases store with the MTP module."""


@dataclass(frozen=True)
class RotatedRows:
    """The rows of a projection that half-split RoPE rotates.

    The architecture pairs row i of a head's rotated part with row i + width / 2; arcforge pairs adjacent rows.

    Attributes:
        head: rows of a head.
        start: first rotated row of a head.
        width: number of rotated rows.
    """

    head: int
    start: int
    width: int

    def to_pairs(self, x: Tensor) -> Tensor:
        """Reorders the rows (first axis) from halves to pairs."""
        halves = x.unflatten(0, (-1, self.head))[:, self.start : self.start + self.width].unflatten(1, (2, -1))
        return self._replace(x, halves.transpose(1, 2))

    def to_halves(self, x: Tensor) -> Tensor:
        """Reorders the rows from pairs to halves."""
        pairs = x.unflatten(0, (-1, self.head))[:, self.start : self.start + self.width].unflatten(1, (-1, 2))
        return self._replace(x, pairs.transpose(1, 2))

    def _replace(self, x: Tensor, rotated: Tensor) -> Tensor:
        before, _, after = x.unflatten(0, (-1, self.head)).split(
            (self.start, self.width, self.head - self.start - self.width), dim=1
        )
        return torch.cat((before, rotated.flatten(1, 2), after), dim=1).flatten(0, 1)


def links(
    shapes: Mapping[str, torch.Size],
    num_hidden_layers: int,
    rotated: Mapping[str, RotatedRows],
    fused: Callable[[str], bool] = lambda name: False,
) -> Iterator[Link]:
    """Yields a link for every arcforge tensor.

    Args:
        shapes: of arcforge's state dict.
        num_hidden_layers: index of the MTP module's layer.
        rotated: half-split projections and norms by their name in a layer, e.g. ``self_attn.q_proj``.
        fused: whether stacked experts are stored under this name, as transformers holds them in memory.
    """
    for ours, shape in shapes.items():
        theirs = re.sub(r"^mtp\.", f"model.layers.{num_hidden_layers}.", ours)
        local = re.sub(r"^model\.layers\.\d+\.", "", theirs)
        rows = rotated.get(local.rpartition(".")[0])
        if rows is not None:
            yield Link(ours, (theirs,), partial(_join_rows, rows), partial(_split_rows, rows))
        elif local in ("mlp.experts.gate_up_proj", "mlp.experts.down_proj") and not fused(theirs):
            stem, _, kind = theirs.rpartition(".")
            parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            names = tuple(f"{stem}.{expert}.{part}.weight" for expert in range(shape[0]) for part in parts)
            yield Link(ours, names, partial(_join_experts, len(parts)), partial(_split_experts, len(parts)))
        else:
            yield Link(ours, (theirs,), lambda tensors: tensors[0], lambda tensor: [tensor])


def _join_rows(rows: RotatedRows, tensors: list[Tensor]) -> Tensor:
    return rows.to_pairs(tensors[0])


def _split_rows(rows: RotatedRows, tensor: Tensor) -> list[Tensor]:
    return [rows.to_halves(tensor)]


def _join_experts(parts: int, tensors: list[Tensor]) -> Tensor:
    """Concatenates the `parts` matrices of each expert along rows and stacks experts along a new first axis."""
    rows, columns = tensors[0].shape
    return torch.cat(tensors).view(-1, parts * rows, columns)


def _split_experts(parts: int, tensor: Tensor) -> list[Tensor]:
    return list(tensor.flatten(0, 1).chunk(parts * len(tensor)))
