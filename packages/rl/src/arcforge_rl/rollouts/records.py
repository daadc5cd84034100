"""Rollouts as conversations to fine-tune on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from arcforge_core.contracts.conversation import INTERLEAVED, OFF
from arcforge_core.episodes.conversation_tasks import ConversationTask
from arcforge_core.episodes.rollout import Rollout
from arcforge_rl.environments.mixture import MixtureTask

KEPT = "kept"


def write_records(folder: Path, rollouts: Iterable[Rollout], thinking: bool = False) -> None:
    """Writes rollouts as training records: ``kept/reasoning/DOMAIN.jsonl``, those with tools below ``kept/agent``.

    Args:
        folder: gets ``kept``.
        rollouts: to be written, in this order.
        thinking: the mode of tasks that do not come from records.
    """
    lines: dict[Path, list[str]] = {}
    for one in rollouts:
        path = folder / KEPT / ("agent" if one.tools else "reasoning") / f"{one.domain}.jsonl"
        lines.setdefault(path, []).append(json.dumps(as_record(one, thinking), ensure_ascii=False))
    for path, records in lines.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(records) + "\n", encoding="utf-8")


def as_record(one: Rollout, thinking: bool = False) -> dict[str, Any]:
    """Returns a rollout as a training record, with the checkers of its original record.

    Args:
        one: the rollout.
        thinking: the mode of a task that does not come from a record, and whose part of a mixture has none.
    """
    rollout, task = one.record(), one.task
    messages: list[dict[str, Any]] = rollout["messages"]
    for message in messages:
        if not message.get("reasoning_content", "-"):
            del message["reasoning_content"]
    if not isinstance(task, ConversationTask):
        own = task.thinking if isinstance(task, MixtureTask) else None
        mode = own or ("on" if thinking else OFF)
        mode = INTERLEAVED if mode == "on" else mode
        shared: dict[str, Any] = {name: rollout[name] for name in ("messages", "task", "tools") if name in rollout}
        return {"source": one.domain, "thinking": mode, **shared}
    conversation = task.conversation
    answers = [n for n, m in enumerate(one.episode.messages) if m.role == "assistant" and not m.tool_calls]
    for place, question in zip(answers, task.questions, strict=True):
        if question.check is not None:
            messages[place]["checker"] = {"name": question.check.name, "arguments": dict(question.check.arguments)}
    record: dict[str, Any] = {"source": task.source, "thinking": conversation.mode, "messages": messages}
    if conversation.task is not None:
        record["task"] = conversation.task
    if conversation.tools:
        record["tools"] = [dict(tool.definition) for tool in conversation.tools]
    if conversation.files is not None:
        record["files"] = dict(conversation.files)
    return record
