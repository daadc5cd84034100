"""Base of the HTTP engines: each sequence is a request of its own, with its own stream, time, retries and errors."""

from __future__ import annotations

import asyncio
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from torch import Tensor

from arcforge_core.config.schema import check_choice
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams, Token, TopLogprobs
from arcforge_core.contracts.serving_engine import EngineLimits, EngineStats
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.generation.engine import check_no_experts, params_per_prompt
from arcforge_core.generation.weights import check_update, next_version, stage_weights
from arcforge_core.model.adapt.low_rank import is_low_rank
from arcforge_core.model.adapt.state import ordinary_shapes
from arcforge_core.model.causal_lm import CausalLM
from arcforge_serving.configs import RemoteEngineConfig
from arcforge_serving.engine.errors import ClosedError, RemoteError, RemoteTimeoutError, TurnedAwayError
from arcforge_serving.engine.stream import Stream
from arcforge_serving.engine.weights import state_in
from arcforge_serving.remote.client import KEY, Client

NEVER = -9999.0
"""The log-prob of vLLM and SGLang in place of one that is no number."""
ENDING_PAUSES = (0.1, 0.4, 1.5, 3.0)
"""Seconds in which a server is to end a sequence that was cancelled; then its tokens so far are the output."""
Span = Mapping[str, Any]
"""``version``, ``start`` and ``end`` over the generated tokens, in the servers' words."""


@dataclass(frozen=True)
class Answer:
    """The answer of a server to one sequence so far.

    Attributes:
        ids, logprobs: of the generated tokens.
        top: the likeliest of each position.
        ended: ``stop``, ``length`` or ``abort``; None while it may continue.
        label: version of the weights at its end, in the server's words.
        spans: of versions; empty where the server knows of one alone.
        prompt, prompt_top: log-probs of the prompt's tokens from the second on.
        cached: tokens of the prompt that were found.
        further: other fields of `GenerationOutput`.
    """

    ids: list[int]
    logprobs: list[float]
    top: list[TopLogprobs]
    ended: str | None
    label: str
    spans: Sequence[Span] = ()
    prompt: list[float] = field(default_factory=list)
    prompt_top: list[TopLogprobs] = field(default_factory=list)
    cached: int = 0
    further: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class RemoteCall:
    """One sequence on the server.

    Attributes:
        name: under which it can be aborted.
        prompt, params: see `ServingEngine.submit`.
        priority, owner, salt, session: the same.
        streams: whether tokens are received as they are generated.
        stream: for its reader.
        sent: whether the server may know of it.
        cancelled: whether its reader has ended it.
        answer: its output so far.
        task: does it.
    """

    prompt: Sequence[int]
    params: SamplingParams
    priority: int = 0
    owner: str = ""
    salt: str = ""
    session: str = ""
    streams: bool = False
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    stream: Stream = field(default_factory=Stream)
    sent: bool = False
    cancelled: bool = False
    answer: Answer | None = None
    task: asyncio.Task[None] | None = None


class RemoteEngine(ABC):
    """Generates on a server; implements `arcforge_core.contracts.serving_engine.ServingEngine`.

    Every sequence is a request of its own. When one fails, its own stream raises the error: `TurnedAwayError` if the
    server is not there or refuses it, `RemoteTimeoutError`, or another `RemoteError`. Other sequences continue.

    Args:
        config: where the server is.
        model: what it serves: says which ids and lengths there are, and how weights are written. Never changed.

    Raises:
        ConfigError: the server cannot be asked.
    """

    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """Fields of `SamplingParams` and the range that the server takes."""
    may_record_experts: ClassVar[bool] = False
    """Whether the server may report the experts of tokens."""
    unsupported: ClassVar[tuple[str, ...]] = ()
    """Keywords of `submit` that the server does not know."""
    takes_adapters: ClassVar[bool] = False
    started = True

    def __init__(self, config: RemoteEngineConfig, model: CausalLM) -> None:
        self.config, self.model = config, model
        self._client = Client(config, os.environ.get(KEY, ""))
        self._places = asyncio.Semaphore(config.concurrency)
        self._calls: set[RemoteCall] = set()  # that have not ended; the loop's
        self._closed = False
        try:
            self.weight_version = number_of(self._label())
        except TurnedAwayError as error:
            self._client.close()
            raise ConfigError("engine.url", config.url, str(error).removeprefix(f"{config.url} ")) from error
        except BaseException:
            self._client.close()
            raise

    @abstractmethod
    def _label(self) -> str:
        """Returns the version of the weights that the server says it has."""

    @abstractmethod
    def _request(self, call: RemoteCall) -> tuple[str, dict[str, Any], dict[str, str]]:
        """Returns path, body and headers that generate a sequence."""

    @abstractmethod
    def _read(self, call: RemoteCall, reply: Any) -> Answer:
        """Returns the answer that a whole reply, or an event of a stream together with ``call.answer``, contains."""

    @abstractmethod
    async def _end(self, name: str) -> None:
        """Has the server end a sequence."""

    @abstractmethod
    def _install(self, staged: Mapping[str, Tensor], version: int, reset: bool) -> None:
        """Has the server take new weights, and name them by their version, which may be any with `reset`.

        Raises:
            CheckpointError: it has not taken them.
        """

    # ---- requests ----------------------------------------------------------------------------------------------------

    def start(self) -> None:  # noqa: B027 (nothing to override)
        """Has no effect: the server generates."""

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        owner: str = "",
        salt: str = "",
        session: str = "",
    ) -> list[Stream]:
        """Queues a request; see the contract.

        Raises:
            ConfigError: the request cannot be served, by this kind of server or at all.
            ClosedError: `close` was called.
        """
        given = {"priority": priority, "owner": owner, "salt": salt, "session": session}
        for name in self.unsupported:
            if given[name]:
                raise ConfigError(name, given[name], f"engine={self.config.name} does not know it")
        params_per_prompt(self.model.config, [prompt], params)
        self.check(params)
        streams = self.config.stream and not params.prompt_logprobs
        return self._begin(RemoteCall(prompt, each, **given, streams=streams) for each in each_of(params))  # type: ignore[arg-type]

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Generates for each prompt, in order; see the contract. Its first error is raised when all have ended.

        Raises:
            ConfigError: a request that cannot be served, by this kind of server or at all.
            CheckpointError: the logits are not finite.
            RemoteError: the server failed.
        """
        per_prompt = params_per_prompt(self.model.config, prompts, params)
        for each in per_prompt:
            self.check(each)
        pairs = [(prompt, one) for prompt, each in zip(prompts, per_prompt, strict=True) for one in each_of(each)]
        streams = self._begin(RemoteCall(prompt, one) for prompt, one in pairs)
        try:
            for stream in streams:
                with suppress(Exception):  # raised below
                    stream.result()
            return [stream.result() for stream in streams]
        except BaseException:
            for stream in streams:
                stream.cancel()
            raise

    def check(self, params: SamplingParams) -> None:
        """Refuses what the server cannot do, by name.

        Raises:
            ConfigError: such a field.
        """
        kind = self.config.name
        if params.matcher is not None:
            raise ConfigError("matcher", "given", f"engine={kind} follows no grammar of this process")
        if not self.may_record_experts:
            check_no_experts(params, kind)
        for name, (low, high) in self.bounds.items():
            value = getattr(params, name)
            if not low <= value <= high:
                raise ConfigError(name, value, f"engine={kind} takes {low:g} to {high:g}")

    def abort(self) -> None:
        """Ends all requests of this engine with the reason ``abort``; those of further clients continue."""
        self._client.run(self._abort_all())

    async def _abort_all(self) -> None:
        calls = list(self._calls)
        for call in calls:
            self._cancel(call)
        await asyncio.gather(*(call.task for call in calls if call.task is not None), return_exceptions=True)

    def close(self) -> None:
        """Accepts no more requests, ends the present ones with the reason ``abort``, and closes the connections."""
        if not self._closed:
            self._closed = True
            self.abort()
            self._client.close()

    # ---- one sequence ------------------------------------------------------------------------------------------------

    def _begin(self, calls: Any) -> list[Stream]:
        if self._closed:
            raise ClosedError("the engine was closed")
        begun = list(calls)
        for call in begun:
            call.stream.on_cancel(partial(self._cancel_soon, call))
        self._client.loop.call_soon_threadsafe(self._launch, begun)
        return [call.stream for call in begun]

    def _launch(self, calls: Sequence[RemoteCall]) -> None:
        for call in calls:
            if call.cancelled:
                self._close(call)
                continue
            call.task = self._client.loop.create_task(self._run(call))
            self._calls.add(call)
            call.task.add_done_callback(partial(self._ended, call))

    def _ended(self, call: RemoteCall, task: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        if not call.stream.done:  # it was cancelled before it began
            self._close(call)

    def _cancel_soon(self, call: RemoteCall) -> None:
        if not call.stream.done:
            self._client.loop.call_soon_threadsafe(self._cancel, call)

    def _cancel(self, call: RemoteCall) -> None:
        if call.cancelled or call.stream.done:
            return
        call.cancelled = True
        if call.task is not None and call.sent:
            self._client.spawn(self._end_soon(call, call.task))
        elif call.task is not None:
            call.task.cancel()

    async def _end_soon(self, call: RemoteCall, task: asyncio.Task[None]) -> None:
        """Has the server end a sequence, and does not wait for it for long.

        A server may hear of the end before it hears of the sequence: the call is repeated.
        """
        for pause in ENDING_PAUSES:
            with suppress(RemoteError, ConfigError):
                await self._end(call.name)
            await asyncio.wait([task], timeout=pause)
            if task.done():
                return
        task.cancel()

    async def _run(self, call: RemoteCall) -> None:
        try:
            async with self._places:
                call.sent = True
                await self._receive(call)
            self._close(call)
        except asyncio.CancelledError:  # by its reader, or by `close`
            self._close(call)
        except RemoteTimeoutError as error:
            call.stream.fail(error)
            with suppress(RemoteError, ConfigError):  # the server that took too long may not listen either
                await self._end(call.name)
        except Exception as error:
            if call.cancelled and isinstance(error, RemoteError):
                self._close(call)
            else:
                call.stream.fail(error)

    async def _receive(self, call: RemoteCall) -> None:
        """Fills ``call.answer`` until it has ended."""
        path, body, headers = self._request(call)
        if not call.streams:
            self._take(call, await self._client.ask("POST", path, body, {}, headers))
            return
        async with aclosing(self._client.events(path, body, headers)) as events:  # type: ignore[type-var]
            async for event in events:
                if self._take(call, event):
                    return

    def _take(self, call: RemoteCall, reply: Any) -> bool:
        """Reads a reply or an event, and hands its tokens out; returns whether the sequence has ended."""
        known = 0 if call.answer is None else len(call.answer.ids)
        try:
            answer = self._read(call, reply)
            count = len(answer.ids)
            if len(answer.logprobs) != count:
                raise RemoteError(f"{self.config.url} gave {count} tokens with {len(answer.logprobs)} log-probs")
            if not all(value > NEVER for value in [*answer.logprobs[known:], *answer.prompt]):
                raise CheckpointError(f"the logits of {self.config.url} are not finite for this sequence")
            answer = stopped(answer, call.params, known)
            if not answer.ids and answer.ended not in (None, "abort"):
                raise RemoteError(f"{self.config.url} ended a sequence with {answer.ended} before its first token")
            tops = answer.top or [[] for _ in answer.ids]
            for position in range(known, len(answer.ids)):
                top = tops[position][: call.params.top_logprobs]
                call.stream.put(Token(answer.ids[position], answer.logprobs[position], top))
        except ConfigError:  # which is a ValueError too
            raise
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise RemoteError(f"{self.config.url} answers with another shape: {error!r}") from error
        call.answer = answer
        return answer.ended is not None

    def _close(self, call: RemoteCall) -> None:
        """Ends the stream with the answer so far; one that has no end was aborted."""
        answer = call.answer or Answer([], [], [], "abort", str(self.weight_version))
        params, count = call.params, len(answer.ids)
        versions = spans_of(answer, count)
        output = GenerationOutput(
            answer.ids, answer.logprobs, answer.ended or "abort", versions[-1][0], versions,
            [top[: params.top_logprobs] for top in answer.top[:count]] if params.top_logprobs else [],
            answer.prompt if params.prompt_logprobs else [],
            [top[: params.top_logprobs] for top in answer.prompt_top]
            if params.prompt_logprobs and params.top_logprobs else [],
            answer.cached, **answer.further,
        )  # fmt: skip
        call.stream.close(output)

    # ---- the server --------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether the server answers."""
        if self._closed:
            return False
        try:
            self._client.text("/health")
        except (RemoteError, ConfigError):
            return False
        return True

    def refresh(self) -> None:
        """Asks which weights the server has: one that was restarted has others than it was given."""
        self.weight_version = number_of(self._label())

    @property
    def paused(self) -> bool:
        """Whether the server generates nothing."""
        return self.stats().paused

    @cached_property
    def limits(self) -> EngineLimits:
        """The largest request that is accepted, as far as the model says; any number may wait."""
        config = self.model.config
        itemsize = max(4, self.model.dtype.itemsize)
        weights = sum(itemsize * shape.numel() for shape in ordinary_shapes(self.model).values())
        return EngineLimits(config.vocab_size, config.max_position_embeddings, 2**31, weights)

    def pause(self, mode: str = "keep") -> None:
        """Has the server generate nothing until `resume`; see the contract."""
        check_choice("mode", mode, ("abort", "wait", "keep"))
        self._pause(mode)

    @abstractmethod
    def _pause(self, mode: str) -> None: ...

    @abstractmethod
    def resume(self) -> None:
        """Continues after `pause`."""

    @abstractmethod
    def flush(self) -> None:
        """Drops all prefixes that the server has cached."""

    @abstractmethod
    def stats(self) -> EngineStats:
        """Returns state and counters, as far as the server reports them."""

    def update_weights(
        self,
        state: Mapping[str, Tensor],
        *,
        version: int | None = None,
        checksum: str | None = None,
        reset: bool = False,
    ) -> None:
        """Gives the server a state dict; see the contract.

        Raises:
            ConfigError, CheckpointError: see the contract.
        """
        version = next_version(self.weight_version, version, reset)
        what = f"weight update {version}"
        if self.takes_adapters and is_low_rank(state):  # merged at the server
            check_update(self.model, state, what, checksum)
            self._install({name: value.detach().contiguous() for name, value in state.items()}, version, reset)
        else:
            self._install(stage_weights(self.model, state, what, checksum), version, reset)
        self.weight_version = version

    def update_weights_from(
        self, folder: str | Path, *, version: int | None = None, checksum: str | None = None, reset: bool = False
    ) -> None:
        """`update_weights` from the folder of a checkpoint or run on this machine."""
        self.update_weights(state_in(folder, self.model), version=version, checksum=checksum, reset=reset)


def each_of(params: SamplingParams) -> list[SamplingParams]:
    """Returns the parameters of each of the ``n`` sequences."""
    return [replace(params, n=1, seed=params.seed + index) for index in range(params.n)]


def check_biases(kind: str, params: SamplingParams) -> None:
    """Refuses biases that vLLM and SGLang do not take.

    Raises:
        ConfigError: names the first.
    """
    for token, bias in params.logit_bias.items():
        if abs(bias) > 100:
            raise ConfigError(f"logit_bias[{token}]", bias, f"engine={kind} takes -100 to 100")


def stopped(answer: Answer, params: SamplingParams, known: int) -> Answer:
    """Returns an answer up to where ``should_stop`` ends it; it has been asked about the first `known` tokens."""
    if params.should_stop is None:
        return answer
    for count in range(known + 1, len(answer.ids) + 1):
        if params.should_stop(answer.ids[:count]) and count > params.min_new_tokens:
            return replace(answer, ids=answer.ids[:count], logprobs=answer.logprobs[:count], ended="stop")
    return answer


def header_of(session: str) -> str:
    """Returns a session's name as a header has it: names that are no plain ASCII are percent-encoded."""
    return session if session.isascii() and session.isprintable() else quote(session)


def number_of(label: str) -> int:
    """Returns the version that a label names; servers begin with one in words, which counts as 0."""
    return int(label) if label.isdecimal() else 0


def spans_of(answer: Answer, count: int) -> list[tuple[int, int]]:
    """Returns (version, tokens) spans of the first `count` tokens; one without tokens where there are none."""
    found = [(number_of(str(s["version"])), min(s["end"], count) - min(s["start"], count)) for s in answer.spans]
    return [(version, tokens) for version, tokens in found if tokens] or [(number_of(answer.label), count)]
