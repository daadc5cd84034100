"""Records of conversations in ATIF, the agent trajectory interchange format of Harbor: version 1.4, read from 1.0 on.

``python -m arcforge_core.chat.atif FILE`` prints the trajectories of a file of records, one a line.

A step is a system's or user's message, or an agent's turn: its message, reasoning and calls, and as its observation the
results of the calls. https://harborframework.com/docs/trajectory-format
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from arcforge_core.errors import DataError

PREFIX, WRITTEN = "ATIF-v1.", "ATIF-v1.4"
SOURCES = {"system": "system", "user": "user", "assistant": "agent"}
ROLES = {source: role for role, source in SOURCES.items()}
KNOWN = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")
"""Fields of a message that ATIF has itself; others are in a step's ``extra``."""


def is_atif(record: Mapping[str, Any]) -> bool:
    """Returns whether a record is a trajectory."""
    return isinstance(named := record.get("schema_version"), str) and named.startswith(PREFIX)


def to_atif(record: Mapping[str, Any], agent: str = "arcforge") -> dict[str, Any]:
    """Returns a record as a trajectory; `from_atif` returns the record again.

    Args:
        record: ``messages`` and ``tools`` in the format of chat templates; all other fields are in ``extra``. Calls
            without an id get one.
        agent: name of the program around the model.

    Raises:
        DataError: a tool's result follows no call.
    """
    steps: list[dict[str, Any]] = []
    for message in record["messages"]:
        if message["role"] == "tool":
            _observe(steps, message)
        else:
            steps.append(_step(message, len(steps) + 1))
    about: dict[str, Any] = {"name": agent, "version": version("arcforge-core")}
    if record.get("tools"):
        about["extra"] = {"tools": record["tools"]}
    found = {"schema_version": WRITTEN, "session_id": str(record.get("rollout", record.get("task", "")))}
    others = {name: value for name, value in record.items() if name not in ("messages", "tools")}
    return {**found, "agent": about, "steps": steps, **({"extra": others} if others else {})}


def _step(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    step = {"step_id": number, "source": SOURCES[message["role"]], "message": message["content"]}
    if message.get("reasoning_content"):
        step["reasoning_content"] = message["reasoning_content"]
    if message.get("tool_calls"):
        step["tool_calls"] = [
            {
                "tool_call_id": call.get("id") or f"call_{number}_{place}",
                "function_name": call["function"]["name"],
                "arguments": dict(call["function"]["arguments"]),
            }
            for place, call in enumerate(message["tool_calls"], 1)
        ]
    others = {name: value for name, value in message.items() if name not in KNOWN}
    return step | ({"extra": others} if others else {})


def _observe(steps: list[dict[str, Any]], message: Mapping[str, Any]) -> None:
    """Adds a tool's result to the step of its call."""
    ids = [call["tool_call_id"] for call in (steps[-1].get("tool_calls", ()) if steps else ())]
    results = steps[-1].setdefault("observation", {"results": []})["results"] if ids else []
    if len(results) >= len(ids):
        raise DataError(f"the tool's result {str(message['content'])[:50]!r} follows no call")
    named = message.get("tool_call_id")
    results.append({"source_call_id": named if named in ids else ids[len(results)], "content": message["content"]})


def from_atif(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record of a trajectory, with the fields of its ``extra``.

    Results without a call of the step, as of a subagent, are messages of the user.

    Raises:
        DataError: another format, or a trajectory that is malformed.
    """
    if not is_atif(trajectory):
        named = trajectory.get("schema_version")
        raise DataError(f"schema_version must be {PREFIX}0 or a later one of version 1, not {named!r}")
    try:
        about = trajectory["agent"]
        tools = about.get("tool_definitions") or (about.get("extra") or {}).get("tools")
        messages = [message for step in trajectory["steps"] for message in _messages(step)]
        extra = dict(trajectory.get("extra") or {})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DataError(f"a trajectory is malformed: {type(error).__name__}: {error}") from error
    return {**extra, "messages": messages, **({"tools": tools} if tools else {})}


def _messages(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    message: dict[str, Any] = {"role": ROLES[step["source"]], "content": _text(step["message"])}
    if step.get("reasoning_content"):
        message["reasoning_content"] = step["reasoning_content"]
    if step.get("tool_calls"):
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call["tool_call_id"],
                "function": {"name": call["function_name"], "arguments": dict(call["arguments"])},
            }
            for call in step["tool_calls"]
        ]
    found, ids = [message | (step.get("extra") or {})], {call["id"] for call in message.get("tool_calls", ())}
    for result in (step.get("observation") or {}).get("results") or ():
        answers, text = result.get("source_call_id"), _text(result.get("content"))
        is_answer = answers in ids
        found.append({"role": "tool", "content": text, "tool_call_id": answers} if is_answer else _given(text))
    return found


def _given(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _text(content: Any) -> str:
    """Returns a text; of the parts of version 1.6, the texts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


if __name__ == "__main__":
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        print(json.dumps(to_atif(json.loads(line)), ensure_ascii=False))
