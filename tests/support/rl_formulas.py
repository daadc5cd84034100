"""The objectives once more, number by number in plain Python, from the papers' formulas.

A trace is a list of branches, a branch a list of sampled tokens, a token a dict with ``lp`` (what is trained), ``sg``
(the same number where the formula stops the gradient), ``old``, ``roll``, ``ref``, ``teach``, ``value``, ``value_old``.
"""

from __future__ import annotations

import math
from typing import Any

Token = dict[str, float]
EPS = 1e-6


def mean(values: list[float]) -> float:
    """Returns the mean."""
    return sum(values) / len(values)


def std(values: list[float]) -> float:
    """Returns the unbiased standard deviation, 0 of one number."""
    if len(values) < 2:
        return 0.0
    centre = mean(values)
    return math.sqrt(sum((v - centre) ** 2 for v in values) / (len(values) - 1))


def clip(x: float, low: float, high: float) -> float:
    """Returns x between two bounds."""
    return min(max(x, low), high)


def pop(rho: float, beta: float = 2.0) -> float:
    """GLM-5, below eq. 1."""
    return rho if 1 / beta <= rho <= beta else 0.0


def f(x: float, low: float, high: float) -> float:
    """GLM-5, eq. 5."""
    return x if 1 - low < x < 1 + high else 0.0


def flat(trace: list[list[Token]]) -> list[Token]:
    """Returns a trace's tokens."""
    return [token for branch in trace for token in branch]


def surrogate(r: float, a: float, low: float, high: float) -> float:
    """PPO's term."""
    return min(r * a, clip(r, 1 - low, 1 + high) * a)


def group_advantages(rewards: list[float], scaled: bool = True) -> list[float]:
    """Returns the advantages of a group."""
    return [(r - mean(rewards)) / (std(rewards) + EPS if scaled else 1.0) for r in rewards]


def trace_means(groups: list[list[list[list[Token]]]], per_token: Any) -> float:
    """Mean over groups of means over traces of means over tokens."""
    return mean(
        [mean([mean([per_token(g, i, t) for t in flat(y)]) for i, y in enumerate(ys)]) for g, ys in enumerate(groups)]
    )


def token_means(groups: list[list[list[list[Token]]]], per_token: Any) -> float:
    """Mean over all tokens."""
    return mean([per_token(g, i, t) for g, ys in enumerate(groups) for i, y in enumerate(ys) for t in flat(y)])


def k3(p: float, ref: float) -> float:
    """Estimate of KL(p, ref)."""
    return math.exp(ref - p) - (ref - p) - 1


def grpo(groups: Any, rewards: list[list[float]], beta: float = 0.0, unbiased: bool = False) -> float:
    """arXiv 2402.03300, eq. 3."""
    adv = [group_advantages(r) for r in rewards]
    return -trace_means(
        groups,
        lambda g, i, t: (
            surrogate(math.exp(t["lp"] - t["old"]), adv[g][i], 0.2, 0.2)
            - (beta * k3(t["lp"], t["ref"]) * (math.exp(t["lp"] - t["old"]) if unbiased else 1.0) if beta else 0.0)
        ),
    )


def icepop(groups: Any, rewards: list[list[float]]) -> float:
    """GLM-5, eq. 1."""
    adv = [group_advantages(r) for r in rewards]
    return -trace_means(
        groups,
        lambda g, i, t: (
            pop(math.exp(t["old"] - t["roll"])) * surrogate(math.exp(t["lp"] - t["old"]), adv[g][i], 0.2, 0.28)
        ),
    )


def double_sided(groups: Any, rewards: list[list[float]], low: float = 0.2, high: float = 0.28) -> float:
    """GLM-5, eq. 3 to 5."""
    adv = [group_advantages(r, scaled=False) for r in rewards]
    return -token_means(groups, lambda g, i, t: f(math.exp(t["sg"] - t["roll"]), low, high) * adv[g][i] * t["lp"])


def dapo(groups: Any, rewards: list[list[float]], most: int = 0, buffer: int = 0) -> float:
    """arXiv 2503.14476, eq. 8 and 13."""
    shaped = []
    for ys, rs in zip(groups, rewards, strict=True):
        row = []
        for y, r in zip(ys, rs, strict=True):
            n = len(flat(y))
            if not most or n <= most - buffer:
                row.append(r)
            elif n <= most:
                row.append(r + ((most - buffer) - n) / buffer)
            else:
                row.append(r - 1)
        shaped.append(row)
    adv = [group_advantages(r) for r in shaped]
    return -token_means(groups, lambda g, i, t: surrogate(math.exp(t["lp"] - t["old"]), adv[g][i], 0.2, 0.28))


def gspo(groups: Any, rewards: list[list[float]], low: float, high: float) -> float:
    """arXiv 2507.18071, eq. 5 to 7."""
    adv = [group_advantages(r) for r in rewards]
    return -mean(
        [
            mean(
                [
                    surrogate(math.exp(mean([t["lp"] - t["old"] for t in flat(y)])), adv[g][i], low, high)
                    for i, y in enumerate(ys)
                ]
            )
            for g, ys in enumerate(groups)
        ]
    )


def cispo(groups: Any, rewards: list[list[float]], low: float, high: float) -> float:
    """arXiv 2506.13585, eq. 4 and 5."""
    adv = [group_advantages(r) for r in rewards]
    return -token_means(
        groups, lambda g, i, t: clip(math.exp(t["sg"] - t["old"]), 1 - low, 1 + high) * adv[g][i] * t["lp"]
    )


def rloo(groups: Any, rewards: list[list[float]]) -> float:
    """arXiv 2402.14740, eq. 7, with ratios."""
    adv = [[r - (mean(rs[:i] + rs[i + 1 :]) if len(rs) > 1 else 0.0) for i, r in enumerate(rs)] for rs in rewards]
    return -trace_means(groups, lambda g, i, t: math.exp(t["lp"] - t["old"]) * adv[g][i])


def reinforce_pp(groups: Any, rewards: list[list[float]], kl: float, baseline: bool) -> float:
    """arXiv 2501.03262, section 3."""
    returns: dict[int, float] = {}
    for ys, rs in zip(groups, rewards, strict=True):
        for y, r in zip(ys, rs, strict=True):
            for branch in y:
                for n, token in enumerate(branch):
                    later = sum(t["roll"] - t["ref"] for t in branch[n:])
                    returns[id(token)] = r - (mean(rs) if baseline else 0.0) - kl * later
    values = list(returns.values())
    return -token_means(
        groups,
        lambda g, i, t: surrogate(
            math.exp(t["lp"] - t["old"]), (returns[id(t)] - mean(values)) / (std(values) + EPS), 0.2, 0.2
        ),
    )


def ppo(groups: Any, rewards: list[list[float]], gamma: float, lam: float, weight: float, value_clip: float) -> float:
    """arXiv 1707.06347 with GAE, arXiv 1506.02438."""
    adv: dict[int, float] = {}
    returns: dict[int, float] = {}
    for ys, rs in zip(groups, rewards, strict=True):
        for y, r in zip(ys, rs, strict=True):
            for branch in y:
                deltas = []
                for n, token in enumerate(branch):
                    last = n == len(branch) - 1
                    following = 0.0 if last else branch[n + 1]["value_old"]
                    deltas.append((r if last else 0.0) + gamma * following - token["value_old"])
                for n, token in enumerate(branch):
                    adv[id(token)] = sum((gamma * lam) ** k * d for k, d in enumerate(deltas[n:]))
                    returns[id(token)] = adv[id(token)] + token["value_old"]
    values = list(adv.values())

    def per_token(g: int, i: int, t: Token) -> float:
        a = (adv[id(t)] - mean(values)) / (std(values) + EPS)
        near = t["value_old"] + clip(t["value"] - t["value_old"], -value_clip, value_clip)
        error = max((t["value"] - returns[id(t)]) ** 2, (near - returns[id(t)]) ** 2) / 2
        return surrogate(math.exp(t["lp"] - t["old"]), a, 0.2, 0.2) - weight * error

    return -token_means(groups, per_token)


def opd(groups: Any) -> float:
    """GLM-5, eq. 2."""
    return -trace_means(
        groups,
        lambda g, i, t: (
            pop(math.exp(t["old"] - t["roll"]))
            * surrogate(math.exp(t["lp"] - t["old"]), t["teach"] - t["sg"], 0.2, 0.28)
        ),
    )
