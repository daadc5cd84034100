"""The matrices inside a parameter: heads, parts of a fused weight, and experts are separate matrices.

Shapes: B matrices, G groups of R rows that form one matrix, C columns.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from arcforge_core.contracts.optimizer import RoledParameter


@dataclass(frozen=True)
class Matrices:
    """Matrices of one shape inside one parameter: the same rows of every group.

    A parameter ``[..., rows, C]`` is viewed as ``[B, G, group_rows, C]``. A part of a fused weight is a row range of
    each group. Split by head, every head is a matrix (G = 1, heads in B); whole, a matrix takes its rows from all
    heads (G = heads).

    Attributes:
        parameter: the contiguous parameter.
        groups: G.
        group_rows: rows of a group, all parts together.
        rows: row range of a group that belongs to these matrices.
        batch: range of matrices.
    """

    parameter: nn.Parameter
    groups: int
    group_rows: int
    rows: range
    batch: range

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of each matrix."""
        return self.groups * len(self.rows), self.parameter.shape[-1]

    def view(self, tensor: Tensor) -> Tensor:
        """Returns these matrices in a contiguous tensor shaped like the parameter: [B, G, R, C], a view."""
        blocks = tensor.view(-1, self.groups, self.group_rows, tensor.shape[-1])
        return blocks[self.batch.start : self.batch.stop, :, self.rows.start : self.rows.stop]


def cut(item: RoledParameter, *, per_head: bool = False) -> list[Matrices]:
    """Returns the matrices of a parameter, one entry per part.

    Args:
        item: the parameter with its role.
        per_head: split parameters of role ``head_matrix`` into one matrix per head.

    Raises:
        ValueError: the parameter is not a contiguous matrix, or its rows do not fit its role.
    """
    parameter, role = item.parameter, item.role
    if parameter.ndim < 2 or not parameter.is_contiguous():
        raise ValueError(f"{item.name}: must be a contiguous matrix for Muon, not {tuple(parameter.shape)}")
    rows, columns = parameter.shape[-2:]
    group_rows = rows // role.num_heads
    parts = role.parts or (group_rows,)
    if sum(parts) * role.num_heads != rows:
        raise ValueError(f"{item.name}: {rows} rows are not {role.num_heads} heads of {parts} rows")
    if not 0 <= role.rope_rows < parts[-1]:
        raise ValueError(f"{item.name}: {role.rope_rows} rotary rows in a part of {parts[-1]}")
    batch, groups = parameter.numel() // (rows * columns), role.num_heads
    if per_head and role.role == "head_matrix":
        batch, groups = batch * groups, 1
    ends = list(itertools.accumulate(parts, initial=0))
    return [
        Matrices(parameter, groups, group_rows, range(start, stop), range(batch))
        for start, stop in itertools.pairwise(ends)
    ]


def chunks(items: Iterable[Matrices], limit: int) -> Iterator[list[Matrices]]:
    """Yields runs of at most `limit` matrices, in order; an entry is split where a run is full."""
    run: list[Matrices] = []
    room = limit
    for item in items:
        rest = item.batch
        while rest:
            taken, rest = rest[:room], rest[room:]
            run.append(dataclasses.replace(item, batch=taken))
            room -= len(taken)
            if not room:
                yield run
                run, room = [], limit
    if run:
        yield run
