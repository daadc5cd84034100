"""Sliding-window attention alternating with full attention (spec 3.5): queries of an S layer see only the last keys.

Shapes: T new tokens, S visible keys, H heads, G key/value heads, K head size.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

from torch import Tensor

from arcforge_attention.configs import SwaConfig
from arcforge_attention.entries import Entries
from arcforge_attention.gqa import GQA
from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import CacheEntry, CacheSpec
from arcforge_core.contracts.batch import Group, SequenceBatch
from arcforge_core.contracts.hardware import Binding
from arcforge_core.ops import op, reference


class SWA(GQA):
    """`GQA` whose S layers see ``config.window`` keys, with the same parameters; F layers are plain `GQA`."""

    starts_from: ClassVar[tuple[str, ...]] = ("gqa", "swa", "swa_pattern", "simple_gdn")

    def __init__(self, config: SwaConfig, model: ModelConfig, layer_index: int) -> None:
        super().__init__(config, model, layer_index)
        self.set_window(config.window_of(layer_index, model.num_hidden_layers))

    def set_window(self, window: int | None) -> None:
        """Makes this an S layer that sees `window` keys, or an F layer; bind the model's ops afterwards."""
        self.window = self.read_window = window
        if window is not None:
            self.window_attention = op(
                reference.window_attention,
                heads=self.heads, kv_heads=self.groups, key_dim=self.head_dim, value_dim=self.head_dim, window=window,
            )  # fmt: skip

    @classmethod
    def check(cls, config: AttentionConfig, model: ModelConfig) -> None:
        """Checks the pattern, and the same fields as `GQA`."""
        assert isinstance(config, SwaConfig)
        config.check_pattern(model.num_hidden_layers)
        super().check(config, model)

    def ops_bound(self, binding: Binding) -> None:
        """Reads all keys in deterministic runs, which count blocks of keys from a sequence's first one."""
        self.read_window = None if binding.deterministic else self.window

    def attend(self, q_THK: Tensor, entries: Entries, group: Group) -> Tensor:
        """Attends to the window's keys and reads only these from the cache."""
        if self.window is None:
            return super().attend(q_THK, entries, group)
        k_SGK, v_SGK = (entries.read(name, group, self.read_window) for name in ("key", "value"))
        window = None if group is entries.batch.plan.prompt else self.read_window  # only a cache reads less
        cu_key = group.cu_key if window is None else group.cu_window(window)
        return self.window_attention(q_THK, k_SGK, v_SGK, group.cu_query, cu_key, self.window, self.scale)

    def branch(self, batch: SequenceBatch) -> Hashable:
        """Returns None for S layers, because the first key that they read moves with each step."""
        return super().branch(batch) if self.window is None else None

    def cache_spec(self) -> CacheSpec:
        """Returns keys and values; S layers only need those of the window."""
        shape = (self.groups, self.head_dim)
        return CacheEntry("key", shape, window=self.window), CacheEntry("value", shape, window=self.window)

    def training_flops(self, keys_T: Tensor) -> Tensor:
        """Returns `GQA`'s FLOPs for the visible keys."""
        return super().training_flops(keys_T if self.window is None else keys_T.clamp(max=self.window))
