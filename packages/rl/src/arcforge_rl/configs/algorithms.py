"""Schemas of algorithms and of their corrections; torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from arcforge_core.config.schema import (
    AlgorithmConfig,
    CorrectionConfig,
    check_at_least,
    check_between,
    check_choice,
    check_minimums,
)
from arcforge_core.errors import ConfigError

OLD = ("trainer", "engine")
PAIRS = ("old_rollout", "current_rollout", "current_old")
LEVELS = ("token", "sequence", "geometric")
METRICS = ("ratio", "difference", "k1", "k2", "k3")
ACTIONS = ("none", "mask", "truncate", "reject")
SIGNS = ("both", "outward", "negative")
BASELINES = ("none", "group", "leave_one_out", "batch")
SCALES = ("none", "group", "batch")
MEANS = ("sequence", "token", "constant")
COMPONENTS = ("summed", "decoupled")


@dataclass
class BoundsConfig(CorrectionConfig):
    """Treatment of tokens on which two policies disagree: pair x level x metric x action x bounds x sign."""

    name: str = "custom"
    pair: str = "old_rollout"
    """The compared policies: ``old``: the training engine before the step; ``rollout``: the inference engine."""
    level: str = "token"
    """``token``; ``sequence``: sums over a trace; ``geometric``: means over a trace, for ratios of their logarithms."""
    metric: str = "ratio"
    """``ratio`` p/q, ``difference`` p - q (tokens only), or an estimate of KL(q, p): ``k1``, ``k2``, ``k3``."""
    action: str = "none"
    """``mask``: the ratio inside the bounds, 0 outside; ``truncate``: the ratio clamped to the bounds;
    ``reject``: 1 inside, 0 outside; ``none``: metrics only."""
    low: float | None = None
    """Lower bound; None: no bound."""
    high: float | None = None
    """Upper bound."""
    closed: bool = True
    """Whether the bounds are inclusive."""
    sign: str = "both"
    """Where the bounds apply: ``both`` signs; ``outward``: the upper one for positive, the lower one for negative
    advantages; ``negative``: both bounds, for negative advantages only."""

    def __post_init__(self) -> None:
        for field, choices in (
            ("pair", PAIRS),
            ("level", LEVELS),
            ("metric", METRICS),
            ("action", ACTIONS),
            ("sign", SIGNS),
        ):
            check_choice(f"correction.{field}", getattr(self, field), choices)
        if self.action == "none":
            if self.low is not None or self.high is not None:
                raise ConfigError("correction.action", "none", "bounds have no effect without an action")
            return
        if self.low is None and self.high is None:
            raise ConfigError("correction.high", None, f"action={self.action} needs a bound")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ConfigError("correction.low", self.low, f"must not be above correction.high={self.high}")
        if self.metric == "difference" and self.level != "token":
            raise ConfigError("correction.metric", "difference", "probabilities are compared token by token")
        if self.action == "truncate" and (self.metric != "ratio" or self.sign != "both"):
            raise ConfigError("correction.action", "truncate", "moves ratios, for all signs: metric=ratio, sign=both")


@dataclass
class ScoredConfig(AlgorithmConfig):
    """Computation of advantages from rewards, and of the loss from advantages."""

    baseline: str = "group"
    """Baseline subtracted from a reward: mean of the group, of its other rollouts, of the batch, or none."""
    scale: str = "none"
    """Divisor of advantages: standard deviation in the group, in the batch, or none."""
    mean: str = "sequence"
    """``sequence``: of means over each trace; ``token``: over all tokens; ``constant``: sums over `max_tokens`."""
    max_tokens: int = 1024
    """Divisor of mean=constant."""
    kl: float = 0.0
    """Weight of k3 to the reference policy in the loss."""
    unbiased_kl: bool = False
    """Whether to multiply k3 by the ratio of the current policy to the old one, as in DeepSeek-V3.2."""
    components: str = "summed"
    """``summed``: advantages of the reward; ``decoupled``: each component of `rewards` is normalised apart within the
    group, their weighted sum then over the batch (GDPO)."""

    def __post_init__(self) -> None:
        check_choice("algorithm.components", self.components, COMPONENTS)
        if self.components == "decoupled" and (self.baseline, self.scale) != ("group", "group"):
            accepted = "needs algorithm.baseline=group and algorithm.scale=group, by which components are normalised"
            raise ConfigError("algorithm.components", "decoupled", accepted)
        check_choice("algorithm.baseline", self.baseline, BASELINES)
        check_choice("algorithm.scale", self.scale, SCALES)
        check_choice("algorithm.mean", self.mean, MEANS)
        check_minimums(self, "algorithm", max_tokens=1, kl=0.0)
        if self.unbiased_kl and not self.kl:
            raise ConfigError("algorithm.unbiased_kl", True, "there is no KL to correct: algorithm.kl is 0")


@dataclass
class ClippedConfig(ScoredConfig):
    """The clipped surrogate of PPO."""

    scale: str = "group"
    clip_low: float = 0.2
    """Ratios below 1 - clip_low get no gradient from negative advantages."""
    clip_high: float = 0.2
    """Ratios above 1 + clip_high get no gradient from positive advantages."""
    old: str = "trainer"
    """Source of the ratio's denominator: probabilities computed by the ``trainer`` before the step, or recorded by the
    ``engine`` while sampling, whose numerical errors the clip then treats as policy changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("algorithm.old", self.old, OLD)
        check_between("algorithm.clip_low", self.clip_low, 0.0, 1.0)
        check_at_least("algorithm.clip_high", self.clip_high, 0.0)


@dataclass
class GrpoConfig(ClippedConfig):
    """Group-relative policy optimisation."""

    name: str = "grpo"


@dataclass
class IcePopConfig(ClippedConfig):
    """GLM-5's reasoning RL, eq. 1: GRPO without KL; used with the correction `icepop`."""

    name: str = "icepop"
    clip_high: float = 0.28


@dataclass
class DapoConfig(ClippedConfig):
    """Token means, a higher upper clip, a soft penalty for overlong answers."""

    name: str = "dapo"
    clip_high: float = 0.28
    mean: str = "token"
    overlong_tokens: int = 0
    """Length at which the penalty reaches 1; 0: no penalty."""
    overlong_buffer: int = 0
    """Number of tokens before that length over which the penalty rises from 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("algorithm.overlong_tokens", self.overlong_tokens, 0)
        check_between("algorithm.overlong_buffer", self.overlong_buffer, 0, self.overlong_tokens)
        if self.components == "decoupled" and self.overlong_tokens:
            accepted = "must be 0: the punishment is no component that could be normalised apart"
            raise ConfigError("algorithm.overlong_tokens", self.overlong_tokens, accepted)


@dataclass
class GspoConfig(ClippedConfig):
    """Ratios of whole sequences, length-normalised."""

    name: str = "gspo"
    clip_low: float = 3e-4
    clip_high: float = 4e-4


@dataclass
class CispoConfig(ClippedConfig):
    """Clipped ratios as weights of the log-probability: every token keeps its gradient."""

    name: str = "cispo"
    clip_low: float = 1.0
    clip_high: float = 4.0
    mean: str = "token"


@dataclass
class RlooConfig(ScoredConfig):
    """REINFORCE with the mean of the group's other rollouts as baseline."""

    name: str = "rloo"
    baseline: str = "leave_one_out"


@dataclass
class ReinforcePlusPlusConfig(ClippedConfig):
    """REINFORCE++: advantages normalised over the batch's tokens, KL in the reward."""

    name: str = "reinforce_pp"
    baseline: str = "none"
    scale: str = "batch"
    mean: str = "token"
    reward_kl: float = 0.0
    """Weight of k1 to the reference policy, subtracted from each token's reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("algorithm.reward_kl", self.reward_kl, 0.0)
        if self.baseline not in ("none", "group") or self.scale not in ("none", "batch"):
            raise ConfigError("algorithm.baseline", self.baseline, "must be none or group, with scale none or batch")


@dataclass
class DoubleSidedConfig(ScoredConfig):
    """GLM-5's agentic RL, eq. 3-5: no old policy; used with the correction `double_sided`."""

    name: str = "double_sided"
    mean: str = "token"


@dataclass
class PpoConfig(ClippedConfig):
    """PPO with a critic."""

    name: str = "ppo"
    baseline: str = "none"
    scale: str = "batch"
    mean: str = "token"
    discount: float = 1.0
    gae_lambda: float = 0.95
    value_weight: float = 0.5
    """Weight of the critic's loss."""
    value_clip: float = 0.2
    """Distance from the old value beyond which the value loss is clipped."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_between("algorithm.discount", self.discount, 0.0, 1.0)
        check_between("algorithm.gae_lambda", self.gae_lambda, 0.0, 1.0)
        check_minimums(self, "algorithm", value_weight=0.0, value_clip=0.0)
        if self.baseline != "none" or self.scale not in ("none", "batch"):
            raise ConfigError(
                "algorithm.baseline", self.baseline, "must be none with scale none or batch: the critic is the baseline"
            )


@dataclass
class OpdConfig(ClippedConfig):
    """On-policy distillation, eq. 1 with eq. 2's advantage, the teacher's log-ratio; used with correction `icepop`."""

    name: str = "opd"
    clip_high: float = 0.28
    baseline: str = "none"
    scale: str = "none"
    reward_weight: float = 0.0
    """Weight of the reward's advantage, added to the teacher's."""
    balance: str = "prompts"
    """Equal weights of ``prompts``, or of ``teachers``: the prompts of each have the same weight together, however many
    and long their replies are."""
    ratios: str = "given"
    """Prompts of a mixture by its ``given`` weights, or by each teacher's remaining ``gap``: the policy's mean log-prob
    of its tokens minus the teacher's."""
    top_k: int = 0
    """0: the sampled token alone is scored. Else the loss is the KL divergence to the teacher over its `top_k`
    likeliest tokens in each place and one class for all others; for teachers in this process."""
    depth: int = 0
    """Replies of a trace that are taught in the first step; later ones follow one by one, as deep in a conversation the
    student is where the teacher has never been. 0: all replies."""
    depth_steps: int = 10
    """Steps after which `depth` grows by one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("algorithm.top_k", self.top_k, 0)
        check_at_least("algorithm.depth", self.depth, 0)
        check_at_least("algorithm.depth_steps", self.depth_steps, 1)
        check_at_least("algorithm.reward_weight", self.reward_weight, 0.0)
        check_choice("algorithm.balance", self.balance, ("prompts", "teachers"))
        check_choice("algorithm.ratios", self.ratios, ("given", "gap"))
