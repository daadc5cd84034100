"""Evaluates a model by generation: loads conversations, plays them, counts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from arcforge_core.chat.load import build_chat_template
from arcforge_core.cli.progress import say, track
from arcforge_core.config.schema import PlayConfig
from arcforge_core.contracts.chat import ChatTemplate
from arcforge_core.contracts.engine import Engine
from arcforge_core.contracts.toolbox import Toolbox
from arcforge_core.data.conversations.conversation import BadRecord
from arcforge_core.data.conversations.rejections import INVALID, Rejection, summary
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import ConfigError, DataError
from arcforge_core.eval.conversations.figures import by_source
from arcforge_core.eval.conversations.items import Item, Items, load_items
from arcforge_core.eval.conversations.play import Player
from arcforge_core.eval.conversations.played import Played
from arcforge_core.model.causal_lm import CausalLM
from arcforge_core.model.generate import evaluating
from arcforge_core.registry import registry

ENGINES, TOOLBOXES = ("paged", "simple"), ("sandbox", "recorded")
"""What is taken where nothing is named: the first that is installed."""
FIGURES_FILE, TRANSCRIPTS_FILE = "generation.json", "transcripts.jsonl"


@dataclass(frozen=True)
class Report:
    """What an evaluation found.

    Attributes:
        played: in the order of the files.
        read: records of each source.
        rejections: records that could not be played.
    """

    played: list[Played]
    read: Mapping[str, int]
    rejections: Sequence[Rejection] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """Returns figures by source."""
        return by_source(self.played)

    def write(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Writes figures with their settings, and all transcripts."""
        found = {
            "settings": dict(settings),
            "figures": self.figures,
            "read": dict(self.read),
            "rejected": [asdict(rejection) for rejection in self.rejections],
        }
        (folder / FIGURES_FILE).write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        with (folder / TRANSCRIPTS_FILE).open("w", encoding="utf-8") as file:
            for played in self.played:
                file.write(json.dumps(played.as_row(), ensure_ascii=True) + "\n")


def evaluate(model: CausalLM, tokenizer: Tokenizer, config: PlayConfig, *, quiet: bool = False) -> Report:
    """Plays what the configuration names once and returns what came of it.

    Args:
        model: its mode is restored.
        tokenizer: the model's.
        config: what is played, and how.
        quiet: show no progress.

    Raises:
        ConfigError: the tokenizer has no chat template, or a component cannot be had or cannot work here.
        DataError: nothing can be played.
    """
    with table_of(model, tokenizer, config) as (player, items):
        tries = [(item, 0) for item in items.chosen]
        ended = player.play(tries)
        shown = ended if quiet else track(ended, "playing conversations", len(tries))
        by_key = {played.item.key: played for played in shown}
    return Report([by_key[item.key] for item in items.chosen], items.read, items.rejections)


def check_evaluation(config: PlayConfig) -> None:
    """Refuses what could not be played, before a model is there.

    Raises:
        ConfigError, DataError: see `evaluate`.
    """
    items = load_items(config.files, f"{config.prefix}files", config.limit, config.seed)
    registry().get("engine", config.engine or _first("engine", *ENGINES))
    with build_toolbox(config.toolbox, items.chosen):
        pass  # it can be had, and can work here


@contextmanager
def table_of(model: CausalLM, tokenizer: Tokenizer, config: PlayConfig) -> Iterator[tuple[Player, Items]]:
    """Yields a player and what it can play; the rest is among the rejections, which are told.

    Raises:
        ConfigError, DataError: see `evaluate`.
    """
    template = build_chat_template(tokenizer)
    items = load_items(config.files, f"{config.prefix}files", config.limit, config.seed)
    with evaluating(model), build_toolbox(config.toolbox, items.chosen) as toolbox:
        chosen, rejections = playable(items.chosen, template, toolbox, model.config.max_position_embeddings)
        rejections = [*items.rejections, *rejections]
        if rejections:
            say(f"conversations: {summary(rejections, sum(items.read.values()) + len(items.rejections))}")
        if not chosen:
            first = rejections[0]
            raise DataError(f"{config.prefix}files: nothing can be played: {first.file}:{first.line}: {first.reason}")
        engine = default_engine(config.engine, model)
        player = Player(engine, template, toolbox, config, model.config.max_position_embeddings)
        yield player, Items(chosen, items.read, rejections)


def playable(
    items: Sequence[Item], template: ChatTemplate, toolbox: Toolbox, positions: int
) -> tuple[list[Item], list[Rejection]]:
    """Returns the items that can be begun, and why the others cannot."""
    kept, rejections = [], []
    for item in items:
        try:
            toolbox.open(item.key, item.conversation)
            toolbox.close(item.key)
            conversation = item.conversation
            given = item.turns[0].given
            prompt = template.render(given, conversation.tools, conversation.options, generation_prompt=True)
            if len(prompt) >= positions:
                raise BadRecord(f"its prompt has {len(prompt)} tokens, and the model {positions} positions")
        except (BadRecord, ConfigError) as error:
            rejections.append(Rejection(item.file, item.line, item.source, INVALID, str(error)))
            continue
        kept.append(item)
    return kept, rejections


def default_engine(name: str | None, model: CausalLM) -> Engine:
    """Returns an engine of that name with its defaults."""
    component = registry().get("engine", name or _first("engine", *ENGINES))
    engine: Engine = component.load()(component.load_schema()(), model)
    return engine


def build_toolbox(name: str | None, items: Sequence[Item]) -> Toolbox:
    """Returns the toolbox of that name with its defaults; where nobody may call anything, the plainest."""
    if name is None:
        calls = any(item.conversation.tools for item in items)
        name = _first("toolbox", *TOOLBOXES) if calls else "recorded"
        if calls and name == "recorded":
            say("tool calls are not run but answered as recorded: pip install arcforge-rl brings toolbox=sandbox")
    component = registry().get("toolbox", name)
    toolbox: Toolbox = component.load()(component.load_schema()())
    return toolbox


def _first(kind: str, *names: str) -> str:
    """Returns the first of the names that is registered, or the last."""
    known = registry().names(kind)
    return next((name for name in names if name in known), names[-1])
