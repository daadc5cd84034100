"""Base classes of algorithms: scoring by group, the corrected policy term, and KL to a reference."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from arcforge_core.config.schema import CorrectionConfig
from arcforge_core.contracts.algorithm import Correction, PolicyLoss, PolicyTokens, Trace
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_rl.algorithms import scoring
from arcforge_rl.algorithms.surrogates import clip_metrics, clipped, ratio, reference_kl
from arcforge_rl.configs.algorithms import BoundsConfig, ClippedConfig, ScoredConfig

C = TypeVar("C", bound=ScoredConfig)
K = TypeVar("K", bound=ClippedConfig)


def weighs_by_current(correction: BoundsConfig) -> bool:
    """Returns whether the factors contain the current policy's probabilities."""
    return correction.pair.startswith("current") and correction.action in ("mask", "truncate")


class PolicyGradient(ABC, Generic[C]):
    """An algorithm with one advantage per trace.

    Args:
        config: options of the algorithm.
        correction: factors of the tokens.

    Raises:
        ConfigError: both the loss and the correction would weight tokens by the current policy.
    """

    has_ratio = True
    """Whether `terms` contains the ratio of the current policy to the old one."""
    reads_traces = False
    """Whether `terms` compares the tokens of a trace with each other."""
    equal_teaches = False
    """Whether a group with equal rewards still gives a gradient."""
    components: Mapping[str, float] | None = None
    """Weights of the components of ``components=decoupled``, which `trainer.build` takes from the reward."""

    def __init__(self, config: C, correction: CorrectionConfig) -> None:
        self.config = config
        self.correction: Correction = registry().get("correction", correction.name).load()(correction)
        self.needs = frozenset({"reference"} if config.kl > 0 else ())
        self.compares = config.baseline in ("group", "leave_one_out") or config.scale == "group"
        reads_old = not isinstance(correction, BoundsConfig) or "old" in correction.pair
        by_token = isinstance(correction, BoundsConfig) and correction.level == "token"
        self.splits = by_token and not self.reads_traces
        """Whether the loss is a sum of terms of single tokens, so that a trace may be read in parts."""
        self.uses_old = self.has_ratio or config.unbiased_kl or reads_old
        if self.has_ratio and isinstance(correction, BoundsConfig) and weighs_by_current(correction):
            raise ConfigError(
                "correction.pair",
                correction.pair,
                f"algorithm={config.name} has the current policy's ratio in its loss already: "
                "take pair=old_rollout, action=reject, or algorithm=double_sided",
            )

    def score(self, traces: Sequence[Trace]) -> None:
        """Writes ``advantages`` and ``weights``.

        Raises:
            ArcforgeError: see `check_traces`.
        """
        scoring.check_traces(traces)
        scoring.write(traces, "advantages", self.advantages(traces))
        scoring.write(traces, "weights", scoring.shares(traces, self.config))

    def advantages(self, traces: Sequence[Trace]) -> list[float]:
        """Returns an advantage for each trace."""
        if self.components is not None:
            return scoring.decoupled(traces, self.config, self.components)
        return scoring.advantages(traces, self.config)

    @abstractmethod
    def terms(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss of each token, [T], and metrics to log."""

    def seen(self, tokens: PolicyTokens) -> PolicyTokens:
        """Returns the tokens as the loss sees them; the correction sees them unchanged."""
        return tokens

    def loss(self, tokens: PolicyTokens) -> PolicyLoss:
        """Returns the weighted sum of the corrected terms, plus k3 to the reference if configured."""
        seen = self.seen(tokens)
        term_T, metrics = self.terms(seen)
        factor_T, more = self.correction(tokens)
        parts = {"policy": (tokens.weights_T * factor_T * term_T).sum()}
        if self.config.kl > 0:
            kl_T = reference_kl(tokens) * (ratio(seen) if self.config.unbiased_kl else 1.0)
            parts["kl"] = self.config.kl * (tokens.weights_T * kl_T).sum()
        return PolicyLoss(parts, factor_T, {**metrics, **more})


class Clipped(PolicyGradient[K]):
    """The clipped surrogate with token ratios."""

    def seen(self, tokens: PolicyTokens) -> PolicyTokens:
        """Returns the tokens with the old policy that `algorithm.old` names."""
        return dataclasses.replace(tokens, old_T=tokens.rollout_T) if self.config.old == "engine" else tokens

    def ratio(self, tokens: PolicyTokens) -> Tensor:
        """Returns the ratio to clip, [T]."""
        return ratio(tokens)

    def terms(self, tokens: PolicyTokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns -min(r A, clip(r) A)."""
        bounds = self.config.clip_low, self.config.clip_high
        ratio_T = self.ratio(tokens)
        metrics = clip_metrics(ratio_T, tokens.advantages_T, *bounds)
        return clipped(ratio_T, tokens.advantages_T, *bounds), metrics
