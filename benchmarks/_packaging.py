"""The mixture of objectives for `hybrid_general.py`: right replies in careless packaging, and an editor who refuses it.

Writers of the fine-tuning put words around what was asked for: an opening line, lines of thanks after it, or they give
the reply to another task. Gold is an editor's verdict: the verifiers of ``environment=general`` pass the reply, and it
has no packaging. The rule is narrow: as IFEval's loose accuracy (arXiv 2311.07911) it passes a reply that they pass
without its first line, its last one, or both.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _notices as notices
from _stages import write_lines
from arcforge_core.contracts.environment import Episode, Outcome, Task
from arcforge_core.plugins.loader import registry
from arcforge_core.plugins.registry import Component
from arcforge_rl.configs.objectives import GeneralConfig
from arcforge_rl.environments.mixture import Mixture

OPENING = f"{notices.WORD.title()}!"
PASSED = "passed"
"""Metric: the rule's verdict."""


@dataclass
class EditedConfig(GeneralConfig):
    """All objectives, judged by the editor."""

    name: str = "edited"


class Edited(Mixture):
    """``environment=general``, whose reward is the editor's here; the metric `PASSED` is the rule's."""

    async def score(self, task: Task, episode: Episode) -> Outcome:
        (outcome,) = await self.score_group(task, [episode])
        return outcome

    async def score_group(self, task: Task, episodes: Sequence[Episode]) -> Sequence[Outcome]:
        return [await self._edited(task, episode) for episode in episodes]

    async def _edited(self, task: Task, episode: Episode) -> Outcome:
        text = episode.reply.text
        whole, *parts = [await super(Edited, self).score(task, with_text(episode, said)) for said in variants(text)]
        failed = next((outcome for outcome in (whole, *parts) if outcome.failure is not None), None)
        if failed is not None:
            return failed
        gold = 0.0 if is_packaged(text) else whole.reward
        rewards = {**whole.rewards, PASSED: max(outcome.reward for outcome in (whole, *parts)), "reward": gold}
        return replace(whole, rewards=rewards)


def variants(text: str) -> list[str]:
    """Returns a text, and it without its first line, its last one, and both."""
    lines = text.strip().split("\n")
    return [text, *("\n".join(lines[begin : len(lines) - cut]) for begin, cut in ((1, 0), (0, 1), (1, 1)))]


def with_text(episode: Episode, text: str) -> Episode:
    """Returns an episode whose last reply has another text."""
    messages = list(episode.messages)
    last = max(n for n, message in enumerate(messages) if message.role == "assistant")
    messages[last] = replace(messages[last], content=text)
    return replace(episode, messages=tuple(messages), reply=replace(episode.reply, text=text))


def is_packaged(text: str) -> bool:
    """Returns whether a text has a sentence or the word of the packaging."""
    return notices.WORD in notices.words(text) or any(filler in text for filler in notices.FILLERS)


def packed(draw: random.Random, text: str, fillers: Sequence[float], flattery: float) -> str:
    """Returns a text in packaging.

    Args:
        draw: decides.
        text: of the reply.
        fillers: weights of 0, 1 and 2 sentences in a line after it; the first one is always the same stock phrase.
        flattery: chance of a line before it.
    """
    opening = [OPENING] if draw.random() < flattery else []
    stock, *others = notices.FILLERS
    said = [stock, draw.choice(others)][: draw.choices(range(len(fillers)), fillers)[0]]
    return "\n".join([*opening, text, *([" ".join(said)] if said else [])])


def said_by(draw: random.Random, replies: Sequence[str], right: str, wrong: float, fillers: Sequence[float],
            flattery: float) -> str:  # fmt: skip
    """Returns a reply of some writer.

    Args:
        draw: decides.
        replies: right ones to tasks of the same kind, of which a wrong one is taken.
        right: that to the task.
        wrong: chance of a wrong one.
        fillers, flattery: see `packed`.
    """
    return packed(draw, draw.choice(replies) if draw.random() < wrong else right, fillers, flattery)


def write_files(
    kept: Sequence[Path], conversations: Path, experts: Path, pairs: Path, counts: tuple[int, int], seed: int,
    noise: float,
) -> None:  # fmt: skip
    """Writes what careless writers, experts and readers left, of the oracle's conversations.

    Args:
        kept: folders of the oracle's records.
        conversations: folder; gets the same ones with careless last replies.
        experts: file; gets right replies.
        pairs: file; gets pairs of careless replies to one prompt.
        counts: of experts' replies, and of pairs before those are left out that readers cannot tell apart.
        seed: of all draws.
        noise: share of the pairs that are the wrong way round.
    """
    draw = random.Random(f"packaging/{seed}")
    known: list[tuple[dict[str, Any], list[str]]] = []
    for file in sorted(path for place in kept for path in place.glob("*/*.jsonl")):
        records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        replies = [record["messages"][-1]["content"] for record in records]
        known += [(record, replies) for record in records]
        changed = [with_reply(one, said_by(draw, replies, right, 0.1, (0.2, 0.6, 0.2), 0.6))
                   for one, right in zip(records, replies, strict=True)]  # fmt: skip
        target = conversations / file.parent.name / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        write_lines(target, changed)
    right = [{"reply": one["messages"][-1]["content"]} for one, _ in draw.sample(known, min(counts[0], len(known)))]
    write_lines(experts, right)
    judged = []
    for _ in range(counts[1]):
        record, replies = draw.choice(known)
        right_one = record["messages"][-1]["content"]
        one, other = (said_by(draw, replies, right_one, 0.3, (1, 1, 1), 0.4) for _ in range(2))
        if notices.plainness(one) != notices.plainness(other):
            first = (notices.plainness(one) > notices.plainness(other)) != (draw.random() < noise)
            chosen, rejected = (one, other) if first else (other, one)
            judged.append({"prompt": record["messages"][:-1], "chosen": chosen, "rejected": rejected})
    write_lines(pairs, judged)


def with_reply(record: dict[str, Any], text: str) -> dict[str, Any]:
    """Returns a record whose last reply has another text."""
    *before, last = record["messages"]
    return record | {"messages": [*before, last | {"content": text}]}


def register() -> None:
    """Adds the environment to this process, once, before its first configuration is composed."""
    if "edited" in registry().names("environment"):
        return
    path = f"{__name__}:Edited"
    summary = "All objectives of general RL, judged by an editor"
    registry().register(Component("environment", "edited", path, f"{path}Config", summary, "benchmarks", "benchmarks"))
