"""Schemas of generative judges and of their calibration; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from arcforge_core.config.schema import CheckerConfig, HardwareConfig, check_between, check_choice, check_minimums
from arcforge_core.errors import ConfigError
from arcforge_rl.configs.others import agent_of

MODES = ("pointwise", "pairwise")
COMPARISONS = ("linear", "full")


@dataclass
class JudgeConfig(CheckerConfig):
    """A generative judge: agents of the run that answer by a rubric."""

    name: str = "grm"
    rubric: str = ""
    """File with criteria, see docs/general_rl.md."""
    judges: list[str] = field(default_factory=lambda: ["judge"])
    """Agents of the run, ``agents.NAME``; several are a panel, whose verdicts are averaged."""
    mode: str = "pointwise"
    """``pointwise``: each reply by itself; ``pairwise``: the replies of a task against each other, each pair in both
    orders; judges that change their mind with the order say that it is a tie."""
    comparisons: str = "linear"
    """Of ``pairwise``: ``linear``: each reply with the same one of the group; ``full``: each with each."""
    opponents: str | None = None
    """Of ``pairwise``: file of expert-written replies (``prompt`` and ``reply``). Replies to such a prompt are compared
    with those alone, so that the value is their rate of winning; other prompts as ``comparisons`` says."""
    samples: int = 1
    """Verdicts of each judge that are averaged."""
    attempts: int = 2
    """At a verdict that cannot be read; then that verdict is missing."""
    concurrency: int = 8
    """Requests at a time."""
    most_characters: int = 16000
    """Of a prompt or reply that the judge reads; of a longer one beginning and end."""
    budget: int = 0
    """Requests of a step at most; rollouts that would need more are failures. 0: no bound."""
    cache: str | None = None
    """File in which verdicts are kept by content, for later runs too; null keeps them while the run lasts."""
    calibration: str | None = None
    """File that ``arcforge-env calibrate`` wrote of this judge; null needs ``uncalibrated=true``."""
    uncalibrated: bool = False
    """Accept a judge that was never compared with labels."""

    def __post_init__(self) -> None:
        check_choice("options.mode", self.mode, MODES)
        check_choice("options.comparisons", self.comparisons, COMPARISONS)
        check_minimums(self, "options", samples=1, attempts=1, concurrency=1, most_characters=100, budget=0)
        if not self.judges or len(set(self.judges)) < len(self.judges):
            raise ConfigError("options.judges", self.judges, "must name at least one agent, and none twice")
        if self.mode == "pointwise" and self.comparisons != "linear":
            raise ConfigError("options.comparisons", self.comparisons, "are of mode=pairwise")
        if self.mode == "pointwise" and self.opponents is not None:
            raise ConfigError("options.opponents", self.opponents, "are of mode=pairwise")


@dataclass
class CalibrateConfig:
    """The root of ``arcforge-env calibrate``: how a judge agrees with labels."""

    hardware: HardwareConfig = MISSING
    labels: str = ""
    """jsonl of judged pairs: ``prompt``, ``chosen``, ``rejected``, and optionally ``tie`` (true) and ``author_chosen``,
    ``author_rejected`` (names of the models that wrote them)."""
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    """The judge, with the options of a component that has ``reward = "grm"``."""
    agents: dict[str, Any] = field(default_factory=dict)
    """Agents that it asks, as ``arcforge-rl``'s."""
    output: str = "calibration.json"
    """File to write, which `options.calibration` names."""
    limit: int | None = None
    """Labelled pairs at most; null takes all."""
    repeats: int = 2
    """Times that each pair is judged again, for the variance of the verdicts."""
    own: str = ""
    """Name of the author whose replies the judge's own model wrote, for self-preference."""
    least_kappa: float = 0.4
    """Cohen's kappa between verdicts and labels; a judge below is refused as a reward."""
    most_position_bias: float = 0.2
    """Share of the pairs whose verdict follows the order, net of the opposite; a judge above is refused."""
    most_failures: float = 0.1
    """Share of the verdicts that cannot be had; a judge above is refused."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_minimums(self, "", limit=1, repeats=1, seed=0)
        for name in ("most_position_bias", "most_failures"):
            check_between(name, getattr(self, name), 0.0, 1.0)
        check_between("least_kappa", self.least_kappa, -1.0, 1.0)
        if not self.labels:
            raise ConfigError("labels", "", "must name a file of judged pairs")
        self.agents = {name: agent_of(fields, name) for name, fields in self.agents.items()}
