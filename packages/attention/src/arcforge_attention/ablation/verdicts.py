"""The claims of the paper's ablation (spec 3.4, 3.5), checked against the figures of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any

from arcforge_attention.configs import AblationOptions

Results = dict[str, dict[str, Mapping[str, Any]]]
"""Final figures by variant and seed."""

DENSE_FLOORS = {"single": 0.90, "multi_key": 0.70}
LOSS_WITHIN, RETRIEVAL_WITHIN, WORSE_BY = 0.01, 0.02, 0.20


@dataclass(frozen=True)
class Claim:
    """A claim, whether the figures support it, and these figures."""

    text: str
    holds: bool
    figures: str


def verdicts(results: Results, options: AblationOptions) -> list[Claim]:
    """Returns the claims that the finished variants allow to judge."""
    found = [dense_retrieves(results, options, name) for name in ("gqa", "mla") if name in results]
    if "mla" in results and "dsa" in results:
        loss = {name: _mean(results[name], "heldout_loss") for name in ("mla", "dsa")}
        text = f"DSA: held-out loss within {LOSS_WITHIN:.0%} of the dense model trained on the same tokens"
        holds = loss["dsa"] <= (1 + LOSS_WITHIN) * loss["mla"]
        found.append(
            Claim(text, holds, f"{loss['dsa']:.4f} against {loss['mla']:.4f} ({loss['dsa'] / loss['mla'] - 1:+.2%})")
        )
        ours, dense = (mean(overall(results[name], options, "")) for name in ("dsa", "mla"))
        text = f"DSA: retrieval within {100 * RETRIEVAL_WITHIN:.0f} points of the dense model's"
        found.append(Claim(text, ours >= dense - RETRIEVAL_WITHIN, f"{ours:.1%} against {dense:.1%}"))
        found.append(worse(results, options, "an untrained indexer", ("dsa", "converted "), ("mla", "")))
    if "gqa" in results and "swa" in results:
        found.append(worse(results, options, "SWA interleave without training", ("swa", "converted "), ("gqa", "")))
        found.append(worse(results, options, "SWA interleave after training", ("swa", ""), ("gqa", "")))
    if {"swa", "swa_pattern"} <= results.keys():
        found.append(better(results, options, "swa_pattern", "swa"))
    if {"simple_gdn", "gdn"} <= results.keys():
        found.append(better(results, options, "simple_gdn", "gdn"))
    return found


def dense_retrieves(results: Results, options: AblationOptions, name: str) -> Claim:
    """Without this the comparison is void: what the dense model cannot do, no variant can lose."""
    lowest = {
        task: min(_mean(results[name], f"{task}@{length}") for length in options.lengths)
        for task in DENSE_FLOORS
        if task in options.tasks
    }
    wanted = ", ".join(f"{task} at least {DENSE_FLOORS[task]:.0%}" for task in lowest)
    holds = all(lowest[task] >= DENSE_FLOORS[task] for task in lowest)
    text = f"{name}, dense: {wanted} at every length" + ("" if holds else "; the comparison is void")
    return Claim(text, holds, ", ".join(f"{task} {score:.1%}" for task, score in lowest.items()))


def worse(
    results: Results, options: AblationOptions, what: str, variant: tuple[str, str], dense: tuple[str, str]
) -> Claim:
    """Says whether a variant is worse than the dense model by far, and no seed of the one reaches any of the other."""
    low, high = (overall(results[name], options, prefix) for name, prefix in (variant, dense))
    holds = mean(high) - mean(low) >= WORSE_BY and max(low) < min(high)
    text = f"{what}: worse than {dense[0]} by at least {100 * WORSE_BY:.0f} points, ranges of seeds apart"
    return Claim(text, holds, f"{_range(low)} against {_range(high)}")


def better(results: Results, options: AblationOptions, name: str, than: str) -> Claim:
    """Says whether one variant retrieves more than another after training."""
    ours, theirs = (overall(results[n], options, "") for n in (name, than))
    return Claim(
        f"{name} retrieves more than {than}", mean(ours) > mean(theirs), f"{_range(ours)} against {_range(theirs)}"
    )


def overall(seeds: Mapping[str, Mapping[str, Any]], options: AblationOptions, prefix: str) -> list[float]:
    """Returns each seed's mean retrieval over all lengths."""
    return [mean(f[f"{prefix}retrieval@{n}"] for n in options.lengths) for f in seeds.values()]


def _mean(seeds: Mapping[str, Mapping[str, Any]], figure: str) -> float:
    return mean(float(figures[figure]) for figures in seeds.values())


def _range(values: list[float]) -> str:
    return f"{mean(values):.1%} ({min(values):.1%} to {max(values):.1%})"
