"""The contract of an engine shared by many callers: requests are queued, streamed and aborted.

The HTTP server and the router's engines use it. `arcforge_serving.engine.paged` implements it, and the adapters of
`arcforge_serving.remote` do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from arcforge_core.contracts.engine import Engine, GenerationOutput, SamplingParams, TokenDelta

SESSION_HEADER = "X-Session-Id"
"""HTTP header with the name of a request's session, for routers."""


@dataclass(frozen=True)
class EngineLimits:
    """The largest request that an engine accepts.

    Attributes:
        vocabulary: exclusive upper bound of token ids.
        tokens: of prompt and output together: the model's positions, or fewer if the cache is smaller.
        waiting: sequences in the queue.
        weight_bytes: size of a weight update in float32, or in the model's wider dtype.
    """

    vocabulary: int
    tokens: int
    waiting: int
    weight_bytes: int


@dataclass(frozen=True)
class EngineStats:
    """State and counters of an engine; 0 or ``unknown`` where an external server does not report them.

    Attributes:
        running, waiting: sequences.
        pages, free_pages, cached_pages: all pages, empty pages, and pages of the prefix tree.
        page_size: tokens of a page.
        prefix_reuse: ``on``, or the reason why prefixes are not shared.
        prompt_tokens, cached_tokens: of all admitted prompts, and those of them read from the prefix cache.
        evicted_pages, restored_pages: pages evicted for other sequences, and pages restored from the second tier.
        preemptions: sequences that lost their pages and were recomputed.
        generated_tokens: tokens delivered to readers.
        steps: steps computed.
        busy_seconds: time in which steps were computed; of several engines the mean.
        speculation: ``on``, or the reason why no tokens are drafted.
        drafts, draft_tokens: verifications of drafts, counted per sequence, and the tokens that they verified.
        accepted_by_position: number of accepted first, second, ... draft tokens.
        accepted_length: mean tokens per sequence and verification: the accepted ones and the one that the main model
            always adds; 1 before the first verification.
        weight_version: of the weights.
        paused: whether the engine is paused.
    """

    running: int
    waiting: int
    pages: int = 0
    free_pages: int = 0
    cached_pages: int = 0
    page_size: int = 0
    prefix_reuse: str = "unknown"
    prompt_tokens: int = 0
    cached_tokens: int = 0
    evicted_pages: int = 0
    restored_pages: int = 0
    preemptions: int = 0
    generated_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    speculation: str = "unknown"
    drafts: int = 0
    draft_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    accepted_length: float = 1.0
    weight_version: int = 0
    paused: bool = False


class TokenStream(Protocol):
    """One sequence being generated, for one reader."""

    def cancel(self) -> None:
        """Ends the sequence with the reason ``abort``; no effect on a finished one."""

    def result(self, timeout: float | None = None) -> GenerationOutput:
        """Waits for the end and returns the output; raises the error that failed the sequence."""

    async def output(self) -> GenerationOutput:
        """As `result`, for a coroutine; it is woken once, at the end."""

    def __aiter__(self) -> AsyncIterator[TokenDelta]:
        """Yields tokens as they are generated; raises the error that failed the sequence."""


class ServingEngine(Engine, Protocol):
    """An engine shared by many callers: requests are queued, streamed and aborted. All methods are thread-safe.

    Attributes:
        alive: whether the engine accepts requests.
        started: whether submitted requests proceed by themselves: after `start`.
        paused: whether requests wait for `resume`.
        limits: limits of a request.
    """

    @property
    def alive(self) -> bool: ...
    @property
    def started(self) -> bool: ...
    @property
    def paused(self) -> bool: ...
    @property
    def limits(self) -> EngineLimits: ...

    def start(self) -> None:
        """Starts the thread that generates."""

    def close(self) -> None:
        """Stops accepting requests and ends the current ones with the reason ``abort``."""

    def submit(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        owner: str = "",
        salt: str = "",
        session: str = "",
    ) -> Sequence[TokenStream]:
        """Queues a request and returns a stream for each of its ``params.n`` sequences.

        A stream fails alone: with the error of its sequence, which may be an engine's that is gone or too slow.

        Args:
            prompt: token ids.
            params: how to sample.
            priority: higher ones go first.
            owner: requests of different owners are scheduled in turn.
            salt: cached prefixes are shared between requests of one salt only.
            session: name of the conversation or rollout that the request continues. A router sends a session's requests
                to one engine; `prefix_at_update` of the paged engine asks which sessions began before an update.

        Raises:
            ConfigError: the request cannot be served, or the engine cannot do what a keyword asks for.
            ArcforgeError: too many sequences wait, or the engine is closed.
        """

    def abort(self) -> None:
        """Ends all requests that were submitted here with the reason ``abort``."""

    def pause(self, mode: str = "keep") -> None:
        """Stops generating until `resume`; ``mode`` determines whether current requests are aborted (``abort``),
        finished first (``wait``) or kept (``keep``)."""

    def resume(self) -> None:
        """Continues after `pause`."""

    def flush(self) -> None:
        """Drops all cached prefixes."""

    def update_weights_from(
        self, folder: Any, *, version: int | None = None, checksum: str | None = None, reset: bool = False
    ) -> None:
        """Updates the weights from the directory of a checkpoint or run; see `update_weights`."""

    def stats(self) -> EngineStats:
        """Returns state and counters without pausing the engine."""
