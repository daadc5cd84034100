"""Rollouts that are left out by chance where a metric says that little is learnt from them (GLM-5, 4.2.5)."""

from __future__ import annotations

from arcforge_core.data.split import key_hash
from arcforge_core.errors import ConfigError
from arcforge_rl.rollouts.collect import Collected, TracedRollout


def thin(collected: Collected, metric: str | None, share: float) -> None:
    """Moves rollouts whose metric is above 0 to those that were dropped, each with the same chance; counts them.

    The same rollouts are chosen in all processes and when a run is resumed. A group without any is dropped.

    Args:
        collected: of a step.
        metric: its name; None moves nothing.
        share: the chance.

    Raises:
        ConfigError: the environment gives no such metric.
    """
    if metric is None:
        return
    scored = [rollout for rollout in collected.everything if rollout.outcome.failure is None]
    if scored and not any(metric in rollout.outcome.rewards for rollout in scored):
        known = sorted({name for rollout in scored for name in rollout.outcome.rewards})
        raise ConfigError("rollout.thin_by", metric, f"must be a metric of the environment: {', '.join(known)}")

    def chosen(rollout: TracedRollout) -> bool:
        drawn = key_hash(f"{rollout.trace.rollout_id}/thin") / 2**64
        return rollout.outcome.rewards.get(metric, 0.0) > 0 and drawn < share

    lost = [[rollout for rollout in group if chosen(rollout)] for group in collected.kept]
    kept = [[rollout for rollout in group if not chosen(rollout)] for group in collected.kept]
    collected.kept = [group for group in kept if group]
    collected.dropped += [group for group in lost if group]
    collected.counts["thinned"] = collected.counts.get("thinned", 0) + sum(map(len, lost))
