"""``/v1/rl/generate``: `ServingEngine.submit` over HTTP, token ids in and out, for the engine ``engine=arcforge``.

Fields have the names of `SamplingParams` and `GenerationOutput`. Needs an admin key, as all of ``/v1/rl`` does.
"""

from __future__ import annotations

import uuid
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.experts import experts_json
from arcforge_core.errors import ConfigError
from arcforge_serving.server.admin import REFUSALS
from arcforge_serving.server.gate.auth import Level
from arcforge_serving.server.gate.guard import GuardedRoute, declare
from arcforge_serving.server.shared.body import Body, Text, TokenId
from arcforge_serving.server.shared.common import biases_of, check_ids
from arcforge_serving.server.shared.errors import problem_of, responses_with_stream
from arcforge_serving.server.shared.jobs import Job, Update
from arcforge_serving.server.shared.reply import Event, Shares, respond
from arcforge_serving.server.shared.state import Server
from arcforge_serving.server.shared.usage import Json, Usage

router = APIRouter(tags=["rl"], route_class=GuardedRoute)
STREAMED = ("token_ids", "logprobs", "top_logprobs")
"""Fields of an output that the events before its end have brought."""


class TokenRequest(Body):
    """A prompt, and how to sample a sequence after it."""

    prompt: Annotated[list[TokenId], Field(min_length=1)]
    max_new_tokens: int = Field(ge=1)
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_token_ids: list[TokenId] = Field(default=[])
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[str, float] = Field(default={}, description="token id -> number added to its logit")
    top_logprobs: int = 0
    prompt_logprobs: bool = False
    sampled_logprobs: bool = False
    experts_from: int | None = Field(default=None, ge=0, description="first position whose experts are reported")
    stream: bool = False
    priority: int = Field(default=0, ge=-100, le=100)
    owner: Text = Field(default="", description="whose share of the engine it uses; by default the key's")
    salt: Text = Field(default="", description="cached prefixes are shared within a salt")
    session_id: Text | None = Field(default=None, description="the conversation that it continues")

    @property
    def params(self) -> SamplingParams:
        """How to sample.

        Raises:
            ConfigError: a value that no engine can use.
        """
        given = self.model_dump(exclude={"prompt", "stream", "priority", "owner", "salt", "session_id"})
        biases = biases_of(self.logit_bias)
        return SamplingParams(**given | {"stop_token_ids": tuple(self.stop_token_ids), "logit_bias": biases})


class TokenReply(BaseModel):
    """A sequence: the fields of `GenerationOutput`."""

    id: str
    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    weight_version: int
    weight_versions: list[tuple[int, int]]
    top_logprobs: list[list[tuple[int, float]]]
    prompt_logprobs: list[float]
    prompt_top_logprobs: list[list[tuple[int, float]]]
    cached_tokens: int
    queue_seconds: float
    drafted_tokens: int
    accepted_tokens: int
    experts: dict[str, Any] | None = Field(description="see `arcforge_core.contracts.experts`")


class TokensReply:
    """A `ReplyBuilder`: events with new ``tokens`` as [id, log-prob, likeliest tokens], then the rest of the output."""

    last = b"data: [DONE]\n\n"

    def __init__(self, stream: bool, job: Job) -> None:
        self.id, self.usage, self._stream = f"tok-{uuid.uuid4().hex}", Usage([job]), stream
        self._output: GenerationOutput | None = None

    def begin(self) -> list[Event]:
        """Returns nothing: the first tokens are the first event."""
        return []

    def take(self, update: Update) -> list[Event]:
        self._output = update.output
        if not self._stream:
            return []
        tokens = [[token.id, token.logprob, token.top] for piece in update.pieces for token in piece.tokens]
        end: Json = {}
        if update.output is not None:
            end = {name: value for name, value in fields_of(update.output).items() if name not in STREAMED}
        return [("", {"tokens": tokens, **end})]

    def end(self) -> list[Event]:
        """Returns nothing: the last update has said that it ended."""
        return []

    def failed(self, error: Exception) -> list[Event]:
        return [("", problem_of(error).body)]

    def whole(self) -> Json:
        assert self._output is not None
        return {"id": self.id, **fields_of(self._output)}


def fields_of(output: GenerationOutput) -> Json:
    """Returns an output for JSON."""
    experts = None if output.experts is None else experts_json(output.experts)
    return {**asdict(replace(output, experts=None)), "experts": experts}


@router.post("/v1/rl/generate", responses=responses_with_stream(TokenReply, REFUSALS))
@declare(Level.ADMIN)
async def generate(body: TokenRequest, request: Request, server: Server) -> Response:
    """Samples one sequence after a prompt."""
    check_ids("prompt", body.prompt, server)
    if len(body.prompt) + body.max_new_tokens > server.longest:
        accepted = f"prompt ({len(body.prompt)} tokens) and output must have at most {server.longest} tokens together"
        raise ConfigError("max_new_tokens", body.max_new_tokens, accepted)
    job = Job(body.prompt, body.params, text=False)
    owner = body.owner or request.state.owner
    return await respond(request, server, body, [job], TokensReply(body.stream, job), Shares(owner, body.salt))
