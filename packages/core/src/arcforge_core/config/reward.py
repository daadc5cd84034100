"""Schemas of reward models' training; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcforge_core.config.checks import check_at_least, check_between, check_choice, check_minimums
from arcforge_core.config.schema import AdapterConfig, RunConfig, StepsConfig, check_budget
from arcforge_core.errors import ConfigError


@dataclass
class PairsConfig:
    """Pairs of replies, of which one is preferred."""

    files: list[str] = field(default_factory=list)
    """jsonl, json and parquet files, folders of them, folders that `datasets` saved; ``rollouts.jsonl`` of a run gives
    a pair of the best and the worst rollout of each group."""
    prompt: str = "prompt"
    """Field of the prompt: a text, or messages. Without it `chosen` and `rejected` are whole conversations."""
    chosen: str = "chosen"
    """Field of the better reply: a text, or messages."""
    rejected: str = "rejected"
    """Field of the worse reply."""
    margin: str = "margin"
    """Field of how much better it is; 1 where a record has none."""
    heldout: float = 0.1
    """Share of the prompts, by their hashes, that are measured and not trained on."""
    max_tokens: int | None = None
    """Of a conversation; of a longer one the last ones count. Null: as many as `init` has positions."""
    limit: int | None = None
    """Pairs at most; null takes all."""
    on_invalid: str = "drop"
    """Records that are no pairs, or whose replies are equal: ``drop`` and count them, or ``fail``."""

    def __post_init__(self) -> None:
        check_between("pairs.heldout", self.heldout, 0.0, 0.5)
        check_minimums(self, "pairs", max_tokens=2, limit=1)
        check_choice("pairs.on_invalid", self.on_invalid, ("drop", "fail"))


@dataclass
class PreferenceConfig:
    """The loss: -log sigmoid(chosen - rejected - margin), and terms that are added to it."""

    margin: float = 0.0
    """Required difference of the scores, times the pair's own margin where the files have one."""
    centring: float = 0.0
    """Weight of the mean of (chosen + rejected)^2, which keeps scores around 0."""
    length_control: float = 0.0
    """Above 0: a fixed term explains in training what the length alone explains of the labels, and the squared
    correlation of the scores' differences with those of the lengths is added with this weight."""

    def __post_init__(self) -> None:
        check_minimums(self, "objective", margin=0.0, centring=0.0, length_control=0.0)


@dataclass
class RewardTrainerConfig(StepsConfig):
    """How a reward model is trained."""

    batch: int = 32
    """Pairs of a step, of all processes together."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("trainer.batch", self.batch, 1)


@dataclass
class RewardTrainConfig(RunConfig):
    """The root of ``arcforge-train stage=reward``: a scalar head on `init`, trained on preferences."""

    trains_policy: ClassVar[bool] = False

    pairs: PairsConfig = field(default_factory=PairsConfig)
    objective: PreferenceConfig = field(default_factory=PreferenceConfig)
    adapter: AdapterConfig = field(default_factory=AdapterConfig)
    trainer: RewardTrainerConfig = field(default_factory=RewardTrainerConfig)
    name: str = "reward"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_budget(self.trainer)
        if self.init is None and self.resume is None:
            raise ConfigError("init", None, "a checkpoint to begin with must be named, as init=outputs/latest")
        if not self.pairs.files:
            raise ConfigError("pairs.files", [], "must name files of pairs, e.g. pairs.files=[pairs.jsonl]")
        if self.trainer.trainable and self.adapter.name != "none":
            accepted = f"adapter={self.adapter.name} trains adapters only: name the layers in adapter.targets"
            raise ConfigError("trainer.trainable", self.trainer.trainable, accepted)
