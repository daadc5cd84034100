"""The GLM-5-shaped causal language model: embedding, decoder layers, norm, output head, one MTP module.

Shapes: B batch, S length, T ragged tokens, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import CacheSpec, LayerCache, StateEntry
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.errors import ConfigError
from arcforge_core.model.block import Block
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.embedding import Embedding, Head
from arcforge_core.model.init import init_weights
from arcforge_core.model.mtp import MtpModule
from arcforge_core.model.norm import RMSNorm
from arcforge_core.model.outputs import BlockOutput, CausalLMOutput, HiddenOutput, means
from arcforge_core.model.recompute import recomputed
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops import Ops, bind_ops, default_ops, op, reference
from arcforge_core.plugins.loader import registry


class Backbone(nn.Module):
    """The model without its head."""

    def __init__(self, config: ModelConfig, attention: AttentionConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, attention, i) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class CausalLM(nn.Module):
    """The model. Build it with `arcforge_core.model.build.build_model`, which checks the configuration first.

    Args:
        config: sizes.
        attention: the attention variant of every layer.
        ops: source of the kernels; `default_ops()` when None.
    """

    def __init__(self, config: ModelConfig, attention: AttentionConfig, ops: Ops | None = None) -> None:
        super().__init__()
        self.config, self.attention = config, attention
        self.model = Backbone(config, attention)
        self.lm_head = Head(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.mtp = MtpModule(config, attention) if config.mtp.depths else None
        self.linear_cross_entropy = op(
            reference.linear_cross_entropy, width=config.hidden_size, vocab=config.vocab_size
        )
        self.activation_checkpointing = False
        self.compute_dtype: torch.dtype | None = None
        self.bindings = 0  # times ops were bound; recorded steps of earlier bindings are stale
        self.ops = default_ops() if ops is None else ops
        if self.device.type != "meta":
            init_weights(self, config)
        self.rebind()

    def forward(
        self, input_ids: Tensor, batch: SequenceBatch | None = None, cache: PagedCache | None = None
    ) -> CausalLMOutput:
        """Returns logits.

        Args:
            input_ids: int64 [B, S], or ragged [T] with `batch`.
            batch: the segments of ragged tokens.
            cache: the cache that created `batch`.

        Raises:
            ConfigError: a sequence exceeds max_position_embeddings.
        """
        if batch is None:
            if input_ids.ndim != 2 or 0 in input_ids.shape:
                raise ValueError(f"input_ids must be [B, S] with at least one token, got {list(input_ids.shape)}")
            batch = SequenceBatch.build([input_ids.shape[1]] * input_ids.shape[0], device=input_ids.device)
        hidden_TD = self.hidden(input_ids.flatten(), batch, cache).hidden_TD
        return CausalLMOutput(self.logits(hidden_TD).view(*input_ids.shape, -1))

    def hidden(self, tokens_T: Tensor, batch: SequenceBatch, cache: PagedCache | None = None) -> HiddenOutput:
        """Runs all layers and the final norm on ragged tokens."""
        self.check_positions(batch)
        if batch.paths is not None and not self.shares_prefixes:
            raise ValueError(f"attention={self.attention.name} cannot share tokens between sequences")
        caches = [None] * len(self.model.layers) if cache is None else cache.layers
        return self.run_layers(self.embed(tokens_T), batch, self.rope(batch), caches)

    def run_layers(
        self, x_TD: Tensor, batch: SequenceBatch, rope: tuple[Tensor, Tensor], caches: Sequence[LayerCache | None]
    ) -> HiddenOutput:
        """Runs all layers and the final norm on embedded tokens [T, D]."""
        losses: dict[str, list[Tensor]] = {}
        figures: dict[str, list[Tensor]] = {}
        loads: dict[int, Tensor] = {}
        from_layer_before: dict[str, Any] = {}
        for index, (layer, cache) in enumerate(zip(self.model.layers, caches, strict=True)):
            out = self._run(layer, x_TD, batch, rope, cache, **from_layer_before)
            x_TD, from_layer_before = out.x_TD, out.to_next_layer
            for seen, named in ((losses, out.aux_losses), (figures, out.figures)):
                for name, value in named.items():
                    seen.setdefault(name, []).append(value)
            if out.load_E is not None:
                loads[index] = out.load_E
        return HiddenOutput(self.model.norm(x_TD), means(losses), means(figures), loads)

    def mtp_step(
        self,
        next_tokens_T: Tensor,
        hidden_TD: Tensor,
        batch: SequenceBatch,
        rope: tuple[Tensor, Tensor],
        cache: LayerCache | None = None,
    ) -> BlockOutput:
        """Runs one MTP depth on each token's successor and the previous depth's normed hidden states."""
        if self.mtp is None:
            raise ConfigError("model.mtp.depths", 0, "this model has no MTP module")
        return self._run(self.mtp.step, self.embed(next_tokens_T), hidden_TD, batch, rope, cache)

    def _run(self, layer: Callable[..., BlockOutput], *args: Any, **kwargs: Any) -> BlockOutput:
        recompute = self.activation_checkpointing and torch.is_grad_enabled()
        return recomputed(layer, *args, **kwargs) if recompute else layer(*args, **kwargs)

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Returns embeddings [T, D] in the compute dtype."""
        x_TD: Tensor = self.model.embed_tokens(tokens_T)
        return x_TD.to(self.dtype)

    def rope(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Returns the rotary tables of the batch's positions."""
        config, limit = self.config, self.config.max_position_embeddings
        return rope_tables(batch.positions_T, config.qk_rope_head_dim, config.rope_theta, config.rope_scaling, limit)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Returns logits [T, V] in the compute dtype."""
        logits_TV: Tensor = self.lm_head(hidden_TD)
        return logits_TV

    def check_positions(self, batch: SequenceBatch) -> None:
        """Raises `ConfigError` when a segment exceeds max_position_embeddings."""
        longest = max(max(group.key_lengths) for group in batch.plan.groups())
        if longest > (limit := self.config.max_position_embeddings):
            accepted = f"the model allows at most {limit} positions (model.max_position_embeddings)"
            raise ConfigError("sequence length", longest, accepted)

    @property
    def shares_prefixes(self) -> bool:
        """Whether all decoder layers take batches of `SequenceBatch.shared`."""
        layers = [cast(Block, layer).self_attn for layer in self.model.layers]
        keeps_state = any(isinstance(entry, StateEntry) for spec in self.cache_spec() for entry in spec)
        return all(getattr(layer, "shares_prefixes", False) for layer in layers) and not keeps_state

    def cache_spec(self) -> list[CacheSpec]:
        """Returns the cache entries of each decoder layer."""
        return [cast(Block, layer).self_attn.cache_spec() for layer in self.model.layers]

    def mtp_cache_spec(self) -> CacheSpec | None:
        """Returns the cache entries of the MTP module; None without one."""
        return None if self.mtp is None else self.mtp.self_attn.cache_spec()

    def new_cache(self, max_lengths: list[int], page_size: int = 64) -> PagedCache:
        """Returns an empty cache for sequences of at most these lengths."""
        return PagedCache(self.cache_spec(), max_lengths, dtype=self.dtype, device=self.device, page_size=page_size)

    def generate(self, input_ids: Tensor | list[list[int]], max_new_tokens: int = 32, **sampling: Any) -> Tensor:
        """Generates continuations; see `arcforge_core.generation.generate.continue_prompts`."""
        # Generation imports the model, so the model cannot import generation: it looks up the engine of static batches
        # in the registry, as a block looks up its attention.
        engine = registry().get("engine", "simple").load()
        ids: Tensor = engine.continue_prompts(self, input_ids, max_new_tokens=max_new_tokens, **sampling)
        return ids

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.compute_dtype or self.model.embed_tokens.weight.dtype

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Computes in `dtype` without changing the weights (fp32 masters); None computes in the weights' dtype."""
        self.compute_dtype = dtype
        self.rebind()

    def rebind(self) -> None:
        """Binds the ops of every module for the current dtype and device."""
        self.bindings += 1
        bind_ops(self, self.ops.binder(self.dtype, self.device))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CausalLM:
        super()._apply(fn, recurse)
        if self.config.tie_word_embeddings and isinstance(self.lm_head, Head):  # leaving meta unties them
            self.lm_head.weight = self.model.embed_tokens.weight
        self.rebind()
        return self
