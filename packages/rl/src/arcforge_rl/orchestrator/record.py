"""A rollout as bytes: a line of JSON, then the tokens as arrays, compressed.

Log-probabilities are kept in float32, as the trainer reads them. The task is not part of the record: its environment
gives it again by its number.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.environment import Episode, Failure, Outcome, Reply, Task
from arcforge_core.episodes.rollout import Rollout
from arcforge_core.errors import ArcforgeError
from arcforge_rl.execution.plain_values import from_plain, to_plain

VERSION = 1
COLUMNS = {"ids": "<i4", "sampled": "|b1", "logprobs": "<f4", "versions": "<i4"}
"""Of a branch, with the type on disk."""


def pack(rollout: Rollout) -> bytes:
    """Returns everything about a rollout except its task and its outcome."""
    head = {
        "version": VERSION,
        "number": rollout.number,
        "domain": rollout.domain,
        "stage": rollout.stage,
        "labels": list(rollout.labels),
        **episode_fields(rollout.episode),
        "truncated": rollout.truncated,
        "tools": [dict(tool.definition) for tool in rollout.tools],
        "branches": [[branch.branch_id, len(branch.ids), branch.agent] for branch in rollout.branches],
        "experts": [_layout(branch) for branch in rollout.branches],
    }
    text = json.dumps(head, ensure_ascii=True).encode()
    arrays = [
        np.asarray(getattr(branch, name), dtype).tobytes()
        for branch in rollout.branches
        for name, dtype in COLUMNS.items()
    ]
    experts = [branch.experts.tobytes() for branch in rollout.branches if branch.experts is not None]
    return zlib.compress(b"".join([struct.pack("<I", len(text)), text, *arrays, *experts]), 1)


def _layout(branch: Branch) -> list[Any] | None:
    """Returns shape and dtype of a branch's experts."""
    return None if branch.experts is None else [list(branch.experts.shape), branch.experts.dtype.name]


def unpack(data: bytes, task: Task, outcome: Outcome) -> Rollout:
    """Returns the rollout of `pack`.

    Raises:
        ArcforgeError: the bytes are of another version, or damaged.
    """
    try:
        raw = zlib.decompress(data)
        (length,) = struct.unpack_from("<I", raw)
        head = json.loads(raw[4 : 4 + length])
        if head["version"] != VERSION:
            raise ArcforgeError(f"a recorded rollout has version {head['version']}; this program reads {VERSION}")
        place, branches = 4 + length, []
        for name, tokens, *agent in head["branches"]:  # early records have none
            columns: dict[str, Any] = {}
            for column, dtype in COLUMNS.items():
                array = np.frombuffer(raw, dtype, tokens, place)
                columns[column] = array.tolist()
                place += array.nbytes
            branches.append(Branch(name, **columns, agent="".join(agent)))
        for branch, layout in zip(branches, head.get("experts", []), strict=False):  # early records have none
            if layout is not None:
                shape, dtype = layout
                experts = np.frombuffer(raw, dtype, int(np.prod(shape)), place).reshape(shape)
                branch.route(experts)
                place += experts.nbytes
        episode = episode_of(head)
    except (zlib.error, struct.error, ValueError, KeyError, TypeError) as error:
        raise ArcforgeError(f"a recorded rollout is damaged: {type(error).__name__}: {error}") from error
    tools = [Tool(definition) for definition in head["tools"]]
    stage, labels = head.get("stage", ""), tuple(head.get("labels", ()))
    known = head["number"], task, head["domain"], episode, outcome, branches
    return Rollout(*known, head["truncated"], tools, stage, labels)


def can_be_scored(data: bytes) -> bool:
    """Returns whether a record has all that a verifier may read."""
    raw = zlib.decompress(data)
    (length,) = struct.unpack_from("<I", raw)
    return json.loads(raw[4 : 4 + length])["artefacts"] is not None


def pack_outcome(outcome: Outcome) -> str:
    """Returns an outcome as JSON."""
    return json.dumps(asdict(outcome), ensure_ascii=True)


def unpack_outcome(text: str) -> Outcome:
    """Returns the outcome of `pack_outcome`."""
    fields = json.loads(text)
    failure = fields.pop("failure")
    return Outcome(**fields, failure=None if failure is None else Failure(**failure))


def episode_fields(episode: Episode) -> dict[str, Any]:
    """Returns an episode as JSON; without artefacts if one is an object of the environment's own: then the rollout can
    be trained on, not scored again."""
    try:
        artefacts = to_plain(dict(episode.artefacts))
    except (TypeError, ValueError):
        artefacts = None
    return {
        "messages": [asdict(message) for message in episode.messages],
        "reply": reply_fields(episode.reply),
        "finish_reason": episode.finish_reason,
        "artefacts": artefacts,
    }


def episode_of(fields: Mapping[str, Any]) -> Episode:
    """Returns the episode of `episode_fields`.

    Raises:
        ValueError, KeyError, TypeError: a field is absent or has another type.
    """
    messages = tuple(message_of(message) for message in fields["messages"])
    artefacts = {} if fields["artefacts"] is None else from_plain(fields["artefacts"])
    return Episode(messages, reply_of(fields["reply"]), fields["finish_reason"], artefacts)


def reply_fields(reply: Reply) -> dict[str, Any]:
    """Returns a reply as JSON."""
    calls = [asdict(call) for call in reply.calls]
    return {"text": reply.text, "reasoning": reply.reasoning, "calls": calls, "finish_reason": reply.finish_reason}


def reply_of(fields: Mapping[str, Any]) -> Reply:
    """Returns the reply of `reply_fields`."""
    return Reply(**{**fields, "calls": _calls(fields["calls"])})


def message_of(fields: Mapping[str, Any]) -> Message:
    """Returns a message of ``asdict(message)``; fields with a default may be absent."""
    return Message(**{**fields, "tool_calls": _calls(fields.get("tool_calls", ()))})


def _calls(calls: Sequence[Mapping[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(**call) for call in calls)
