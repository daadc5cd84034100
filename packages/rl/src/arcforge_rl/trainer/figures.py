"""Figures of the rollouts of a step, and of evaluations on held-out tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from arcforge_core.contracts.algorithm import Trace
from arcforge_core.contracts.environment import Environment
from arcforge_rl.best_of.figures import majority_is_right, pass_figures
from arcforge_rl.environments.unjudged import is_unjudged
from arcforge_rl.rewards.figures import component_figures
from arcforge_rl.rewards.hybrid import Hybrid
from arcforge_rl.rollouts.collect import Collected, TracedRollout
from arcforge_rl.rollouts.replies import reply_figures

ALL = "all"
RIGHT = 1.0 - 1e-9


def rollout_figures(collected: Collected) -> dict[str, float]:
    """Returns means over all successful rollouts of a step, if there are any, and the counts."""
    counted = {"groups": len(collected.kept), **collected.counts, **collected.figures}
    everything = [rollout for rollout in collected.everything if rollout.outcome.failure is None]
    if not everything:
        return {**counted, "sampled_tokens": 0}
    names = sorted({name for rollout in everything for name in rollout.outcome.rewards})
    lengths = [rollout.trace.num_sampled for rollout in everything]
    figures = {name: sum(r.outcome.rewards.get(name, 0.0) for r in everything) / len(everything) for name in names}
    reward = figures.pop("reward")
    unjudged = all(is_unjudged(rollout.outcome) for rollout in everything)
    return {
        **({} if unjudged else {"reward": reward}),
        **{f"reward_{name}": value for name, value in figures.items()},
        **reply_figures([rollout.episode.reply for rollout in everything]),
        "length": sum(lengths) / len(lengths),
        "truncated": sum(rollout.trace.truncated for rollout in everything) / len(everything),
        "sampled_tokens": sum(lengths),
        **counted,
    }


def hybrid_figures(environment: Environment, collected: Collected) -> dict[str, float]:
    """Returns the figures of each component of a hybrid reward over the rollouts of a step; none of another reward.

    Args:
        environment: of the training tasks; where another process judges them, `collected` has that one's figures.
        collected: the rollouts.
    """
    if not isinstance(environment, Hybrid):
        return {}
    own = {**environment.take_figures(), **collected.figures}
    whole = [*collected.kept, *collected.dropped]
    groups = [[one.outcome.rewards for one in group if one.outcome.failure is None] for group in whole]
    return component_figures(environment.spec, [group for group in groups if group]) | own


def explained_variance(traces: Sequence[Trace]) -> dict[str, float]:
    """Returns 1 - Var(return - value) / Var(return) over sampled tokens, with the values before the update: 1 for a
    perfect critic, 0 for a constant. Nothing where all returns are equal."""
    return_S, value_S = (
        torch.cat([b.streams[name][b.index_T] for trace in traces for b in trace.branches]).double()
        for name in ("returns", "values")
    )
    spread = float(return_S.var(correction=0))
    if not spread > 0:
        return {}
    return {"explained_variance": 1.0 - float((return_S - value_S).var(correction=0)) / spread}


def evaluation_figures(groups: Sequence[Sequence[TracedRollout]]) -> dict[str, dict[str, float]]:
    """Returns ``pass@k``, ``maj@k``, the mean reward and the mean length of each domain, and of all as `ALL`.

    A task with a failed rollout is left out and counted in ``failed_tasks``; one at least has none.
    """
    whole = complete(groups)
    failed = {} if len(whole) == len(groups) else {"failed_tasks": float(len(groups) - len(whole))}
    groups = whole
    domains: dict[str, list[Sequence[TracedRollout]]] = {}
    for group in groups:
        domains.setdefault(group[0].domain, []).append(group)
    return {**{domain: _measure(of) for domain, of in sorted(domains.items())}, ALL: _measure(groups) | failed}


def label_figures(groups: Sequence[Sequence[TracedRollout]]) -> dict[str, dict[str, float]]:
    """Returns, by domain, category and kind, the number of tasks, pass@1, and the means of all rewards and metrics.

    Only tasks whose environment gives labels are counted; those with a failed rollout are left out.
    """
    by_label: dict[str, list[Sequence[TracedRollout]]] = {}
    for group in complete(groups):
        if group[0].labels:
            for label in (f"domain:{group[0].domain}", *group[0].labels):
                by_label.setdefault(label, []).append(group)
    found = {}
    for label, of_label in sorted(by_label.items()):
        rollouts = [rollout for group in of_label for rollout in group]
        names = sorted(set.intersection(*(set(rollout.outcome.rewards) for rollout in rollouts)))
        means = {name: sum(one.outcome.rewards[name] for one in rollouts) / len(rollouts) for name in names}
        right = sum(map(is_right, rollouts)) / len(rollouts)
        found[label] = {"tasks": float(len(of_label)), "pass@1": right, **means}
    return found


def complete(groups: Sequence[Sequence[TracedRollout]]) -> list[Sequence[TracedRollout]]:
    """Returns the groups in which no rollout failed."""
    return [group for group in groups if all(rollout.outcome.failure is None for rollout in group)]


def why_not_measured(groups: Sequence[Sequence[TracedRollout]]) -> str:
    """Returns the first failure if none of the held-out tasks is without one, otherwise an empty text."""
    if not groups or complete(groups):
        return ""
    first = next(failure for group in groups for rollout in group if (failure := rollout.outcome.failure) is not None)
    return f"each of the {len(groups)} held-out tasks has a failed rollout; the first: {first.kind}: {first.reason}"


def rights(groups: Sequence[Sequence[TracedRollout]]) -> list[int]:
    """Returns the number of right rollouts of each task."""
    return [sum(is_right(rollout) for rollout in group) for group in groups]


def is_right(rollout: TracedRollout) -> bool:
    """Returns whether a rollout has the full reward."""
    return rollout.outcome.failure is None and rollout.outcome.reward >= RIGHT


def failures(figures: Mapping[str, float]) -> str:
    """Returns a text with the number of failed rollouts of a step by kind; empty if none failed."""
    kinds = {name.removeprefix("failed_"): count for name, count in figures.items() if name.startswith("failed_")}
    return ", ".join(f"{count:.0f} {kind}" for kind, count in kinds.items())


def _measure(groups: Sequence[Sequence[TracedRollout]]) -> dict[str, float]:
    count = len(groups[0])
    figures: dict[str, float] = {"tasks": len(groups), **pass_figures(rights(groups), count)}
    if count > 1:
        votes = [[(r.episode.reply.text.strip(), is_right(r)) for r in group] for group in groups]
        figures[f"maj@{count}"] = sum(map(majority_is_right, votes)) / len(groups)
    rollouts = [rollout for group in groups for rollout in group]
    figures["reward"] = sum(rollout.outcome.reward for rollout in rollouts) / len(rollouts)
    figures["length"] = sum(rollout.trace.num_sampled for rollout in rollouts) / len(rollouts)
    figures["truncated"] = sum(rollout.trace.truncated for rollout in rollouts) / len(rollouts)
    return figures
