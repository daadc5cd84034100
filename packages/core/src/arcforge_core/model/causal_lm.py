"""The GLM-5-shaped causal language model: embedding, decoder layers, norm, untied head, one MTP module.

Shapes: B batch, S length, T ragged tokens, D hidden, V vocabulary, N segments, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from arcforge_core.config.schema import AttentionConfig, ModelConfig
from arcforge_core.contracts.attention import CacheSpec, LayerCache
from arcforge_core.contracts.batch import SequenceBatch
from arcforge_core.contracts.optimizer import ParameterRole
from arcforge_core.errors import ConfigError
from arcforge_core.model.block import Block, BlockOutput
from arcforge_core.model.cache import PagedCache
from arcforge_core.model.generate import generate_tokens
from arcforge_core.model.init import init_weights
from arcforge_core.model.mtp import MtpModule
from arcforge_core.model.norm import Linear, RMSNorm
from arcforge_core.model.recorded import recorded_draft, recorded_hidden, recorded_remember
from arcforge_core.model.rope import rope_tables
from arcforge_core.ops.dispatch import Ops, default_ops

if TYPE_CHECKING:
    from arcforge_core.model.lora import Adapter
    from arcforge_core.model.quantised import QuantisedState


@dataclass(frozen=True)
class CausalLMOutput:
    """Logits: [B, S, V] for plain batches, [T, V] for ragged ones."""

    logits: Tensor


@dataclass
class HiddenOutput:
    """Hidden states after the final norm, and what the layers said on the way.

    Attributes:
        hidden_TD: ready for the head.
        aux_losses: means over the layers that have them, by name.
        figures: means over the layers that have them, by name, without gradient.
        expert_loads: tokens per expert [E] by layer number (the MTP module's number is num_hidden_layers).
    """

    hidden_TD: Tensor
    aux_losses: dict[str, Tensor] = field(default_factory=dict)
    figures: dict[str, Tensor] = field(default_factory=dict)
    expert_loads: dict[int, Tensor] = field(default_factory=dict)


def means(values: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    """Returns the mean of each name's scalars."""
    return {name: torch.stack(scalars).mean() for name, scalars in values.items()}


def keeping_selections() -> Any:
    """Has activation checkpointing keep the keys that an indexer selected: finding them again takes all scores."""

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        selects = isinstance(op, torch._ops.OpOverload) and op.name().split("::")[1].startswith("indexer_topk")
        return CheckpointPolicy.MUST_SAVE if selects else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


class Embedding(nn.Embedding):
    """Token embedding."""

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels the table."""
        return {"weight": ParameterRole("embedding")}


class Head(Linear):
    """Output projection."""

    def parameter_roles(self) -> dict[str, ParameterRole]:
        """Labels the projection."""
        return {"weight": ParameterRole("head")}


class Backbone(nn.Module):
    """Everything below the head."""

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
        ops: where kernels come from; `default_ops()` when None.
    """

    def __init__(self, config: ModelConfig, attention: AttentionConfig, ops: Ops | None = None) -> None:
        super().__init__()
        self.config, self.attention = config, attention
        self.model = Backbone(config, attention)
        self.lm_head = Head(config.hidden_size, config.vocab_size)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.mtp = MtpModule(config, attention) if config.mtp.depths else None
        self.activation_checkpointing = False
        self.quantised: QuantisedState | None = None
        self.adapter: Adapter | None = None
        self.compute_dtype: torch.dtype | None = None
        self.bindings = 0  # how often ops were bound
        self.ops = default_ops() if ops is None else ops
        if self.device.type != "meta":
            init_weights(self, config)
        self.bind_ops()

    # ---- forward ---------------------------------------------------------------------------------------------------

    def forward(
        self, input_ids: Tensor, batch: SequenceBatch | None = None, cache: PagedCache | None = None
    ) -> CausalLMOutput:
        """Returns logits.

        Args:
            input_ids: int64 [B, S], or ragged [T] with `batch`.
            batch: the segments of ragged tokens.
            cache: the cache that `batch` was made from.

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
        if cache is not None and (repeated_TD := recorded_hidden(self, tokens_T, batch, cache)) is not None:
            return HiddenOutput(repeated_TD)
        caches = [None] * len(self.model.layers) if cache is None else cache.layers
        return self.run_layers(self.embed(tokens_T), batch, self.rope(batch), caches)

    def run_layers(
        self, x_TD: Tensor, batch: SequenceBatch, rope: tuple[Tensor, Tensor], caches: Sequence[LayerCache | None]
    ) -> HiddenOutput:
        """Runs all layers and the final norm on embedded tokens [T, D]."""
        losses: dict[str, list[Tensor]] = {}
        figures: dict[str, list[Tensor]] = {}
        loads: dict[int, Tensor] = {}
        handed: dict[str, Any] = {}
        for index, (layer, cache) in enumerate(zip(self.model.layers, caches, strict=True)):
            out = self._run(layer, x_TD, batch, rope, cache, **handed)
            x_TD, handed = out.x_TD, out.handed_on
            for seen, named in ((losses, out.aux_losses), (figures, out.figures)):
                for name, value in named.items():
                    seen.setdefault(name, []).append(value)
            if out.load_E is not None:
                loads[index] = out.load_E
        return HiddenOutput(self.model.norm(x_TD), means(losses), means(figures), loads)

    def _run(self, layer: Callable[..., BlockOutput], *args: Any, **handed: Any) -> BlockOutput:
        if self.activation_checkpointing and torch.is_grad_enabled():
            out: BlockOutput = checkpoint(layer, *args, use_reentrant=False, context_fn=keeping_selections, **handed)
            return out
        return layer(*args, **handed)

    def mtp_step(
        self, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch, rope: tuple[Tensor, Tensor]
    ) -> BlockOutput:
        """Runs one MTP depth from the tokens ahead and the normed hidden states of the depth before."""
        if self.mtp is None:
            raise ConfigError("model.mtp.depths", 0, "this model has no MTP module")
        return self._run(self.mtp.step, self.embed(next_tokens_T), hidden_TD, batch, rope)

    def mtp_remember(self, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch, cache: PagedCache) -> None:
        """Writes the MTP module's entries of tokens into ``cache.mtp``, from their hidden states and the tokens ahead.

        An entry depends on its own token's two inputs alone, so that entries may be written in any order.
        """
        mtp, layer_cache = self._drafting(cache)
        if recorded_remember(self, next_tokens_T, hidden_TD, batch, cache) is None:
            mtp.remember(self.embed(next_tokens_T), hidden_TD, batch, self.rope(batch), layer_cache)

    def mtp_draft(self, next_tokens_T: Tensor, hidden_TD: Tensor, batch: SequenceBatch, cache: PagedCache) -> Tensor:
        """Returns the normed hidden states [T, D] of an MTP step behind ``cache.mtp``.

        They are ready for the head, and for the next step, which appends a place.
        """
        mtp, layer_cache = self._drafting(cache)
        repeated_TD = recorded_draft(self, next_tokens_T, hidden_TD, batch, cache)
        if repeated_TD is not None:
            return repeated_TD
        return mtp.step(self.embed(next_tokens_T), hidden_TD, batch, self.rope(batch), layer_cache).x_TD

    def _drafting(self, cache: PagedCache) -> tuple[MtpModule, LayerCache]:
        if self.mtp is None or cache.mtp is None:
            raise ValueError("drafting needs an MTP module and its part of the cache")
        return self.mtp, cache.mtp

    def embed(self, tokens_T: Tensor) -> Tensor:
        """Returns embeddings [T, D] in the compute dtype."""
        x_TD: Tensor = self.model.embed_tokens(tokens_T)
        return x_TD.to(self.dtype)

    def rope(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Returns the rotary tables of the batch's positions."""
        config = self.config
        return rope_tables(batch.positions_T, config.qk_rope_head_dim, config.rope_theta, config.rope_scaling)

    def logits(self, hidden_TD: Tensor) -> Tensor:
        """Returns logits [T, V] in the compute dtype."""
        logits_TV: Tensor = self.lm_head(hidden_TD)
        return logits_TV

    def likeliest(self, logits_TV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what `ops.likeliest` says about logits, on the host."""
        best_T, rest_T = self._likeliest(logits_TV)
        return best_T.cpu(), rest_T.cpu()

    def race(self, logits_NV: Tensor, temperature_N: Tensor, seed_N: Tensor, place_N: Tensor) -> Tensor:
        """See `ops.race`."""
        drawn_N: Tensor = self._race(logits_NV, temperature_N, seed_N, place_N)
        return drawn_N

    def check_positions(self, batch: SequenceBatch) -> None:
        """Raises `ConfigError` when a segment reaches beyond max_position_embeddings."""
        longest = max(max(group.key_lengths) for group in batch.plan.groups())
        if longest > self.config.max_position_embeddings:
            limit = self.config.max_position_embeddings
            accepted = f"the model allows at most {limit} positions (model.max_position_embeddings)"
            raise ConfigError("sequence length", longest, accepted)

    # ---- generation ------------------------------------------------------------------------------------------------

    def cache_spec(self) -> list[CacheSpec]:
        """Returns what each decoder layer caches."""
        return [cast(Block, layer).self_attn.cache_spec() for layer in self.model.layers]

    def mtp_cache_spec(self) -> CacheSpec | None:
        """Returns what the MTP module caches; None without one."""
        return None if self.mtp is None else self.mtp.self_attn.cache_spec()

    def new_cache(self, max_lengths: list[int], page_size: int = 64) -> PagedCache:
        """Returns an empty cache for sequences of at most these lengths."""
        return PagedCache(self.cache_spec(), max_lengths, dtype=self.dtype, device=self.device, page_size=page_size)

    def generate(self, input_ids: Tensor | list[list[int]], max_new_tokens: int = 32, **sampling: Any) -> Tensor:
        """Continues prompts.

        Args:
            input_ids: int64 [B, S], or a list of prompts of any lengths.
            max_new_tokens: tokens to add at most.
            sampling: fields of `SamplingParams` (temperature, top_p, top_k, min_p, stop_token_ids, seed).

        Returns:
            int64 [B, longest]: prompts with their continuations, padded at the end with -1 when lengths differ.

        Raises:
            ConfigError: there is no prompt, or one that cannot be generated from.
        """
        prompts: list[Any] = input_ids.tolist() if isinstance(input_ids, Tensor) else input_ids
        if not prompts or isinstance(prompts[0], int):
            raise ConfigError("input_ids", prompts[:3], "must be a list of at least one prompt, or int64 [B, S]")
        outputs = generate_tokens(self, prompts, max_new_tokens=max_new_tokens, **sampling)
        rows = [torch.tensor([*p, *o.token_ids]) for p, o in zip(prompts, outputs, strict=True)]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).to(self.device)

    # ---- dtype, device, ops ----------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.compute_dtype or self.model.embed_tokens.weight.dtype

    def set_compute_dtype(self, dtype: torch.dtype | None) -> None:
        """Computes in `dtype` with the weights kept as they are (fp32 masters); None follows the weights."""
        self.compute_dtype = dtype
        self.bind_ops()

    def bind_ops(self) -> None:
        """Resolves the ops of every module for the current dtype and device."""
        self.bindings += 1
        bind = self.ops.binder(self.dtype, self.device)
        for module in self.modules():
            resolve = getattr(module, "bind_ops", None)
            if module is not self and resolve is not None:
                resolve(bind)
        self.linear_cross_entropy = bind(
            "linear_cross_entropy", width=self.config.hidden_size, vocab=self.config.vocab_size
        )
        self._likeliest = bind("likeliest", vocab=self.config.vocab_size)
        self._race = bind("race", vocab=self.config.vocab_size)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> CausalLM:
        super()._apply(fn, recurse)
        if self.config.tie_word_embeddings and isinstance(self.lm_head, Head):  # leaving meta makes two parameters
            self.lm_head.weight = self.model.embed_tokens.weight
        self.bind_ops()
        return self
