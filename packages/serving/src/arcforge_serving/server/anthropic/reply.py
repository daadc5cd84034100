"""Replies of Anthropic's Messages API: a message of blocks, or the events that build it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from arcforge_core.contracts.chat import Tool
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.openai.chat_writer import ChatWriter
from arcforge_serving.server.openai.schemas import ReplyModel, WeightVersions
from arcforge_serving.server.openai.translate import Fragment, fragments
from arcforge_serving.server.shared.errors import AbortedError, problem_of
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.reply import Event
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.usage import Json, Usage

SIGNATURE = "unsigned"
"""Clients send reasoning back only if it is signed; the signature is not checked."""
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class TextReply(ReplyModel):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingReply(ReplyModel):
    """Reasoning."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseReply(ReplyModel):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, object]


class MessageUsage(ReplyModel):
    """Tokens; the prompt's are those that were computed and those that were found in the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int


class MessagesReply(ReplyModel):
    """The reply of ``/v1/messages``. Token ids and versions come with ``return_token_ids``."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextReply | ThinkingReply | ToolUseReply]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    prompt_token_ids: list[int] = Field(default=[])
    token_ids: list[int] = Field(default=[])
    weight_versions: WeightVersions = Field(default=[])


class TokenCount(ReplyModel):
    """The reply of ``/v1/messages/count_tokens``."""

    input_tokens: int = Field(ge=1)


class MessageWriter:
    """Builds the message and its events; a `ReplyBuilder` of one sequence.

    Args:
        body: the chat request that it is translated to.
        jobs: its sequence.
        tools: the tools that the model may call.
        server: has the model.
    """

    last = b""

    def __init__(self, body: ChatRequest, jobs: list[Job], tools: Sequence[Tool], server: ServerState) -> None:
        self._writer, self._prompt = ChatWriter(body, jobs, tools, server), jobs[0].prompt
        self._ids = body.return_token_ids
        self.id = f"msg_{uuid.uuid4().hex}"
        self.usage = Usage(jobs, body.n, body.prompt_only)
        self._message: Json = {
            "id": self.id, "type": "message", "role": "assistant", "model": server.name, "content": [],
            "stop_reason": None, "stop_sequence": None,
        }  # fmt: skip
        self._delta: Json = {}
        self._open: Fragment | None = None
        self._arguments = ""

    def begin(self) -> list[Event]:
        """Returns the start of the message."""
        start = {**self._message, "content": [], "usage": self._usage()}
        if self._ids:
            start["prompt_token_ids"] = list(self._prompt)
        return [("message_start", {"type": "message_start", "message": start})]

    def take(self, update: Update) -> list[Event]:
        """Returns the starts, deltas and ends of blocks.

        Raises:
            AbortedError: the server ended the sequence.
        """
        parts = self._writer.parts(update)
        events = [event for fragment in fragments(parts) for event in self._take(fragment)]
        if update.output is not None:
            reason = parts[-1]["finish_reason"]
            if reason == "abort":
                raise AbortedError
            at_string = reason == "stop" and update.stop is not None
            self._message["stop_reason"] = "stop_sequence" if at_string else REASONS[reason]
            self._message["stop_sequence"] = update.stop if at_string else None
            if self._ids:
                versions = update.output.weight_versions
                self._delta = {"token_ids": update.output.token_ids, "weight_versions": versions}
        return events

    def end(self) -> list[Event]:
        """Returns the end of the message, with its usage."""
        events = self._close()
        change = {name: self._message[name] for name in ("stop_reason", "stop_sequence")}
        delta = {"type": "message_delta", "delta": change, "usage": self._usage(), **self._delta}
        return [*events, ("message_delta", delta), ("message_stop", {"type": "message_stop"})]

    def failed(self, error: Exception) -> list[Event]:
        return [("error", problem_of(error).anthropic_body)]

    def whole(self) -> Json:
        ids = {"prompt_token_ids": list(self._prompt), **self._delta} if self._ids else {}
        return {**self._message, "usage": self._usage(), **ids}

    def _usage(self) -> Json:
        counted = self.usage.body
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counted["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counted["completion_tokens"],
        }

    def _take(self, fragment: Fragment) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.block != fragment.block:
            events = [*self._close(), self._start(fragment)]
        block = self._message["content"][-1]
        match fragment.kind:
            case "text":
                block["text"] += fragment.text
                delta = {"type": "text_delta", "text": fragment.text}
            case "reasoning":
                block["thinking"] += fragment.text
                delta = {"type": "thinking_delta", "thinking": fragment.text}
            case _:
                self._arguments += fragment.text
                delta = {"type": "input_json_delta", "partial_json": fragment.text}
        return [*events, self._change(delta)]

    def _start(self, fragment: Fragment) -> Event:
        self._open, self._arguments = fragment, ""
        block: Json
        match fragment.kind:
            case "text":
                block = {"type": "text", "text": ""}
            case "reasoning":
                block = {"type": "thinking", "thinking": "", "signature": ""}
            case _:
                block = {"type": "tool_use", "id": fragment.id, "name": fragment.name, "input": {}}
        self._message["content"].append(block)
        start = {"type": "content_block_start", "index": self._index, "content_block": {**block}}
        return "content_block_start", start

    def _close(self) -> list[Event]:
        if self._open is None:
            return []
        events, block = [], self._message["content"][-1]
        if self._open.kind == "reasoning":
            block["signature"] = SIGNATURE
            events.append(self._change({"type": "signature_delta", "signature": SIGNATURE}))
        elif self._open.kind == "call":
            block["input"] = json.loads(self._arguments)
        self._open = None
        return [*events, ("content_block_stop", {"type": "content_block_stop", "index": self._index})]

    def _change(self, delta: Json) -> Event:
        return "content_block_delta", {"type": "content_block_delta", "index": self._index, "delta": delta}

    @property
    def _index(self) -> int:
        return len(self._message["content"]) - 1
