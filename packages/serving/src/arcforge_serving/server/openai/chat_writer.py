"""What a model writes in a chat, as OpenAI's messages and deltas."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from itertools import groupby

from arcforge_core.contracts.chat import ChatParser, Delta, Tool
from arcforge_core.contracts.engine import Token
from arcforge_serving.server.openai.chat_request import ChatRequest
from arcforge_serving.server.openai.messages import template_of
from arcforge_serving.server.openai.token_ids import TokenIdWriter
from arcforge_serving.server.shared.detokenize import Piece
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.usage import Json


class ChatWriter:
    """Writes choices of ``/v1/chat/completions``; a `Writer`."""

    prefix, whole_object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, body: ChatRequest, jobs: Sequence[Job], tools: Sequence[Tool], server: ServerState) -> None:
        self._body, self._tokenizer = body, server.tokenizer
        template, prompt = template_of(server), jobs[0].prompt
        self._choices = [_Turn(job, template.parser(prompt, tools), server) for job in jobs]
        self._ids = TokenIdWriter(
            body, prompt, returns_ids=body.return_token_ids, logprobs=body.logprobs, style=server.token_id_style
        )
        self.extra = self._ids.reply

    def parts(self, update: Update) -> list[Json]:
        """Returns the deltas of an update; the first of them carries what belongs to tokens."""
        choice, body = self._choices[update.index], self._body
        tokens = [token for piece in update.pieces for token in piece.tokens]
        deltas = choice.deltas(update.pieces, last=update.output is not None)
        if not body.include_reasoning:
            deltas = [delta for delta in deltas if "reasoning_content" not in delta]
        if not deltas and tokens and (body.logprobs or self._ids.returns_ids):
            deltas = [{}]
        first = not choice.begun
        if deltas or update.output is not None:
            deltas = choice.with_role(deltas)
        parts: list[Json] = [self._part(update.index, delta) for delta in deltas]
        if parts and first:
            parts[0] |= self._ids.choice
        if parts and body.logprobs:
            parts[0]["logprobs"] = {"content": [self._logprob(token) for token in tokens]}
        if parts and self._ids.returns_ids:
            parts[0]["token_ids"] = [token.id for token in tokens]
        if update.output is not None:
            last = self._part(update.index, {})
            stopped = update.output.finish_reason == "stop" and choice.calls
            last["finish_reason"] = "tool_calls" if stopped else update.output.finish_reason
            parts.append(last | self._ids.end(update.output, update.stop))
        return parts

    def reasoning_tokens(self, index: int) -> int:
        """Returns how many tokens of a choice were its reasoning, so far."""
        return self._choices[index].reasoning_tokens

    def details(self) -> Json:
        """Returns the tokens of reasoning of all choices, so far."""
        return {"reasoning_tokens": sum(choice.reasoning_tokens for choice in self._choices)}

    def join(self, parts: list[Json]) -> list[Json]:
        return [self._choice(index, list(group)) for index, group in groupby(_sorted(parts), lambda p: p["index"])]

    def _choice(self, index: int, parts: list[Json]) -> Json:
        calls: dict[int, Json] = {}
        for delta in (part["delta"] for part in parts):
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls[call["index"]] = {key: call[key] for key in ("id", "type")} | {
                        "function": {**call["function"]}
                    }
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        texts = {
            name: "".join(part["delta"].get(name) or "" for part in parts) for name in ("content", "reasoning_content")
        }
        message: Json = {"role": "assistant", "content": texts["content"] or (None if calls else "")}
        if texts["reasoning_content"]:
            message["reasoning_content"] = texts["reasoning_content"]
        if calls:
            message["tool_calls"] = list(calls.values())
        choice: Json = {"index": index, "message": message, "logprobs": None}
        if self._body.logprobs:
            content = [entry for part in parts if part["logprobs"] for entry in part["logprobs"]["content"]]
            choice["logprobs"] = {"content": content}
        choice["finish_reason"] = parts[-1]["finish_reason"]
        return choice | self._ids.whole(parts)

    def _part(self, index: int, delta: Json) -> Json:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _logprob(self, token: Token) -> Json:
        top = [self._entry(id_, logprob) for id_, logprob in token.top]
        return {**self._entry(token.id, token.logprob), "top_logprobs": top}

    def _entry(self, id_: int, logprob: float) -> Json:
        spelt = self._tokenizer.token_bytes(id_)
        return {"token": self._body.spelling(self._tokenizer, id_), "logprob": logprob, "bytes": list(spelt)}


class _Turn:
    """One choice: its parser, and which calls have begun.

    Args:
        job: the sequence.
        parser: of the template, for this prompt.
        server: has the tokenizer.
    """

    def __init__(self, job: Job, parser: ChatParser, server: ServerState) -> None:
        self._job, self._parser, self._tokenizer = job, parser, server.tokenizer
        self.calls = 0
        self.begun = False
        self.reasoning_tokens = 0
        """Tokens before the first of content and calls, tags included, where there is any reasoning."""
        self._tokens, self._reasons, self._answers = 0, False, False

    def deltas(self, pieces: Sequence[Piece], *, last: bool) -> list[Json]:
        """Returns OpenAI's deltas for the next pieces; neighbours of one kind are one."""
        found: list[Delta] = []
        waiting: list[int] = []  # once the answer has begun, nothing is counted by token: many are parsed together
        for piece in pieces:
            tokens = piece.tokens if piece.whole else ()
            begun = 0
            while begun < len(tokens) and not self._answers:
                found += self._counted(1, self._shown(tokens[begun : begun + 1]))
                begun += 1
            waiting += self._shown(tokens[begun:])
            if not piece.whole:  # a stop string begins in it
                ids = self._tokenizer.encode(piece.text)
                if self._answers:
                    waiting += ids
                else:
                    found += self._counted(len(piece.tokens), ids)
        if waiting:
            found += self._parser.feed(waiting)
        if last:
            found += self._parser.finish()
        return [self._write(list(group)) for _, group in groupby(found, _kind)]

    def _shown(self, tokens: Sequence[Token]) -> list[int]:
        return [token.id for token in tokens if token.id not in self._job.hidden]

    def _counted(self, tokens: int, ids: Sequence[int]) -> list[Delta]:
        """Parses ids before the answer has begun, and counts their tokens as reasoning if they are."""
        new = self._parser.feed(ids)
        self._reasons |= any(delta.reasoning for delta in new)
        self._answers |= any(not delta.reasoning for delta in new)
        self._tokens += tokens
        if self._reasons and not self._answers:
            self.reasoning_tokens = self._tokens
        return new

    def with_role(self, deltas: list[Json]) -> list[Json]:
        """Returns deltas, the first one of all with the role."""
        if self.begun:
            return deltas
        self.begun = True
        first, *others = deltas or [{}]
        return [{"role": "assistant", "content": "", **first}, *others]

    def _write(self, group: list[Delta]) -> Json:
        if group[0].call is None:
            name = "reasoning_content" if group[0].reasoning else "content"
            return {name: "".join(delta.reasoning + delta.content for delta in group)}
        call: Json = {"index": group[0].call}
        name = "".join(delta.name for delta in group)
        if group[0].call >= self.calls:
            self.calls = group[0].call + 1
            call |= {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
        arguments = "".join(delta.arguments for delta in group)
        return {"tool_calls": [call | {"function": ({"name": name} if name else {}) | {"arguments": arguments}}]}


def _kind(delta: Delta) -> tuple[bool, int | None]:
    return bool(delta.reasoning), delta.call


def _sorted(parts: list[Json]) -> list[Json]:
    return sorted(parts, key=lambda part: part["index"])
