"""Types that name the tensors of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Link:
    """One tensor of a model and the tensors of a Hugging Face checkpoint that it is built from.

    Attributes:
        ours: name in the model's state dict.
        theirs: names in the checkpoint's files.
        join: builds the model's tensor from the checkpoint's, given in this order.
        split: the inverse.
    """

    ours: str
    theirs: tuple[str, ...]
    join: Callable[[list[Tensor]], Tensor]
    split: Callable[[Tensor], list[Tensor]]
