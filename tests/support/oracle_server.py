"""A server of chat completions that plays an environment's oracle."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from arcforge_core.contracts.environment import Environment, Reply
from support.listening import JsonHandler, listening


def completion(reply: Reply, turn: int = 0) -> dict[str, Any]:
    """Returns a reply as a chat completion, with the fields that OpenAI's clients check."""
    calls = [
        {"id": f"call_{turn}_{n}", "type": "function",
         "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))}}
        for n, call in enumerate(reply.calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": reply.text} | ({"tool_calls": calls} if calls else {})
    reason = "tool_calls" if calls else reply.finish_reason
    return {
        "id": f"chat-{turn}", "object": "chat.completion", "created": 0, "model": "scripted",
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
    }  # fmt: skip


@contextmanager
def oracle_server(environment: Environment, tasks: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Answers as the oracle of the task that is asked for, as the model ``oracle``; as any other model with silence.

    Yields:
        The address, and the bodies that came.
    """
    scripts = {task.prompt: environment.oracle(task) for task in map(environment.task, range(tasks))}
    asked: list[dict[str, Any]] = []

    def post(request: JsonHandler) -> None:
        body = request.body()
        asked.append(body)
        if body["model"] == "broken":
            request.answer(500, {"error": {"message": "the disk is full"}})
            return
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        script = script_for(body["messages"], scripts) if body["model"] == "oracle" else ()
        request.answer(200, completion(script[turn] if turn < len(script) else Reply(), turn))

    with listening(post) as url:
        yield url, asked


def script_for(messages: Sequence[Mapping[str, Any]], scripts: Mapping[str, Sequence[Reply]]) -> Sequence[Reply]:
    """Returns the script of the task whose prompt is in a conversation."""
    said = [message["content"] for message in messages if message["role"] == "user"]
    return next(script for prompt, script in scripts.items() if any(prompt in text for text in said))
