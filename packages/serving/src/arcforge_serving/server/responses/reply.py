"""Replies of OpenAI's Responses API: items, or the events that build them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence

from arcforge_core.contracts.chat import Tool
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.openai.chat_writer import ChatWriter
from arcforge_serving.server.openai.translate import Fragment, fragments
from arcforge_serving.server.responses.request import ResponsesRequest
from arcforge_serving.server.shared.errors import AbortedError, problem_of
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.reply import Event
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.usage import Json, Usage

ENDS = {"stop": "completed", "tool_calls": "completed", "length": "incomplete"}


def new_id(life: str) -> str:
    """Returns an id of a reply; with a router it names the engine process that stores the reply."""
    return "_".join(("resp", *filter(None, (life,)), uuid.uuid4().hex))


class ResponseWriter:
    """Builds the response and its events; a `ReplyBuilder` of one sequence.

    Args:
        body: the request.
        chat: the chat request that it amounts to.
        jobs: its sequence.
        tools: the tools that the model may call.
        server: has the model.
        done: is given the response when it is complete.
    """

    last = b""

    def __init__(
        self, body: ResponsesRequest, chat: ChatRequest, jobs: list[Job], tools: Sequence[Tool], server: ServerState,
        done: Callable[[Json], None],
    ) -> None:  # fmt: skip
        self._writer, self._job, self._done = ChatWriter(chat, jobs, tools, server), jobs[0], done
        self._ids = body.return_token_ids
        self.id = new_id(server.life)
        self.usage = Usage(jobs, chat.n, chat.prompt_only)
        self._number = 0
        self._open: Fragment | None = None
        self._response: Json = {
            "id": self.id, "object": "response", "created_at": int(time.time()), "status": "in_progress",
            "model": server.name, "output": [], "error": None, "incomplete_details": None, "usage": None,
            **_echoed(body, jobs[0]),
        }  # fmt: skip
        if self._ids:
            self._response["prompt_token_ids"] = list(jobs[0].prompt)

    def begin(self) -> list[Event]:
        """Returns the start of the response."""
        return [self._event(f"response.{name}", response=self._snapshot()) for name in ("created", "in_progress")]

    def take(self, update: Update) -> list[Event]:
        """Returns the starts, deltas and ends of items.

        Raises:
            AbortedError: the server ended the sequence.
        """
        parts = self._writer.parts(update)
        events = [event for fragment in fragments(parts) for event in self._take(fragment)]
        if update.output is not None:
            reason = parts[-1]["finish_reason"]
            if reason == "abort":
                raise AbortedError
            self._response["status"] = ENDS[reason]
            if ENDS[reason] == "incomplete":
                self._response["incomplete_details"] = {"reason": "max_output_tokens"}
            if self._ids:
                self._response["token_ids"] = update.output.token_ids
                self._response["weight_versions"] = update.output.weight_versions
        return events

    def end(self) -> list[Event]:
        """Returns the end of the response, with its usage; keeps it."""
        events = self._close()
        counted = self.usage.body
        self._response["usage"] = {
            "input_tokens": counted["prompt_tokens"],
            "input_tokens_details": counted["prompt_tokens_details"],
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._writer.reasoning_tokens(0)},
            "total_tokens": counted["total_tokens"],
        }
        self._done(self._response)
        return [*events, self._event(f"response.{self._response['status']}", response=self._snapshot())]

    def failed(self, error: Exception) -> list[Event]:
        """Returns the end of the response, with the error."""
        problem = problem_of(error)
        self._response["status"] = "failed"
        self._response["error"] = {"code": "server_error", "message": problem.body["error"]["message"]}
        return [self._event("response.failed", response=self._snapshot())]

    def whole(self) -> Json:
        return self._response

    def _take(self, fragment: Fragment) -> list[Event]:
        events: list[Event] = []
        if self._open is None or self._open.block != fragment.block:
            events = [*self._close(), *self._start(fragment)]
        item = self._item
        match fragment.kind:
            case "call":
                item["arguments"] += fragment.text
                return [*events, self._at("response.function_call_arguments.delta", delta=fragment.text)]
            case "reasoning":
                item["content"][0]["text"] += fragment.text
                return [*events, self._at("response.reasoning_text.delta", content_index=0, delta=fragment.text)]
            case _:
                item["content"][0]["text"] += fragment.text
                return [
                    *events,
                    self._at("response.output_text.delta", content_index=0, delta=fragment.text, logprobs=[]),
                ]

    def _start(self, fragment: Fragment) -> list[Event]:
        self._open = fragment
        item: Json
        match fragment.kind:
            case "call":
                item = {
                    "type": "function_call",
                    "id": f"fc_{uuid.uuid4().hex}",
                    "call_id": fragment.id,
                    "name": fragment.name,
                }
                item |= {"arguments": "", "status": "in_progress"}
            case "reasoning":
                item = {"type": "reasoning", "id": f"rs_{uuid.uuid4().hex}", "summary": [], "status": "in_progress"}
            case _:
                item = {"type": "message", "id": f"msg_{uuid.uuid4().hex}", "role": "assistant", "content": []}
                item |= {"status": "in_progress"}
        self._response["output"].append(item)
        events = [self._event("response.output_item.added", output_index=self._index, item={**item})]
        if fragment.kind != "call":
            item["content"] = [_part(fragment.kind)]
            events.append(self._at("response.content_part.added", content_index=0, part=_part(fragment.kind)))
        return events

    def _close(self) -> list[Event]:
        if self._open is None:
            return []
        item, kind = self._item, self._open.kind
        self._open = None
        item["status"] = "completed" if self._response["status"] != "incomplete" else "incomplete"
        events = []
        if kind == "call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            events.append(self._at("response.function_call_arguments.done", **done))
        else:
            (part,) = item["content"]
            name = "reasoning_text" if kind == "reasoning" else "output_text"
            extra: Json = {} if kind == "reasoning" else {"logprobs": []}
            events.append(self._at(f"response.{name}.done", content_index=0, text=part["text"], **extra))
            events.append(self._at("response.content_part.done", content_index=0, part=part))
        return [*events, self._event("response.output_item.done", output_index=self._index, item=item)]

    def _event(self, kind: str, **fields: object) -> Event:
        self._number += 1
        return kind, {"type": kind, "sequence_number": self._number - 1, **fields}

    def _at(self, kind: str, **fields: object) -> Event:
        return self._event(kind, item_id=self._item["id"], output_index=self._index, **fields)

    def _snapshot(self) -> Json:
        return {**self._response, "output": list(self._response["output"])}

    @property
    def _index(self) -> int:
        return len(self._response["output"]) - 1

    @property
    def _item(self) -> Json:
        found: Json = self._response["output"][-1]
        return found


def _part(kind: str) -> Json:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": ""}
    return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}


def _echoed(body: ResponsesRequest, job: Job) -> Json:
    """Returns what a response says of its request."""
    given = body.model_dump(by_alias=True, exclude_unset=True)
    form = (given.get("text") or {}).get("format") or {"type": "text"}
    return {
        "instructions": body.instructions, "previous_response_id": body.previous_response_id, "store": body.store,
        "max_output_tokens": body.max_output_tokens, "temperature": job.params.temperature,
        "top_p": job.params.top_p, "tools": given.get("tools", []), "tool_choice": given.get("tool_choice", "auto"),
        "parallel_tool_calls": body.parallel_tool_calls, "text": {"format": form}, "truncation": "disabled",
        "reasoning": {"effort": (given.get("reasoning") or {}).get("effort"), "summary": None},
        "background": False, "metadata": body.metadata or {}, "user": body.user,
    }  # fmt: skip
