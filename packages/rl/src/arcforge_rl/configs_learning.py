"""Schemas of ``arcforge-rl``; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from arcforge_core.config.schema import (
    AlgorithmConfig,
    CorrectionConfig,
    EngineConfig,
    EnvironmentConfig,
    RunConfig,
    StepsConfig,
    check_at_least,
    check_between,
    check_choice,
)
from arcforge_core.configs import ReportConfig
from arcforge_core.errors import ConfigError
from arcforge_rl.configs import THINKING


@dataclass
class OwnCorrectionConfig(CorrectionConfig):
    """The correction that belongs to the algorithm: `icepop` and `double_sided` have one, the others none."""

    name: str = "own"


@dataclass
class RlReportConfig(ReportConfig):
    """The report of runs that have an algorithm."""

    name: str = "algorithm"


@dataclass
class RolloutConfig:
    """What is sampled for a step, and how."""

    groups: int = 8
    """Tasks of a step."""
    group_size: int = 8
    """Rollouts of each task."""
    max_new_tokens: int = 128
    """Tokens of one reply at most."""
    temperature: float = 1.0
    """Objectives are about the distribution at 1; another one samples from what they do not know."""
    thinking: str = "off"
    """``on`` or ``off``: how the chat template begins a reply."""
    drop_equal: bool = True
    """Leave out groups whose rewards are all equal, and sample others in their place."""
    refills: int = 2
    """How often a step samples others in place of those left out; then it goes on with fewer groups."""
    engine_noise: float = 0.0
    """Relative noise on the engine's copy of the weights: a fault, to see what corrections do about it."""
    engine_logprob_noise: float = 0.0
    """Standard deviation of an error in the log-probs that the engine reports, in nats; what it samples is right."""
    engine_topk: str = "stable"
    """How the engine's indexer (DSA) selects: ``unstable`` takes any of the keys whose scores are equal, from call to
    call others, as non-deterministic kernels of GPUs do: a fault, too."""
    engine_topk_bits: int = 8
    """Significant bits of scores that an unstable selection compares: 24 are float32's, 8 bfloat16's."""

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "max_new_tokens"):
            check_at_least(f"rollout.{name}", getattr(self, name), 1)
        for name in ("refills", "engine_noise", "engine_logprob_noise"):
            check_at_least(f"rollout.{name}", getattr(self, name), 0)
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError("rollout.temperature", self.temperature, "must be above 0: greedy rollouts are all alike")
        check_choice("rollout.thinking", self.thinking, THINKING)
        check_choice("rollout.engine_topk", self.engine_topk, ("stable", "unstable"))
        check_between("rollout.engine_topk_bits", self.engine_topk_bits, 1, 24)

    @property
    def faulty(self) -> bool:
        """Whether the engine is made to differ from the trainer."""
        return self.engine_noise > 0 or self.engine_logprob_noise > 0 or self.engine_topk == "unstable"


@dataclass
class CurriculumConfig:
    """Which tasks are tried: all in turn, or those of a pool that are neither too easy nor too hard."""

    pool: int | None = None
    """Tasks 0 to pool - 1, again and again; None: 0, 1, 2, ... without end, and no pass rates."""
    low: float = 0.0
    """A task of the pool whose last pass rate was below is passed over."""
    high: float = 1.0
    """Above likewise."""
    revisit: int = 4
    """Every so many rounds through the pool a task is tried again that was passed over."""

    def __post_init__(self) -> None:
        check_at_least("curriculum.pool", self.pool, 1)
        check_between("curriculum.low", self.low, 0.0, 1.0)
        check_between("curriculum.high", self.high, self.low, 1.0)
        check_at_least("curriculum.revisit", self.revisit, 1)
        if self.pool is None and (self.low, self.high) != (0.0, 1.0):
            raise ConfigError("curriculum.pool", None, "pass rates are of tasks that come again: set a pool")


@dataclass
class EvaluationConfig:
    """How held-out tasks are tried every `trainer.eval_every` steps, before the first and at the end."""

    tasks: int = 128
    """Held-out tasks 0, 1, ...; 0 evaluates nothing."""
    samples: int = 4
    """Tries at each: pass@k for k = 1, 2, 4, ... up to it, and maj@k."""
    temperature: float = 1.0
    """0 is greedy: one try says all."""

    def __post_init__(self) -> None:
        check_at_least("evaluation.tasks", self.tasks, 0)
        check_at_least("evaluation.samples", self.samples, 1)
        check_at_least("evaluation.temperature", self.temperature, 0.0)
        if self.temperature == 0.0 and self.samples > 1:
            raise ConfigError("evaluation.samples", self.samples, "greedy tries are all the same: 1 is enough")


@dataclass
class PolicyTrainerConfig(StepsConfig):
    """How a policy is trained. A step is: sample, score, train, hand the weights to the engine."""

    precision: str = "fp32"
    """``fp32``, because engine and trainer must agree on log-probabilities; ``bf16``; ``auto``."""
    eval_every: int = 10
    checkpoint_every: int = 10
    updates: int = 1
    """Optimizer steps on the rollouts of a step, each on its share of the groups; 1 is on-policy."""
    replay_routing: bool = False
    """In all updates of a step, give each token the experts that it had when the step began."""
    freeze_indexer: bool = True
    """Keep DSA's indexer as it is (GLM-5, 3.2)."""
    max_gap: float | None = None
    """Largest mean difference of log-probabilities between trainer and engine; above it the run ends. None: 1e-4 in
    fp32, 0.05 in bf16, no limit with an engine made faulty by `rollout.engine_*`."""
    shown: int = 1
    """Groups of each step whose tokens are kept for the report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("trainer.updates", self.updates, 1)
        check_at_least("trainer.shown", self.shown, 0)
        if self.replay_routing and self.updates == 1:
            accepted = "must be false: with trainer.updates=1 the routing is that of the beginning"
            raise ConfigError("trainer.replay_routing", True, accepted)
        if self.max_gap is not None and not self.max_gap > 0:
            raise ConfigError("trainer.max_gap", self.max_gap, "must be greater than 0")


@dataclass
class MonitorConfig:
    """When a run warns. Figures are means over `window` steps; the beginning is the first such mean."""

    window: int = 5
    """Steps."""
    entropy_low: float = 0.1
    """Warn where the entropy is below this share of its beginning."""
    entropy_high: float = 3.0
    """Warn where it is above this multiple of its beginning."""
    masked: float = 0.1
    """Warn where the correction masks a greater share of the tokens."""
    gap: float = 0.5
    """Warn where the mean log-prob gap is above this share of its limit (`trainer.max_gap`); of 0.05 without one."""

    def __post_init__(self) -> None:
        check_at_least("monitor.window", self.window, 1)
        check_between("monitor.entropy_low", self.entropy_low, 0.0, 1.0)
        check_at_least("monitor.entropy_high", self.entropy_high, 1.0)
        check_between("monitor.masked", self.masked, 0.0, 1.0)
        check_at_least("monitor.gap", self.gap, 0.0)


@dataclass
class CriticConfig:
    """The critic of `algorithm=ppo`: a linear layer on the policy's last hidden states."""

    lr: float = 1e-3
    """Of AdamW without decay, for the layer alone."""

    def __post_init__(self) -> None:
        check_at_least("critic.lr", self.lr, 0.0)


@dataclass
class RlConfig(RunConfig):
    """The root of ``arcforge-rl``."""

    environment: EnvironmentConfig = MISSING
    """Held-out tasks are those of ``split=heldout``; training takes ``environment.split``."""
    algorithm: AlgorithmConfig = MISSING
    correction: CorrectionConfig = MISSING
    engine: EngineConfig = MISSING
    """Samples the rollouts, in this process."""
    trainer: PolicyTrainerConfig = field(default_factory=PolicyTrainerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    teachers: dict[str, str] = field(default_factory=dict)
    """Checkpoints of `algorithm=opd`: domain -> folder; ``default`` for the domains that are not named."""
    name: str = "rl"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trainer.max_steps is None and self.trainer.minutes is None:
            raise ConfigError("trainer.max_steps", None, "set max_steps, minutes, or both")
        if self.init is None and self.resume is None:
            raise ConfigError("init", None, "a checkpoint to begin with must be named, as init=outputs/latest")
        if self.trainer.updates > self.rollout.groups:
            accepted = f"must be at most rollout.groups={self.rollout.groups}: an update learns from whole groups"
            raise ConfigError("trainer.updates", self.trainer.updates, accepted)
