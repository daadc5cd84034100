"""The audit of tau2's tasks: one whose gold calls do not earn 1, or that earns something without work, is left out."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcforge_rl.dialogue.benchmark import ASSISTANT, Act, Case, Domain, read_domain
from arcforge_rl.dialogue.world import TRANSFER, World

LEAVING = Act(ASSISTANT, TRANSFER, {"summary": "The customer needs something."})


@dataclass(frozen=True)
class Audited:
    """A task and what the audit found.

    Attributes:
        case: the task.
        wanted: the changes of the database that its gold calls make.
        failing: gold calls that tools refuse, which the benchmark means to be so.
        excluded: why it is left out; empty for a task that is used.
    """

    case: Case
    wanted: dict[str, Any]
    failing: int
    excluded: str


@functools.lru_cache(maxsize=12)
def audited(folder: Path, name: str, whole: bool) -> Sequence[Audited]:
    """Audits the tasks of a domain.

    Args:
        folder: of the benchmark.
        name: of the domain.
        whole: all tasks, not only the benchmark's list ``base``.
    """
    domain = read_domain(folder, name)
    base = domain.published.get("base", frozenset())
    return [audit(domain, case) for case in domain.cases if whole or case.key in base]


def audit(domain: Domain, case: Case) -> Audited:
    """Replays the gold calls, silence, an immediate transfer, and the customer's own words."""
    gold = World(domain, case)
    errors = gold.replay(case.gold)
    wanted = gold.changes()
    verdict = gold.verdict(wanted, [" ".join(case.told)], case.told)
    reason = "" if verdict.right else f"the gold replay earns 0: {verdict.reason}"
    if not reason and World(domain, case).verdict(wanted, []).right:
        reason = "silence earns 1: nothing is to be done or said"
    if not reason:
        left = World(domain, case)
        left.replay([LEAVING])
        if left.verdict(wanted, []).right:
            reason = "an immediate transfer earns 1"
    if not reason:
        texts = list(case.scenario.values())
        if World(domain, case).verdict(wanted, texts, texts).right:
            reason = "repeating the customer's words earns 1"
    return Audited(case, wanted, len(errors), reason)
