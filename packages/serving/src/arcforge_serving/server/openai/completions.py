"""``/v1/completions``: continues texts or token ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import Field

from arcforge_core.contracts.engine import Token
from arcforge_core.errors import ConfigError
from arcforge_serving.server.gate.guard import GuardedRoute
from arcforge_serving.server.openai.reply import OpenAIReply
from arcforge_serving.server.openai.schemas import Completion
from arcforge_serving.server.shared.body import Text, TokenId
from arcforge_serving.server.shared.common import MOST_TOP, GenerateRequest, check_ids, check_length
from arcforge_serving.server.shared.detokenize import Piece, Reader
from arcforge_serving.server.shared.errors import responses_with_stream
from arcforge_serving.server.shared.ignored import Refused, ignored_fields, note_ignored
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.reply import respond
from arcforge_serving.server.shared.state import Server, ServerState
from arcforge_serving.server.shared.usage import Json

router = APIRouter(route_class=GuardedRoute)
MOST_PROMPTS = 1024


class CompletionRequest(GenerateRequest):
    """The body. A string begins with the tokens that the tokenizer's own post-processor prepends, if any."""

    prompt: (
        Text
        | Annotated[list[TokenId], Field(min_length=1)]
        | Annotated[list[Text], Field(min_length=1, max_length=MOST_PROMPTS)]
        | Annotated[list[Annotated[list[TokenId], Field(min_length=1)]], Field(min_length=1, max_length=MOST_PROMPTS)]
    )
    max_tokens: int = Field(default=16, ge=0, description="0, with echo, gives the prompt and its log-probs")
    logprobs: int | None = Field(default=None, ge=0, le=MOST_TOP, description="number of most likely tokens")
    echo: bool = Field(default=False, description="begin with the prompt")
    best_of: int | None = Field(default=None, description="must equal n: all sequences are returned")
    suffix: Annotated[Any, Refused("texts are continued, not filled in")] = None

    def prompts(self, server: ServerState) -> list[list[int]]:
        """Returns the token ids of each prompt.

        Raises:
            ConfigError: an id that the model does not have.
        """
        given: Any = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            given = [given]
        tokenizer = server.tokenizer
        for text in given:
            if isinstance(text, str):
                check_length(len(text.encode()), server)
        prompts = [tokenizer.encode_prompt(p) if isinstance(p, str) else p for p in given]
        for prompt in prompts:
            check_ids("prompt", prompt, server)
        return prompts

    @property
    def prompt_only(self) -> bool:
        """Whether the reply contains the prompt only."""
        return self.max_tokens == 0

    @property
    def is_text(self) -> bool:
        """Whether prompts are texts."""
        return isinstance(self.prompt, str) or isinstance(self.prompt[0], str)


def prepare(body: CompletionRequest, server: ServerState) -> list[Job]:
    """Encodes and checks a request; may take a while for long prompts and large grammars.

    Raises:
        ConfigError: it cannot be served.
    """
    body.check(server)
    if body.prompt_only and not body.echo:
        raise ConfigError("max_tokens", 0, "must be at least 1 without echo")
    if body.best_of not in (None, body.n):
        raise ConfigError("best_of", body.best_of, f"must equal n, {body.n}: all sequences are returned")
    wanted = body.structure
    return body.jobs(
        server,
        body.prompts(server),
        max(1, body.max_tokens),
        ends=(server.tokenizer.eos_id,),
        top_logprobs=body.logprobs or 0,
        prompt_logprobs=body.echo and body.logprobs is not None,
        matcher=None if wanted is None else wanted.matcher(server.grammars),
    )


@router.post("/v1/completions", responses=responses_with_stream(Completion))
async def completions(body: CompletionRequest, request: Request, server: Server) -> Response:
    """Continues each prompt."""
    note_ignored(request, server, ignored_fields(body))
    jobs = await run_in_threadpool(prepare, body, server)
    return await respond(
        request, server, body, jobs, OpenAIReply(body, jobs, CompletionWriter(body, jobs, server), server)
    )


class CompletionWriter:
    """Writes choices of ``/v1/completions``; a `Writer`."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, body: CompletionRequest, jobs: Sequence[Job], server: ServerState) -> None:
        self._body, self._jobs, self._server = body, jobs, server
        self._choices = [_Choice() for _ in jobs]
        self.extra: Json = {}

    def parts(self, update: Update) -> list[Json]:
        """Returns at most one part."""
        choice, body = self._choices[update.index], self._body
        choice.pieces += [] if body.prompt_only else update.pieces
        if update.output is None and (not choice.pieces or (body.echo and body.logprobs is not None)):
            return []  # log-probs of the prompt are known at the end
        pieces, choice.pieces = choice.pieces, []
        if first := not choice.begun:
            choice.begun = True
            if body.echo:
                known = [] if update.output is None else update.output.prompt_logprobs
                top = [] if update.output is None else update.output.prompt_top_logprobs
                pieces = self._prompt(update.index, known, top) + pieces
        part: Json = {"index": update.index, "text": "".join(piece.text for piece in pieces)}
        part["logprobs"] = None if body.logprobs is None else self._logprobs(choice, pieces)
        part["finish_reason"] = None
        if body.return_token_ids:
            if first:
                part["prompt_token_ids"] = list(self._jobs[update.index].prompt)
            part["token_ids"] = [t.id for piece in pieces for t in piece.tokens if not isinstance(t, _Given)]
        if update.output is not None:
            part["finish_reason"] = "length" if body.prompt_only else update.output.finish_reason
            if body.return_token_ids:
                part["weight_versions"] = update.output.weight_versions
        return [part]

    def details(self) -> Json:
        """Returns nothing: texts have no reasoning."""
        return {}

    def join(self, parts: list[Json]) -> list[Json]:
        joined: dict[int, Json] = {}
        for part in parts:
            whole = joined.setdefault(part["index"], part)
            if whole is part:
                continue
            whole["text"] += part["text"]
            if part["logprobs"] is not None:
                for name, values in part["logprobs"].items():
                    if values is not None:
                        whole["logprobs"][name] += values
            if "token_ids" in part:
                whole["token_ids"] += part["token_ids"]
            whole |= {key: part[key] for key in ("finish_reason", "weight_versions") if key in part}
        return list(joined.values())

    def _prompt(self, index: int, logprobs: Sequence[float], top: Sequence[Any]) -> list[Piece]:
        """Returns a prompt as pieces, with as many log-probs as are known."""
        ids = self._jobs[index].prompt
        tokens = [
            _Given(
                id_, logprobs[n - 1] if 0 < n <= len(logprobs) else math.nan, top[n - 1] if 0 < n <= len(top) else []
            )
            for n, id_ in enumerate(ids)
        ]
        reader = Reader(self._server.tokenizer, hidden=self._server.tokenizer.prefix if self._body.is_text else ())
        return reader.push(tokens) + reader.finish()

    def _logprobs(self, choice: _Choice, pieces: Sequence[Piece]) -> Json:
        tokenizer = self._server.tokenizer
        written: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for piece in pieces:
            for token in piece.tokens:
                unknown = math.isnan(token.logprob)
                written["tokens"].append(self._body.spelling(tokenizer, token.id))
                written["token_logprobs"].append(None if unknown else token.logprob)
                written["text_offset"].append(choice.length)
                likeliest: dict[str, float] = {}
                for id_, logprob in ((token.id, token.logprob), *token.top):
                    likeliest.setdefault(self._body.spelling(tokenizer, id_), logprob)
                written["top_logprobs"].append(None if unknown else likeliest)
            choice.length += len(piece.text)
        return written


class _Given(Token):
    """A token of the prompt; its log-prob is not a number where there is none."""


@dataclass
class _Choice:
    """State of a choice: pieces that are not written yet, whether any were, and characters so far."""

    pieces: list[Piece] = field(default_factory=list)
    begun: bool = False
    length: int = 0
