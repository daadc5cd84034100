"""Tries problems with a model, keeps right tries, and writes them as records to train on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from arcforge_core.chat.openai import message_for_template
from arcforge_core.cli.progress import track
from arcforge_core.data.conversations.rejections import Rejection
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import DataError
from arcforge_core.eval.conversations.evaluate import table_of
from arcforge_core.eval.conversations.played import Played
from arcforge_core.model.causal_lm import CausalLM
from arcforge_rl.configs import SamplingConfig
from arcforge_rl.sampling.figures import ALL, by_source
from arcforge_rl.sampling.select import Selection, select

KEPT, FIGURES_FILE, REJECTED_FILE = "kept", "sampling.json", "rejected.jsonl"


@dataclass(frozen=True)
class Sampled:
    """What came of trying.

    Attributes:
        problems: the tries at each problem, by their numbers.
        selections: what was kept of them, problem by problem.
        rejections: records that could not be tried.
    """

    problems: list[list[Played]]
    selections: list[Selection]
    rejections: list[Rejection]

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """Returns figures by source, with the tries that are kept."""
        kept = Counter(one.item.source for found in self.selections for one in found.kept)
        kept[ALL] = kept.total()
        return {source: {**of, "kept": kept[source]} for source, of in by_source(self.problems).items()}

    @property
    def reasons(self) -> Counter[str]:
        """Returns how many tries were left out for what."""
        return Counter(reason for found in self.selections for _, reason in found.rejected)

    def write(self, folder: Path, settings: dict[str, Any]) -> None:
        """Writes ``kept/{reasoning,agent}/<source>.jsonl``, figures, and a line for each try that is not kept."""
        lines: dict[Path, list[str]] = {}
        for found in self.selections:
            for one in found.kept:
                corpus = "agent" if one.item.conversation.tools else "reasoning"
                path = folder / KEPT / corpus / f"{one.item.source}.jsonl"
                lines.setdefault(path, []).append(json.dumps(as_record(one), ensure_ascii=False))
        for path, records in lines.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(records) + "\n", encoding="utf-8")
        with (folder / REJECTED_FILE).open("w", encoding="utf-8") as file:
            for found in self.selections:
                for one, reason in found.rejected:
                    file.write(json.dumps({**one.as_row(), "reason": reason}, ensure_ascii=True) + "\n")
        content = {
            "settings": settings,
            "figures": self.figures,
            "rejected": dict(self.reasons),
            "not_tried": [asdict(rejection) for rejection in self.rejections],
        }
        (folder / FIGURES_FILE).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sample(model: CausalLM, tokenizer: Tokenizer, config: SamplingConfig) -> Sampled:
    """Tries each problem `config.samples` times and selects.

    Raises:
        ConfigError: as `arcforge_core.eval.conversations.evaluate.evaluate`.
        DataError: nothing can be played, or no record has a checker.
    """
    with table_of(model, tokenizer, config) as (player, items):
        checked = [item for item in items.chosen if any(turn.checker for turn in item.turns)]
        unchecked = [
            Rejection(item.file, item.line, item.source, "unchecked", "no checker can tell right tries from wrong ones")
            for item in items.chosen
            if not any(turn.checker for turn in item.turns)
        ]
        if not checked:
            raise DataError(f"{config.prefix}files: {len(unchecked)} records, and none of them has a checker")
        tries = [(item, number) for item in checked for number in range(config.samples)]
        found: dict[str, dict[int, Played]] = {item.key: {} for item in checked}
        for one in track(player.play(tries), "trying problems", len(tries)):
            found[one.item.key][one.sample] = one
    problems = [[of[number] for number in range(config.samples)] for of in found.values()]
    selections = [select(of, config.per_problem, config.choose) for of in problems]
    return Sampled(problems, selections, [*items.rejections, *unchecked])


def as_record(one: Played) -> dict[str, Any]:
    """Returns a try as a record of training data, whose checkers are those of the record it was played from."""
    item = one.item
    messages = [message_for_template(message) for message in one.messages]
    for message in messages:
        if not message.get("reasoning_content", "-"):
            del message["reasoning_content"]
    answers = [n for n, m in enumerate(one.messages) if m.role == "assistant" and not m.tool_calls]
    for place, turn in zip(answers, item.turns, strict=True):
        if turn.check is not None:
            messages[place]["checker"] = {"name": turn.check.name, "arguments": dict(turn.check.arguments)}
    record: dict[str, Any] = {"source": item.source, "thinking": item.conversation.mode, "messages": messages}
    if item.conversation.task is not None:
        record["task"] = item.conversation.task
    if item.conversation.tools:
        record["tools"] = [dict(tool.definition) for tool in item.conversation.tools]
    if item.conversation.files is not None:
        record["files"] = dict(item.conversation.files)
    return record
