"""The attention contract: one module code for training and serving, chosen by name.

Shapes: T tokens, D hidden size. A component's target is a class with this interface, called as
``target(config, model, layer_index)``; the MTP module's index is ``model.num_hidden_layers``.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import InitVar, dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

if TYPE_CHECKING:
    from arcforge_core.config.schema import AttentionConfig, ModelConfig
    from arcforge_core.contracts.batch import Group, Pages, SequenceBatch
    from arcforge_core.contracts.optimizer import ParameterRole

Rope = tuple[Tensor, Tensor]
"""Rotary tables ``(cos_TF, sin_TF)`` of a batch's positions."""


@dataclass(frozen=True)
class CacheEntry:
    """One named value cached per token and layer.

    Attributes:
        name: e.g. ``latent``, ``rope``, ``index_key``, ``key``, ``value``.
        shape: shape of one token's entry.
        dtype: None means the model's compute dtype.
        window: a query reads at most this number of last tokens, itself included, so that older ones may be forgotten;
            None means all.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None
    window: int | None = None

    def num_bytes(self, default_dtype: torch.dtype, tokens: int = 1) -> int:
        """Returns bytes of a sequence of N tokens."""
        return min(tokens, self.window or tokens) * prod(self.shape) * (self.dtype or default_dtype).itemsize


@dataclass(frozen=True)
class StateEntry:
    """One named value kept per sequence and layer, whatever its length; zeros before the first token.

    Attributes:
        name: e.g. ``state``, ``conv``.
        shape: shape of one sequence's entry.
        dtype: None means the model's compute dtype.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None = None

    def num_bytes(self, default_dtype: torch.dtype, tokens: int = 1) -> int:
        """Returns bytes of a sequence; `tokens` does not matter."""
        return prod(self.shape) * (self.dtype or default_dtype).itemsize


CacheSpec = tuple[CacheEntry | StateEntry, ...]
"""What a layer caches."""


@dataclass(frozen=True)
class AttentionOutput:
    """What an attention layer returns.

    Attributes:
        out_TD: the layer's output, before the residual addition.
        aux_losses: named scalar losses, means over the tokens and weighted: the trainer adds them.
        figures: named scalars without gradient that the trainer logs.
        to_next_layer: keyword arguments for the `forward` of the next layer, e.g. the keys that DSA selected; most
            variants have none.
        handed_on: the old name of `to_next_layer`, accepted for one version.
    """

    out_TD: Tensor
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    to_next_layer: dict[str, Any] = field(default_factory=dict)
    handed_on: InitVar[dict[str, Any] | None] = None

    def __post_init__(self, handed_on: dict[str, Any] | None) -> None:
        if handed_on is not None:
            warnings.warn("AttentionOutput.handed_on is now called to_next_layer", FutureWarning, stacklevel=3)
            object.__setattr__(self, "to_next_layer", handed_on)


class LayerCache(Protocol):
    """One layer's part of a cache."""

    def write(self, batch: SequenceBatch, **values_T: Tensor) -> None:
        """Stores the new tokens' entries at ``batch.write_slots_T``: all `CacheEntry`s of the layer, none else."""

    def read(self, name: str, batch: SequenceBatch, group: Group, window: int | None = None) -> Tensor:
        """Returns [S, ...], the past and new entries of the group's segments laid one after another.

        With a window, of each segment's past only the ``window - 1`` last ones. A view when one segment's pages are
        consecutive, else a gather.
        """

    def paged(self, name: str, batch: SequenceBatch, group: Group) -> tuple[Tensor, Pages | None]:
        """Returns what `read` returns, or all rows that an entry has here and where in them the group's keys lie."""

    def in_place(self, name: str, batch: SequenceBatch, group: Group) -> tuple[Tensor, Tensor, Pages]:
        """Returns all rows that an entry has here, those of the batch's new tokens, and where the group's keys lie.

        For a layer with one entry, whose op writes it.
        """

    def read_state(self, name: str, batch: SequenceBatch, group: Group) -> Tensor:
        """Returns [n, ...], a `StateEntry` of the group's segments; of a segment without a past, zeros."""

    def write_state(self, name: str, batch: SequenceBatch, group: Group, value_N: Tensor) -> None:
        """Replaces a `StateEntry` of the group's segments."""


@runtime_checkable
class Recordable(Protocol):
    """An optional ability of an attention layer: its decoding steps can be recorded and replayed."""

    def branch(self, batch: SequenceBatch) -> Hashable:
        """Returns a key of everything that a decoding step's lengths decide.

        Steps of one shape and key call the same kernels, and a sequence that a step contains more than once gives and
        stores the same each time. None where that is not so, where more than kernels is called, or where the cache is
        read other than by `paged`.
        """


@runtime_checkable
class WritesCache(Protocol):
    """An optional ability of an attention layer: it writes the cache entries of tokens without attending."""

    def write_cache(self, x_TD: Tensor, batch: SequenceBatch, cache: LayerCache, *, rope: Rope) -> None:
        """Writes what `forward` would write for the same arguments, and computes nothing else."""


class Attention(Protocol):
    """An attention layer (a `torch.nn.Module`).

    It declares its ops in the constructor, ``self.rope = op(reference.rope, dim=64)`` (`arcforge_core.ops.op`).
    ``q``, ``k`` of a token see ``past + j + 1`` keys of their own segment and nothing of other segments.

    Attributes:
        starts_from: variants whose trained weights this one can start from: it takes the tensors whose name and
            shape it has too, and what it has besides is new.
        shares_prefixes: whether `forward` takes batches of `SequenceBatch.shared`; a layer without the attribute does
            not, nor does one with a `StateEntry`. Then sequences are computed one by one.
    """

    starts_from: ClassVar[tuple[str, ...]] = ()
    shares_prefixes: ClassVar[bool] = False

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Raises `ConfigError` when the sizes cannot be built; called before any weight is made."""

    def forward(
        self,
        x_TD: Tensor,
        batch: SequenceBatch,
        cache: LayerCache | None = None,
        *,
        rope: Rope,
    ) -> AttentionOutput:
        """Attends; with a cache, writes the new tokens' entries first.

        The model computes `rope`, for ``model.qk_rope_head_dim``, once per step. A variant whose layers pass
        values to the next layer (`AttentionOutput.to_next_layer`) takes them as further keyword arguments.
        """

    def cache_spec(self) -> CacheSpec:
        """Returns what the layer caches."""

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns for MFU the FLOPs [T] of queries by the keys that they see: products beyond those with parameters.

        They count in expanded form and with their backward passes. `keys_T` is float64, so that means can be given.
        """

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Returns roles of own parameters by local name, where the default rule does not fit."""
