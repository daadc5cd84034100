"""Schemas of this package's components and commands; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from arcforge_core.config.schema import (
    EngineConfig,
    HardwareConfig,
    check_at_least,
    check_between,
    check_choice,
    check_weights,
)
from arcforge_core.errors import ConfigError

MOST_DRAFTS = 8
"""Drafts at most: how many are accepted falls from place to place."""


@dataclass
class PagedEngineConfig(EngineConfig):
    """Continuous batching over a paged cache."""

    name: str = "paged"
    cache_mb: int = 512
    """Memory of the cache in MiB; no more than `max_running` of the model's longest sequences are given room."""
    cache_tokens: int | None = None
    """Tokens that the cache holds, instead of what fits into `cache_mb`."""
    page_size: int = 16
    """Tokens of a page: what is allocated, shared between requests and evicted at once."""
    max_running: int = 64
    """Sequences that are generated at the same time."""
    max_waiting: int = 1024
    """Sequences that may wait; more are refused."""
    max_batch_tokens: int = 1024
    """Tokens of a step: one for each decoded sequence, the rest are parts of prompts."""
    prefix_cache: bool = True
    """Keep the pages of finished and running requests for others that begin alike."""
    tier_mb: int = 0
    """Size in MiB of a memory-mapped file that takes evicted pages; 0 has none."""
    tier_dir: str | None = None
    """Folder of that file; None is the system's for temporary files."""
    priority_tokens: int = 65536
    """A request goes ahead of so many tokens of other work for each level of its priority."""
    weights: str = "none"
    """Number format of the weights: ``none``, the checkpoint's; ``w8a8``, ``w4a8`` or ``int4``. The model that
    the engine is given is changed in place."""
    overlap: bool | None = None
    """Prepare the next step while the present one is computed; null does where that has a processor core to itself."""
    draft_tokens: int | None = 0
    """Tokens that the model's MTP module drafts for one step to check at once; null is 3 where there is a module."""
    drafting: str = "auto"
    """``auto`` drafts as many of them as pay, measured as it goes, or none; ``always`` drafts all."""

    def __post_init__(self) -> None:
        check_weights("engine.weights", self.weights)
        for name in ("cache_mb", "page_size", "max_running", "max_waiting", "max_batch_tokens"):
            check_at_least(f"engine.{name}", getattr(self, name), 1)
        check_at_least("engine.cache_tokens", self.cache_tokens, self.page_size)
        check_at_least("engine.tier_mb", self.tier_mb, 0)
        check_at_least("engine.priority_tokens", self.priority_tokens, 0)
        if self.draft_tokens is not None:
            check_between("engine.draft_tokens", self.draft_tokens, 0, MOST_DRAFTS)
        check_choice("engine.drafting", self.drafting, ("auto", "always"))
        if self.max_batch_tokens < self.max_running:
            accepted = f"must be at least engine.max_running={self.max_running}: each decoded sequence takes one"
            raise ConfigError("engine.max_batch_tokens", self.max_batch_tokens, accepted)
        if self.tier_mb and not self.prefix_cache:
            raise ConfigError("engine.tier_mb", self.tier_mb, "must be 0 with engine.prefix_cache=false")
        if self.tier_dir is not None and not self.tier_mb:
            raise ConfigError("engine.tier_dir", self.tier_dir, "needs engine.tier_mb above 0")


MOST_ENGINES = 64
POLICIES = ("session", "prefix", "least_load", "round_robin")


@dataclass
class RouterConfig:
    """Which of several engines gets a request, and when an engine counts as dead."""

    policy: str = "session"
    """``session`` keeps a session's requests on one engine as long as that has room, ``prefix`` looks for the engine
    that was sent most of the prompt before, ``least_load`` and ``round_robin`` look at no prompt."""
    load_factor: float = 2.0
    """An engine is full with so many times the mean of all engines' requests; ``session`` and ``prefix`` go elsewhere
    then."""
    free_requests: int = 12
    """An engine with fewer requests than this is not full whatever the mean is."""
    retries: int = 1
    """On how many other engines a request is tried when one fails before anything was sent to the client."""
    health_seconds: float = 1.0
    """How often each engine is asked whether it works."""
    hang_seconds: float = 30.0
    """An engine that has not answered for so long is killed and started anew."""

    def __post_init__(self) -> None:
        check_choice("router.policy", self.policy, POLICIES)
        if not self.load_factor >= 1.0:
            raise ConfigError("router.load_factor", self.load_factor, "must be at least 1: someone must take the mean")
        check_at_least("router.free_requests", self.free_requests, 1)
        check_at_least("router.retries", self.retries, 0)
        check_between("router.health_seconds", self.health_seconds, 0.05, 3600.0)
        check_between("router.hang_seconds", self.hang_seconds, self.health_seconds, 86400.0)


@dataclass
class RemoteEngineConfig(EngineConfig):
    """A server of others, over HTTP. Its key is in ARCFORGE_ENGINE_KEY."""

    url: str = ""
    """Where the server is."""
    timeout_seconds: float = 3600.0
    """How long a request may take."""
    connect_seconds: float = 10.0
    """How long the server may take to accept a connection."""
    retries: int = 3
    """Further attempts of a request that the server has not begun: no connection, or turned away."""
    concurrency: int = 256
    """Requests at the same time."""
    weights_dir: str | None = None
    """Folder that the server reads too, for updates of the weights; None makes none."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("engine.url", self.url, "must begin with http:// or https://")
        for name in ("timeout_seconds", "connect_seconds"):
            check_between(f"engine.{name}", getattr(self, name), 0.01, 86400.0)
        check_between("engine.retries", self.retries, 0, 20)
        check_at_least("engine.concurrency", self.concurrency, 1)


@dataclass
class VllmEngineConfig(RemoteEngineConfig):
    """A server of vLLM, started with ``--enable-scale-out``."""

    name: str = "vllm"
    url: str = "http://127.0.0.1:8000"
    """Where the server is."""
    served_name: str | None = None
    """Its name of the model; None leaves it out."""
    pause: str = "keep"
    """What becomes of running requests when weights are updated: ``abort``, ``wait`` or ``keep``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("engine.pause", self.pause, ("abort", "wait", "keep"))


@dataclass
class SglangEngineConfig(RemoteEngineConfig):
    """A server of SGLang."""

    name: str = "sglang"
    url: str = "http://127.0.0.1:30000"
    """Where the server is."""
    pause: str = "retract"
    """What becomes of running requests when weights are updated: ``abort``; ``retract`` computes them again."""
    original_logprobs: bool = False
    """The server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1: log-probs are the model's at every temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("engine.pause", self.pause, ("abort", "retract"))


@dataclass
class ServeConfig:
    """The root of ``arcforge-serve``."""

    engine: EngineConfig = MISSING
    hardware: HardwareConfig = MISSING
    checkpoint: str = MISSING
    """Folder of a model with its tokenizer, or of a run, e.g. ``outputs/latest``."""
    host: str = "127.0.0.1"
    """Address to listen on. One that other machines reach needs an API key."""
    port: int = 8000
    """0 takes a free one."""
    dp: int = 1
    """Engines, each with a process and weights of its own; more than one stand behind a router."""
    prefill: int = 0
    """Further processes, that compute prompts and hand their pages to the `dp` engines, which decode."""
    router: RouterConfig = field(default_factory=RouterConfig)
    served_name: str | None = None
    """Name of the model in requests and replies; None takes the checkpoint's folder name."""
    shutdown_seconds: float = 30.0
    """How long requests that run may go on after SIGTERM or Ctrl-C; then they end with the reason ``abort``."""
    api_key_file: str | None = None
    """File with an API key in each line; None takes ARCFORGE_SERVE_KEYS. Without keys everybody may ask."""
    admin_key_file: str | None = None
    """File with the keys of `/v1/rl`; None takes ARCFORGE_SERVE_ADMIN_KEYS. Without any these routes are off."""
    weights_root: str | None = None
    """Folder below which updates of the weights may be read; None reads none from folders."""
    token_id_style: str = "vllm"
    """Where the reply of a chat has its prompt's token ids: `vllm`, in the reply, or `sglang`, in each choice."""
    responses_mb: int = 64
    """Size in MiB of what is kept of replies of /v1/responses, for `previous_response_id`; 0 keeps nothing."""
    requests_per_minute: int | None = None
    """Requests that generate, of each key, or address where there are no keys; more are refused for a while."""
    tokens_per_minute: int | None = None
    """Tokens of prompts and outputs of each key; who has taken more waits until they have come back."""
    log: str = "problems"
    """What goes to standard error: `problems` alone; `text` and `json` have a line for each request, too."""
    max_body_mb: int = 8
    """Largest body of a request in MiB, uploads of weights excepted."""
    max_connections: int = 4096
    """Connections at once; the one that has been idle longest makes room for another."""
    header_seconds: float = 10.0
    """A connection is closed when a request's headers take longer."""
    body_seconds: float = 30.0
    """A request whose body takes longer is refused, and an upload that stops for so long."""
    read_seconds: float = 60.0
    """A connection is closed, and its request ended, when the client leaves what it was sent unread for so long."""
    keep_alive_seconds: int = 30
    """A connection without a request is closed after so long."""

    def __post_init__(self) -> None:
        check_between("port", self.port, 0, 65535)
        check_between("dp", self.dp, 1, MOST_ENGINES)
        check_between("prefill", self.prefill, 0, MOST_ENGINES)
        check_at_least("shutdown_seconds", self.shutdown_seconds, 0)
        check_choice("token_id_style", self.token_id_style, ("vllm", "sglang"))
        check_at_least("responses_mb", self.responses_mb, 0)
        check_choice("log", self.log, ("problems", "text", "json"))
        check_at_least("requests_per_minute", self.requests_per_minute, 1)
        check_at_least("tokens_per_minute", self.tokens_per_minute, 1)
        for name in ("max_body_mb", "max_connections", "keep_alive_seconds"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("header_seconds", "body_seconds", "read_seconds"):
            check_between(name, getattr(self, name), 0.1, 86400.0)
        if not isinstance(self.engine, PagedEngineConfig):
            accepted = "must be paged: the others do not take requests one by one; arcforge_serving.Engine runs them"
            raise ConfigError("engine", self.engine.name, accepted)
        if self.prefill and not self.engine.prefix_cache:
            raise ConfigError("prefill", self.prefill, "must be 0 with engine.prefix_cache=false")
