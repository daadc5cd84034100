"""Schema of the model section, torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from arcforge_core.config.checks import check_at_least, check_between, check_choice, check_minimums
from arcforge_core.errors import ConfigError


@dataclass
class MtpConfig:
    """Multi-token prediction: `depths` steps that share one module (spec 1.6)."""

    depths: int = 3
    """Predicted tokens beyond the next; 0 builds no MTP module."""
    fraction: float = 0.25
    """Fraction of the tokens (whole documents) that carry the MTP loss."""
    weight: float = 0.3
    """Weight of the mean loss over depths."""
    rotated: bool = False
    """Set by quantizers that rotate the residual stream: the module has two more matrices, which turn the main model's
    output into its input, and its output into that of the shared head."""

    def __post_init__(self) -> None:
        check_minimums(self, "model.mtp", depths=0, weight=0.0)
        check_between("model.mtp.fraction", self.fraction, 0.0, 1.0)


@dataclass
class RopeScalingConfig:
    """Scaling of the rotary frequencies to longer contexts; fields are those of Hugging Face's `rope_parameters`."""

    type: str = "default"
    """``default`` does not scale; ``llama3`` and ``yarn`` divide the low frequencies by `factor`."""
    factor: float = 1.0
    original_max_position_embeddings: int = 8192
    """Context length of training before scaling."""
    low_freq_factor: float = 1.0
    """llama3: frequencies with fewer turns than this over the original context are divided by `factor`."""
    high_freq_factor: float = 4.0
    """llama3: those with more turns than this are unchanged."""
    beta_slow: float = 1.0
    """yarn: as low_freq_factor."""
    beta_fast: float = 32.0
    """yarn: as high_freq_factor."""
    attention_factor: float | None = None
    """yarn: factor of the rotated values; None derives it from factor, mscale and mscale_all_dim."""
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    """yarn: MLA also multiplies its softmax scale by ``(0.1 mscale_all_dim ln(factor) + 1)²``."""

    def __post_init__(self) -> None:
        check_choice("model.rope_scaling.type", self.type, ("default", "llama3", "yarn"))
        check_minimums(self, "model.rope_scaling", factor=1.0, original_max_position_embeddings=1)
        check_minimums(self, "model.rope_scaling", attention_factor=0.0, mscale=0.0, mscale_all_dim=0.0)
        for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
            if not 0 < getattr(self, low) < getattr(self, high):
                accepted = f"must be above 0 and below {high}={getattr(self, high)}"
                raise ConfigError(f"model.rope_scaling.{low}", getattr(self, low), accepted)


@dataclass
class ModelConfig:
    """Sizes of a GLM-5-shaped model; names are those of Hugging Face's ``config.json`` where it has one."""

    name: str = MISSING
    vocab_size: int = MISSING
    hidden_size: int = MISSING
    num_hidden_layers: int = MISSING
    first_k_dense_replace: int = MISSING
    """Leading layers with a dense feed-forward; the others are mixtures of experts."""
    intermediate_size: int = MISSING
    moe_intermediate_size: int = MISSING
    n_routed_experts: int = MISSING
    num_experts_per_tok: int = MISSING
    n_shared_experts: int = 1
    routed_scaling_factor: float = 2.5
    n_group: int = 1
    """Groups of experts; a token chooses among the experts of its `topk_group` best groups."""
    topk_group: int = 1
    num_attention_heads: int = MISSING
    num_key_value_heads: int = MISSING
    """Key/value heads of GQA; MLA has one latent for all heads."""
    head_dim: int = MISSING
    """Head size of GQA."""
    q_lora_rank: int = MISSING
    kv_lora_rank: int = MISSING
    qk_nope_head_dim: int = MISSING
    qk_rope_head_dim: int = MISSING
    v_head_dim: int = MISSING
    index_n_heads: int = MISSING
    index_head_dim: int = MISSING
    index_topk: int = MISSING
    rope_theta: float = 1_000_000.0
    rope_scaling: RopeScalingConfig = field(default_factory=RopeScalingConfig)
    max_position_embeddings: int = MISSING
    rms_norm_eps: float = 1e-5
    latent_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    initializer_range: float = 0.02
    router_bias_rate: float = 1e-3
    """Step of the loss-free balance update of the router bias."""
    balance_loss_weight: float = 1e-4
    """Weight of the sequence-level balance loss."""
    mtp: MtpConfig = field(default_factory=MtpConfig)

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size hidden_size num_hidden_layers intermediate_size moe_intermediate_size n_routed_experts "
            "num_experts_per_tok num_attention_heads num_key_value_heads head_dim q_lora_rank kv_lora_rank "
            "qk_nope_head_dim v_head_dim index_n_heads index_head_dim index_topk max_position_embeddings"
        )
        for name in sizes.split():
            check_at_least(f"model.{name}", getattr(self, name), 1)
        check_minimums(self, "model", first_k_dense_replace=0, n_shared_experts=0, initializer_range=0.0)
        check_minimums(self, "model", rms_norm_eps=0.0, latent_norm_eps=0.0, rope_theta=0.0)
        check_minimums(self, "model", router_bias_rate=0.0, balance_loss_weight=0.0)
        if self.first_k_dense_replace > self.num_hidden_layers:
            raise ConfigError(
                "model.first_k_dense_replace",
                self.first_k_dense_replace,
                f"must be at most num_hidden_layers={self.num_hidden_layers}",
            )
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ConfigError(
                "model.num_experts_per_tok",
                self.num_experts_per_tok,
                f"must be at most n_routed_experts={self.n_routed_experts}",
            )
        self._check_groups()
        if self.qk_rope_head_dim % 2 or self.qk_rope_head_dim < 2:
            raise ConfigError("model.qk_rope_head_dim", self.qk_rope_head_dim, "must be even and at least 2")

    def _check_groups(self) -> None:
        """A group's score is that of its two best experts, and the chosen groups must hold enough experts."""
        check_at_least("model.n_group", self.n_group, 1)
        check_between("model.topk_group", self.topk_group, 1, self.n_group)
        if self.n_group == 1:
            return
        if self.n_routed_experts % self.n_group or self.n_routed_experts < 2 * self.n_group:
            accepted = f"must divide n_routed_experts={self.n_routed_experts} into groups of at least two"
            raise ConfigError("model.n_group", self.n_group, accepted)
        if self.topk_group * (self.n_routed_experts // self.n_group) < self.num_experts_per_tok:
            accepted = f"must hold num_experts_per_tok={self.num_experts_per_tok} experts"
            raise ConfigError("model.topk_group", self.topk_group, accepted)
