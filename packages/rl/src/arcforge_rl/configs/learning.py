"""Schemas of ``arcforge-rl``; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from arcforge_core.config.schema import (
    AdapterConfig,
    AlgorithmConfig,
    CollectionConfig,
    CorrectionConfig,
    EngineConfig,
    EnvironmentConfig,
    HarnessConfig,
    RunConfig,
    StepsConfig,
    check_at_least,
    check_between,
    check_budget,
    check_choice,
    check_minimums,
)
from arcforge_core.configs import ReportConfig
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.anchors import AnchorConfig
from arcforge_rl.configs.environments import MODES
from arcforge_rl.configs.launching import LauncherConfig
from arcforge_rl.configs.others import agent_of
from arcforge_rl.configs.teachers import teacher_of


@dataclass
class OwnCorrectionConfig(CorrectionConfig):
    """The algorithm's correction: `icepop` for `algorithm=icepop` and `opd`, `double_sided` for its own, else none."""

    name: str = "own"


@dataclass
class RlReportConfig(ReportConfig):
    """The report of runs that have an algorithm."""

    name: str = "algorithm"


@dataclass
class SkillsReportConfig(ReportConfig):
    """The skill ledger of several runs, which ``arcforge-report skills`` writes."""

    name: str = "skills"


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
    """The policy is softmax(logits / temperature): sampled, trained and compared with reference and teacher as such."""
    precision: str | None = None
    """``fp32`` or ``bf16``, of the engine that the run builds or starts; null: `trainer.precision`. Sampling in bf16
    reads half as much memory; log-probabilities of engine and trainer then differ as in bf16."""
    thinking: str = "off"
    """``off``; ``on``: reasoning, and the template's own default for that of earlier turns; ``interleaved``: reasoning
    before each reply and call, kept until the next message of a user; ``preserved``: kept."""
    drop_equal: bool = True
    """Leave out groups whose rewards are all equal, and sample others in their place. Ignored where such groups teach
    (`algorithm=opd`) and with `rollout.group_size=1`."""
    refills: int = 2
    """How often a step samples others in place of those left out; then it trains on fewer groups."""
    thin_by: str | None = None
    """A metric of the environment, such as `trivial` of `slides`: rollouts for which it is above 0 are left out by
    chance before groups are compared; null: none."""
    thin_share: float = 0.5
    """The chance of each such rollout."""

    def __post_init__(self) -> None:
        check_between("rollout.thin_share", self.thin_share, 0.0, 1.0)
        check_minimums(self, "rollout", groups=1, group_size=1, max_new_tokens=1, refills=0)
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError("rollout.temperature", self.temperature, "must be above 0: greedy rollouts are all alike")
        check_choice("rollout.thinking", self.thinking, MODES)
        if self.precision is not None:
            check_choice("rollout.precision", self.precision, ("fp32", "bf16"))


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
        check_minimums(self, "curriculum", pool=1, revisit=1)
        check_between("curriculum.low", self.low, 0.0, 1.0)
        check_between("curriculum.high", self.high, self.low, 1.0)
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
    engine: str = "shared"
    """``shared``: the rollouts' engine, between two steps, next to the rollouts of `collection=async`; ``pause``: the
    same, once these have ended; ``own``: another one, with the step's weights, while training continues."""
    concurrency: int = 256
    """Tries that are sampled at a time, of all processes together."""
    environment: str | None = None
    """Has the held-out tasks, for skills that a run does not train, too; null: the training environment."""
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of `environment`."""

    def __post_init__(self) -> None:
        if self.options and self.environment is None:
            raise ConfigError("evaluation.options", self.options, "are of evaluation.environment: name one")
        check_minimums(self, "evaluation", tasks=0, samples=1, temperature=0.0, concurrency=1)
        check_choice("evaluation.engine", self.engine, ("shared", "pause", "own"))
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
    spread_groups: bool = False
    """Give each update a share of the rollouts of every group instead: those of one task are then in several batches.
    They are compared with the whole group."""
    replay_routing: str = "none"
    """``trainer``: in all updates of a step, give each token the experts that it had when the step began; ``engine``:
    those that the engine chose when it sampled; ``none``: choose again."""
    share_prefixes: bool = True
    """Compute tokens that branches of a micro-batch begin with once, such as the prompt of a group, where this saves at
    least 5% of the tokens and the attention can (`mla`, `dsa`, `gqa`, `swa`); false: once for each branch."""
    freeze_indexer: bool = True
    """Keep DSA's indexer as it is (GLM-5, 3.2)."""
    max_gap: float | None = None
    """Largest mean difference of log-probabilities between trainer and engine, over tokens that the present weights
    sampled; above it the run ends. None: 1e-4 in fp32, 0.05 in bf16, no limit with quantised engine weights."""
    shown: int = 1
    """Groups of each step whose tokens are kept for the report."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_minimums(self, "trainer", updates=1, shown=0)
        check_choice("trainer.replay_routing", self.replay_routing, ("none", "trainer", "engine"))
        if self.replay_routing == "trainer" and self.updates == 1:
            accepted = "must be none or engine: with trainer.updates=1 the routing is that of the beginning"
            raise ConfigError("trainer.replay_routing", self.replay_routing, accepted)
        if self.spread_groups and self.updates == 1:
            raise ConfigError("trainer.spread_groups", True, "must be false with trainer.updates=1, which is one batch")
        if self.max_gap is not None and not self.max_gap > 0:
            raise ConfigError("trainer.max_gap", self.max_gap, "must be greater than 0")


@dataclass
class MonitorConfig:
    """When a run warns, or ends. Figures are means over `window` steps; the beginning is the first such mean."""

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
    idle_steps: int = 20
    """End the run with an error after this many steps in a row that trained no token; 0: never. A step whose rollouts
    all failed ends a run in which none has succeeded since it began or was resumed."""
    gold_drop: float = 0.05
    """Alarm where the reward of held-out tasks, which `environment` alone judges, is this far below its best."""
    length_high: float = 3.0
    """Alarm where replies have this many times the tokens of the beginning."""
    repetition: float = 0.5
    """Alarm where a greater share of the word 4-grams of a reply has occurred in it before."""
    refusals: float = 0.5
    """Alarm where a greater share of the replies refuses."""
    malformed: float = 0.5
    """Alarm where a greater share of the replies deviates from the chat template's format."""
    canaries: str | None = None
    """jsonl of prompts that are played greedily with every evaluation: ``prompt``, and regular expressions that the
    reply must contain (``must``) or must not (``must_not``)."""
    canary_failures: float = 0.0
    """Alarm where a greater share of the canaries fails."""
    action: str = "warn"
    """Answer to an alarm: ``warn``; ``stop``: the run ends; ``rollback``: it ends with the weights that were the best
    on held-out tasks."""

    def __post_init__(self) -> None:
        check_minimums(self, "monitor", window=1, entropy_high=1.0, gap=0.0, idle_steps=0)
        check_between("monitor.entropy_low", self.entropy_low, 0.0, 1.0)
        for name in ("masked", "gold_drop", "repetition", "refusals", "malformed", "canary_failures"):
            check_between(f"monitor.{name}", getattr(self, name), 0.0, 1.0)
        check_at_least("monitor.length_high", self.length_high, 1.0)
        check_choice("monitor.action", self.action, ("warn", "stop", "rollback"))


@dataclass
class CriticConfig:
    """The critic of `algorithm=ppo`."""

    model: str = "shared"
    """``shared``: a linear layer on the policy's last hidden states; ``separate``: a model of its own."""
    init: str | None = None
    """Checkpoint that a separate critic starts from, with its scalar head if it has one; null is the run's `init`."""
    lr: float | None = None
    """Of AdamW without decay; null is 1e-3 for the layer of ``shared``, 1e-4 for a model of its own."""

    def __post_init__(self) -> None:
        check_choice("critic.model", self.model, ("shared", "separate"))
        check_at_least("critic.lr", self.lr, 0.0)
        if self.init is not None and self.model != "separate":
            raise ConfigError("critic.init", self.init, "must be null with critic.model=shared, which starts at 0")

    @property
    def rate(self) -> float:
        """The rate of learning."""
        return {"shared": 1e-3, "separate": 1e-4}[self.model] if self.lr is None else self.lr


@dataclass
class RewardModelConfig:
    """A learned reward, mixed in training with that of `environment`; held-out tasks are verified only."""

    checkpoint: str | None = None
    """Folder of a model with a scalar head (`arcforge_core.checkpoint.scalar`); null: there is none."""
    weight: float = 0.5
    """The reward is (1 - weight) x verified + weight x sigmoid(score)."""

    def __post_init__(self) -> None:
        check_between("reward_model.weight", self.weight, 0.0, 1.0)


@dataclass
class RlConfig(RunConfig):
    """The root of ``arcforge-rl``."""

    environment: EnvironmentConfig = MISSING
    """Held-out tasks are those of ``split=heldout``; training takes ``environment.split``."""
    algorithm: AlgorithmConfig = MISSING
    correction: CorrectionConfig = MISSING
    collection: CollectionConfig = MISSING
    """How rollouts are collected: ``sync``, or ``async`` while the policy trains."""
    launcher: LauncherConfig = MISSING
    """Which processes the command starts: ``none`` but itself, or a server, an orchestrator and a trainer."""
    harness: HarnessConfig | None = None
    """Program around the policy, before the gateway of the server at `engine.url`; null: the environment's own, in this
    process."""
    engine: EngineConfig = MISSING
    """Samples the rollouts, in this process."""
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    trainer: PolicyTrainerConfig = field(default_factory=PolicyTrainerConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    monitor: MonitorConfig = field(default_factory=MonitorConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    anchor: AnchorConfig = field(default_factory=AnchorConfig)
    agents: dict[str, Any] = field(default_factory=dict)
    """Agents that the environment needs besides the policy, by name: ``{url: ...}`` or ``{engine: ...}``, see
    `arcforge_rl.configs.others.AgentConfig`; one with ``trained: true`` is trained, too."""
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    rewards: str | None = None
    """File that says how rewards make one in training (``reward.toml``, docs/general_rl.md); null: `environment` does.
    Held-out tasks are judged by `environment` alone."""
    teachers: dict[str, Any] = field(default_factory=dict)
    """Teachers of `algorithm=opd` by the stage that their prompts come from (a part of `environment=mixture`), or by
    domain; ``default`` for all others. A checkpoint, or ``{engine: ...}`` of a server, see
    `arcforge_rl.configs.teachers.TeacherConfig`."""
    name: str = "rl"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.trainer)
        if self.init is None and self.resume is None:
            raise ConfigError("init", None, "a checkpoint to begin with must be named, as init=outputs/latest")
        if self.monitor.action == "rollback" and not self.evaluation.tasks:
            raise ConfigError("monitor.action", "rollback", "needs evaluation.tasks: held-out tasks say what is best")
        if self.monitor.action == "rollback" and self.evaluation.engine == "own":
            accepted = "needs evaluation.engine=shared or pause: otherwise the weights have changed when it is known"
            raise ConfigError("monitor.action", "rollback", accepted)
        if self.trainer.updates > self.rollout.groups:
            accepted = f"must be at most rollout.groups={self.rollout.groups}: an update learns from whole groups"
            raise ConfigError("trainer.updates", self.trainer.updates, accepted)
        self.teachers = {name: teacher_of(fields, name) for name, fields in self.teachers.items()}
        self.agents = {name: agent_of(fields, name) for name, fields in self.agents.items()}
        if self.trainer.replay_routing == "engine" and getattr(self.engine, "name", None) not in ("paged", "arcforge"):
            accepted = "needs engine=paged, or engine=arcforge with engine.record_experts=true at the server"
            raise ConfigError("trainer.replay_routing", "engine", accepted)
        self._check_adapter()
        self._check_evaluation()
        if self.harness is not None:
            self._check_harness(self.harness)

    @property
    def sampling_precision(self) -> str:
        """The precision of the engine."""
        return self.rollout.precision or self.trainer.precision

    def _check_adapter(self) -> None:
        if self.adapter.name == "none":
            return
        name, because = self.adapter.name, "the engine samples without it"
        if self.adapter.dropout:
            raise ConfigError("adapter.dropout", self.adapter.dropout, f"must be 0 in arcforge-rl: {because}")
        if self.trainer.trainable:
            accepted = f"adapter={name} trains adapters only: name the layers in adapter.targets"
            raise ConfigError("trainer.trainable", self.trainer.trainable, accepted)
        weights = getattr(self.engine, "weights", "none")
        if weights != "none":
            raise ConfigError(
                "engine.weights", weights, f"must be none with adapter={name}: it is merged in the engine"
            )

    def _check_evaluation(self) -> None:
        engine, collection = self.evaluation.engine, getattr(self.collection, "name", None)
        if engine == "pause" and collection == "sync":
            raise ConfigError("evaluation.engine", engine, "needs collection=async: nothing else runs between steps")
        if engine == "own" and (hasattr(self.engine, "url") or self.harness is not None):
            accepted = "needs an engine in this process: engine=paged or simple, and no harness"
            raise ConfigError("evaluation.engine", engine, accepted)

    def _check_harness(self, harness: HarnessConfig) -> None:
        launched = self.launcher.name != "none"  # it names the gateway's socket, and starts the server
        if not (launched and getattr(harness, "gateway_socket", "") is None):
            harness.check()
        if getattr(self.engine, "name", None) != "arcforge" and not launched:
            accepted = "needs the gateway of a server: engine=arcforge engine.url=URL, or launcher=local"
            raise ConfigError("harness", harness.name, accepted)
        if self.agents:
            raise ConfigError("agents", sorted(self.agents), f"harness={harness.name} has no agent besides the policy")
