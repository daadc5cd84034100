"""The environments of ``benchmarks/environment_rl.py``: their options, and demonstrations of which a part is flawed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _forgetting_rows as of
from _stages import write_lines
from arcforge_core.chat.openai import message_for_template
from arcforge_core.contracts.chat import Message
from arcforge_core.contracts.environment import Agents, Reply
from arcforge_core.episodes.scripted import ScriptedAgent
from arcforge_rl.configs.environments import TerminalConfig
from arcforge_rl.configs.slides import SlidesConfig
from arcforge_rl.slides.brief import Brief

SHAPES = ("height: 960px", "width: 1024px; height: 768px", "width: 1123px; height: 794px", "height: 1440px")
"""Flawed pages: higher ones, 4:3, A4 on its side, twice as high."""
PAGE = '<section class="slide">'
HEAD = """<!doctype html>
<html><head><style>
div { position: absolute; left: 80px; width: 1120px; }
.slide { position: relative; width: 1280px; height: 720px; }
.a { top: 72px; height: 80px; }
.b { top: 190px; height: 460px; background: #eee; }
h1 { margin: 0; font-size: 36px; }
p { margin: 130px 40px; font-size: 30px; }
</style></head>
<body>
"""
FAMILIES = ("permissions", "processes")
"""Of the terminal: those whose solution is a few lines of bash."""
SIDE_BY_SIDE = 8
Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """An environment.

    Attributes:
        title: in the table.
        options: overrides that say which tasks it has.
        tokens: of a reply at most.
        sequence: tokens of a conversation at most.
        figure: of a rollout, besides its reward; or empty.
        write: returns some demonstrations, of which a share is right, drawn with a seed.
    """

    title: str
    options: tuple[str, ...]
    tokens: int
    sequence: int
    figures: tuple[str, ...]
    write: Callable[[int, float], list[Record]]


@dataclass(frozen=True)
class Recipe:
    """Options that all runs of a folder share.

    Attributes:
        init: checkpoint that all begin with.
        demonstrations: conversations of the fine-tuning.
        right: share of them, or of their pages, without a flaw.
        sft, rl, again: steps of the fine-tuning, of reinforcement learning, of the fine-tuning on own replies.
        sft_lr, lr: learning rates of the fine-tuning and of reinforcement learning.
        groups, group_size: of a step of reinforcement learning.
        tasks: held-out ones.
        samples, tries: tasks of rejection sampling, and replies to each.
        level: at which held-out decks are judged.
    """

    init: str
    demonstrations: int
    right: float
    sft: int
    sft_lr: float
    rl: int
    groups: int
    group_size: int
    lr: float
    tasks: int
    samples: int
    tries: int
    again: int
    level: int


def deck_of(brief: Brief, shapes: Sequence[str]) -> str:
    """Returns a small deck, which keeps every rule where no page has a shape of its own."""
    pages = []
    for page, shape in zip(brief.pages, shapes, strict=True):
        lines = [point.text for point in page.points] or [page.line]
        head = PAGE[:-1] + f' style="{shape}">' if shape else PAGE
        body = "".join(f"<p>{line}</p>" for line in lines)
        pages.append(f'{head}\n<div class="a"><h1>{page.title}</h1></div>\n<div class="b">{body}</div>\n</section>\n')
    return f"{HEAD}{''.join(pages)}</body></html>"


def decks(count: int, right: float) -> list[Record]:
    """Returns decks in which each page has another shape than 16:9 with the probability ``1 - right``."""
    from arcforge_rl.slides.environment import Slides

    environment = Slides(SlidesConfig(fewest=2, most=2, points=2, rules=False))
    draw, found = random.Random(0), []
    for number in range(count):
        task: Any = environment.task(number)
        shapes = ["" if draw.random() < right else draw.choice(SHAPES) for _ in task.brief.pages]
        said = [Message("user", task.prompt), Message("assistant", deck_of(task.brief, shapes))]
        found.append(_record("slides", task.key, said))
    return found


def sessions(count: int, right: float) -> list[Record]:
    """Returns sessions in a terminal: with the probability ``1 - right`` one of the family's known cheats, played."""
    return asyncio.run(_sessions(count, right))


async def _sessions(count: int, right: float) -> list[Record]:
    from arcforge_rl.terminal.environment import BASH, Terminal, calling
    from arcforge_rl.terminal.table import drawn

    environment, draw = Terminal(TerminalConfig(families=list(FAMILIES))), random.Random(0)
    gate = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(number: int, honest: bool, chosen: float) -> Record:
        task: Any = environment.task(number)
        draft = drawn(task.family, int(task.key.rsplit("/", 1)[1]))
        short = [cheat for cheat in draft.cheats if len(cheat) <= len(draft.solve) + 40]
        script = draft.solve if honest else short[int(chosen * len(short))]
        async with gate:
            agent = ScriptedAgent([calling(script.strip()), Reply("Done.")])
            episode = await environment.run(task, Agents(agent))
        return _record("terminal", task.key, episode.messages) | {"tools": [dict(BASH.definition)]}

    plays: list[Awaitable[Record]] = [one(n, draw.random() < right, draw.random()) for n in range(count)]
    return list(await asyncio.gather(*plays))


def _record(source: str, key: str, messages: Any) -> Record:
    said = [message_for_template(message) for message in messages]
    return {"source": source, "thinking": "off", "task": key, "messages": said}


ROWS = {
    "slides": Row("slides", ("environment=slides", "environment.fewest=2", "environment.most=2",
                             "environment.points=2", "environment.rules=false"),
                  440, 560, ("reward", "strict_16_9"), decks),
    "terminal": Row("terminal", ("environment=terminal", f"environment.families=[{','.join(FAMILIES)}]",
                                 "environment.max_calls=2"), 200, 512, ("reward",), sessions),
}  # fmt: skip
WAYS = {"rl": "RL", "rejection": "rejection sampling"}
"""Ways to learn, by name, with their titles."""


def write_demonstrations(row: Row, count: int, right: float, kept: Path) -> None:
    """Writes demonstrations below ``kept``, as commands do."""
    records = row.write(count, right)
    path = kept / ("agent" if "tools" in records[0] else "reasoning") / "demonstrations.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, records)


def tuning(steps: int, lr: float, init: str, kept: Path, row: Row, seed: int, folder: Path) -> list[str]:
    """Returns the command of a fine-tuning on the records of a folder; a step has two conversations of full length."""
    return [
        *of.tuning(steps, lr, Path(init), [kept], seed, folder), f"data.max_tokens={row.sequence + 1}",
        f"trainer.sequence_length={row.sequence}", f"trainer.micro_batch_tokens={2 * row.sequence}",
        "model.mtp.fraction=0",
    ]  # fmt: skip


def learning(recipe: Recipe, row: Row, init: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command of reinforcement learning, on tasks that were not demonstrated."""
    shared = of.learning(recipe, recipe.rl, str(init), row.tokens, seed, folder)  # type: ignore[arg-type]
    return [*shared, *row.options, f"environment.seed={1 + seed}", f"trainer.micro_batch_tokens={4 * row.sequence}"]


def sampling(recipe: Recipe, row: Row, init: Path, seed: int, folder: Path) -> list[str]:
    """Returns the command that keeps a model's right replies to tasks that were not demonstrated."""
    return [
        "env", *row.options, f"environment.seed={1 + seed}", f"checkpoint={init}", "engine=paged", "records=true",
        f"episodes={recipe.samples}", f"rollouts={recipe.tries}", f"max_new_tokens={row.tokens}", f"seed={seed}",
        f"output_dir={folder}",
    ]  # fmt: skip


def evaluation(recipe: Recipe, row: Row, checkpoint: Path, folder: Path) -> list[str]:
    """Returns the command that tries held-out tasks once each, at temperature 1."""
    shown = [f"environment.level={recipe.level}"] if "strict_16_9" in row.figures else []
    return [
        "env", *row.options, *shown, "environment.split=heldout", f"checkpoint={checkpoint}", "engine=paged",
        f"episodes={recipe.tasks}", f"max_new_tokens={row.tokens}", f"output_dir={folder}",
    ]  # fmt: skip
