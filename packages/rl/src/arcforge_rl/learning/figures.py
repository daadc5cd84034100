"""What the rollouts of a step, and tries at held-out tasks, come to."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_rl.rollouts.collect import Collected, Rollout
from arcforge_rl.sampling.figures import majority_is_right, pass_figures

ALL = "all"
RIGHT = 1.0 - 1e-9


def rollout_figures(collected: Collected) -> dict[str, float]:
    """Returns means over all rollouts of a step, those that are not learnt from included, and the counts."""
    everything = collected.everything
    names = sorted({name for rollout in everything for name in rollout.outcome.rewards})
    lengths = [rollout.trace.num_sampled for rollout in everything]
    figures = {name: sum(r.outcome.rewards.get(name, 0.0) for r in everything) / len(everything) for name in names}
    return {
        "reward": figures.pop("reward"),
        **{f"reward_{name}": value for name, value in figures.items()},
        "groups": len(collected.kept),
        **collected.counts,
        "length": sum(lengths) / len(lengths),
        "truncated": sum(rollout.trace.truncated for rollout in everything) / len(everything),
        "sampled_tokens": sum(lengths),
    }


def evaluation_figures(groups: Sequence[Sequence[Rollout]]) -> dict[str, dict[str, float]]:
    """Returns ``pass@k``, ``maj@k``, the mean reward and the mean length of each domain, and of all as `ALL`."""
    domains: dict[str, list[Sequence[Rollout]]] = {}
    for group in groups:
        domains.setdefault(group[0].domain, []).append(group)
    return {**{domain: _measure(of) for domain, of in sorted(domains.items())}, ALL: _measure(groups)}


def rights(groups: Sequence[Sequence[Rollout]]) -> list[int]:
    """Returns how many tries at each task were right."""
    return [sum(rollout.outcome.reward >= RIGHT for rollout in group) for group in groups]


def _measure(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    count = len(groups[0])
    figures: dict[str, float] = {"tasks": len(groups), **pass_figures(rights(groups), count)}
    if count > 1:
        votes = [[(r.episode.reply.text.strip(), r.outcome.reward >= RIGHT) for r in group] for group in groups]
        figures[f"maj@{count}"] = sum(map(majority_is_right, votes)) / len(groups)
    rollouts = [rollout for group in groups for rollout in group]
    figures["reward"] = sum(rollout.outcome.reward for rollout in rollouts) / len(rollouts)
    figures["length"] = sum(rollout.trace.num_sampled for rollout in rollouts) / len(rollouts)
    figures["truncated"] = sum(rollout.trace.truncated for rollout in rollouts) / len(rollouts)
    return figures
