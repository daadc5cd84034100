"""Schemas of this package's components and commands; torch-free."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from omegaconf import MISSING

from arcforge_core.config.checks import INFERENCE_DTYPES
from arcforge_core.config.schema import (
    EngineConfig,
    HardwareConfig,
    check_at_least,
    check_between,
    check_choice,
    check_minimums,
    check_weights,
)
from arcforge_core.errors import ConfigError

MOST_DRAFTS = 8
"""Upper bound of drafts: the acceptance rate falls with each position."""


@dataclass
class PagedEngineConfig(EngineConfig):
    """Continuous batching over a paged cache."""

    name: str = "paged"
    cache_mb: int = 512
    """Memory of the cache in MiB; less where `max_running` sequences of the model's greatest length need less."""
    cache_tokens: int | None = None
    """Size of the cache in tokens; replaces `cache_mb`."""
    page_size: int = 16
    """Tokens of a page, the unit of allocation, sharing and eviction."""
    max_running: int = 64
    """Sequences that are generated concurrently."""
    max_waiting: int = 1024
    """Sequences that may wait; more are refused. In a full queue an owner with less than its share takes the place of
    the owner with the most."""
    max_running_per_owner: int | None = None
    """Sequences of one owner (an API key, else a client's address) that run at a time; null: all that find room."""
    max_waiting_per_owner: int | None = None
    """Sequences of one owner that may wait; null has no further bound."""
    max_batch_tokens: int = 1024
    """Tokens of a step: one for each decoded sequence, the rest are parts of prompts."""
    prefix_cache: bool = True
    """Share the pages of common prefixes with concurrent and later requests."""
    prefix_at_update: str = "drop"
    """Cached prefixes at a weight update: ``drop`` recomputes them with the new weights; ``keep`` leaves them to
    running requests and to sessions that began before, never to later ones."""
    tier_mb: int = 0
    """Size in MiB of a memory-mapped file for evicted pages; 0: no file."""
    tier_dir: str | None = None
    """Folder of that file; null is the system's temporary folder."""
    record_experts: bool = False
    """Keep the experts of every cached token, for requests that ask for them: a byte for each layer with experts and
    expert of a token, two with more than 256 experts. Layers are not fused then, and decoding steps not recorded."""
    priority_tokens: int = 65536
    """Tokens of other work that a request overtakes per level of its priority."""
    weights: str = "none"
    """Number format of the weights: ``none`` (the checkpoint's), ``w8a8``, ``w4a8`` or ``int4``. The model is
    changed in place."""
    overlap: bool | None = None
    """Prepare the next step while the present one is computed; null: if a processor core is free for it."""
    draft_tokens: int | None = 0
    """Tokens that the model's MTP module drafts per step; null is 3 with a module, else 0."""
    drafting: str = "auto"
    """``auto`` drafts as many as pay, by running measurements; ``always`` drafts all."""

    def __post_init__(self) -> None:
        check_weights("engine.weights", self.weights)
        check_minimums(self, "engine", cache_mb=1, page_size=1, max_running=1, max_waiting=1, max_batch_tokens=1)
        check_minimums(self, "engine", max_running_per_owner=1, max_waiting_per_owner=1, tier_mb=0, priority_tokens=0)
        check_at_least("engine.cache_tokens", self.cache_tokens, self.page_size)
        if self.draft_tokens is not None:
            check_between("engine.draft_tokens", self.draft_tokens, 0, MOST_DRAFTS)
        check_choice("engine.drafting", self.drafting, ("auto", "always"))
        check_choice("engine.prefix_at_update", self.prefix_at_update, ("drop", "keep"))
        if self.prefix_at_update == "keep" and not self.prefix_cache:
            raise ConfigError("engine.prefix_at_update", "keep", "must be drop with engine.prefix_cache=false")
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
    """Which engine gets a request, and when an engine counts as dead."""

    policy: str = "session"
    """``session`` keeps a session's requests on one engine while it has room, ``prefix`` prefers the engine that
    received the longest prefix of the prompt, ``least_load`` and ``round_robin`` ignore prompts."""
    load_factor: float = 2.0
    """An engine with this multiple of the mean number of requests is full; ``session`` and ``prefix`` avoid it."""
    free_requests: int = 12
    """An engine with fewer requests than this is never full."""
    active_seconds: float = 300.0
    """A session without requests for this long may move to another engine; set it above the slowest tool's time."""
    log: str | None = None
    """File to which a JSON line per request is appended: session, sizes, engine, loads, times; null writes none."""
    retries: int = 1
    """Other engines that a request is tried on if one fails before the client received anything."""
    health_seconds: float = 1.0
    """Interval of health checks."""
    hang_seconds: float = 30.0
    """An engine that has not answered for this long is killed and restarted."""
    update_seconds: float = 300.0
    """An engine that takes longer for a weight update is killed; it gets the weights before further requests."""

    def __post_init__(self) -> None:
        check_choice("router.policy", self.policy, POLICIES)
        if not self.load_factor >= 1.0:
            raise ConfigError("router.load_factor", self.load_factor, "must be at least 1: someone must take the mean")
        check_minimums(self, "router", free_requests=1, retries=0)
        check_between("router.active_seconds", self.active_seconds, 1.0, 30 * 86400.0)
        check_between("router.health_seconds", self.health_seconds, 0.05, 3600.0)
        check_between("router.hang_seconds", self.hang_seconds, self.health_seconds, 86400.0)
        check_between("router.update_seconds", self.update_seconds, 0.01, 86400.0)


@dataclass
class RemoteEngineConfig(EngineConfig):
    """An external server, over HTTP. Its key is in ARCFORGE_ENGINE_KEY."""

    url: str = ""
    """Address of the server."""
    timeout_seconds: float = 3600.0
    """How long a request may take."""
    update_seconds: float = 600.0
    """How long a weight update may take. The engine of a run with `collection=async` then gets no rollouts until it has
    answered and has the present weights; other runs end with an error."""
    answer_seconds: float = 30.0
    """How long the server may take to say that it is there, and what it does."""
    retries: int = 3
    """Further attempts of a request that the server did not start: no connection, or refused."""
    concurrency: int = 256
    """Concurrent requests; further ones wait here."""
    stream: bool = True
    """Receive tokens as they are generated; `false` receives whole replies, which costs less."""
    weights_dir: str | None = None
    """Folder shared with the server, for weight updates; null disables them."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("engine.url", self.url, "must begin with http:// or https://")
        for name in ("timeout_seconds", "update_seconds", "answer_seconds"):
            check_between(f"engine.{name}", getattr(self, name), 0.01, 86400.0)
        check_between("engine.retries", self.retries, 0, 20)
        check_at_least("engine.concurrency", self.concurrency, 1)


@dataclass
class ArcforgeEngineConfig(RemoteEngineConfig):
    """A server of ``arcforge-serve``, one engine or several. ARCFORGE_ENGINE_KEY is an admin key of it."""

    name: str = "arcforge"
    url: str = "http://127.0.0.1:8000"
    """Address of the server."""
    weights_dir: str | None = None
    """Folder below the server's `weights_root`, through which weights go; null uploads them."""


@dataclass
class VllmEngineConfig(RemoteEngineConfig):
    """A server of vLLM, started with ``--enable-scale-out``."""

    name: str = "vllm"
    url: str = "http://127.0.0.1:8000"
    """Address of the server."""
    served_name: str | None = None
    """Name of the model there; null omits it."""
    pause: str = "keep"
    """Running requests during a weight update: ``abort``, ``wait`` or ``keep``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("engine.pause", self.pause, ("abort", "wait", "keep"))


@dataclass
class SglangEngineConfig(RemoteEngineConfig):
    """A server of SGLang."""

    name: str = "sglang"
    url: str = "http://127.0.0.1:30000"
    """Address of the server."""
    pause: str = "retract"
    """Running requests during a weight update: ``abort``; ``retract`` recomputes them."""
    original_logprobs: bool = False
    """The server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1: log-probs are the model's at every temperature."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("engine.pause", self.pause, ("abort", "retract"))


MATCHES = ("strict", "loose")


@dataclass
class GatewayConfig:
    """Sessions of agents, recorded token by token for training."""

    sessions: int = 0
    """Most open sessions; 0 offers none."""
    match: str = "loose"
    """When a client's message is a recorded reply: `strict` compares texts, reasoning and the order of arguments;
    `loose` ignores white space around texts, the order of arguments, and reasoning that the client left out."""
    fork_threshold_tokens: int = 1024
    """A reply that the client changed is realigned, in the same branch, if fewer sampled tokens than this are lost to
    training; else it keeps a branch of its own. 0 loses none."""
    max_turns: int | None = None
    """Turns of a session; more are refused with 429."""
    max_tokens: int | None = None
    """Sampled tokens of a session, after which no turn begins."""
    max_seconds: float | None = None
    """Seconds after which no turn of a session begins."""
    final_turn: bool = False
    """At a limit, allow one more turn that cannot call tools, so that an agent can conclude; then 429."""
    log: str | None = None
    """Folder where open sessions are written as their turns end, so that they survive the gateway's process; null keeps
    them in memory alone. It has one file a session, deleted with it."""
    memory_mb: int = 256
    """Memory in MiB, of all sessions together, for parsed parts of the histories that come with every turn; beyond
    it the least recently used parts are parsed again. 0 keeps none."""
    replies_mb: int = 256
    """Memory in MiB, of all sessions together, for replies: those that repeated requests get again, and stored
    responses. Beyond it the least recently used are forgotten: a request that is repeated later is another turn, and
    `previous_response_id` is 404. 0 keeps none."""
    recorded_tokens: int | None = None
    """Tokens of all open sessions together (about 40 bytes each); beyond it a session that opens is 429, and those that
    are open continue."""

    def __post_init__(self) -> None:
        check_minimums(self, "gateway", sessions=0, fork_threshold_tokens=0, memory_mb=0)
        check_minimums(self, "gateway", max_turns=1, max_tokens=1, replies_mb=0, recorded_tokens=1)
        check_choice("gateway.match", self.match, MATCHES)
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ConfigError("gateway.max_seconds", self.max_seconds, "must be above 0, or null for no limit")
        if self.log == "":
            raise ConfigError("gateway.log", self.log, "must name a folder, or be null for none")


@dataclass
class ServeConfig:
    """The root of ``arcforge-serve``."""

    engine: EngineConfig = MISSING
    hardware: HardwareConfig = MISSING
    checkpoint: str = MISSING
    """Folder of a model with its tokenizer, or of a run, e.g. ``outputs/latest``."""
    dtype: str = "auto"
    """Number format of computation: ``stored``, the checkpoint's; ``float32``; ``bfloat16``; or ``auto``, the stored
    one, except float32 for bfloat16 weights on a processor whose float32 products are measured to be faster."""
    deterministic: bool = False
    """Compute tokens and log-probs that do not depend on the rest of the batch, bit for bit; slower."""
    host: str = "127.0.0.1"
    """Address to listen on. One that other machines reach needs an API key."""
    port: int = 8000
    """0 takes a free one."""
    unix_socket: str | None = None
    """Path of a Unix socket to listen on as well, open to programs of this user. A sandbox that forwards a port to it
    reaches this server and nothing else."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Names that requests may address, besides `host`, localhost and the address connected to: those of a proxy, for
    example. Empty accepts every name if other machines reach `host`, and none further if not."""
    allowed_origins: list[str] = field(default_factory=list)
    """Web pages elsewhere that may use the server from a browser, e.g. ``https://chat.example.com``."""
    lesson: list[str] = field(default_factory=list)
    """Options of ``arcforge-rl``, e.g. ``recipe=demo``, of a training run that the chat page may start; its weights are
    served afterwards. Empty offers none."""
    dp: int = 1
    """Engines, each with its own process and weights; several share a router."""
    prefill: int = 0
    """Further processes that compute prompts for the `dp` engines, which decode."""
    router: RouterConfig = field(default_factory=RouterConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    served_name: str | None = None
    """Name of the model in requests and replies; null is the checkpoint's folder name."""
    shutdown_seconds: float = 30.0
    """How long running requests may continue after SIGTERM or Ctrl-C; then they end with the reason ``abort``."""
    api_key_file: str | None = None
    """File with one API key per line; null uses ARCFORGE_SERVE_KEYS. Without keys the server is open."""
    admin_key_file: str | None = None
    """File with the keys of `/v1/rl`; null uses ARCFORGE_SERVE_ADMIN_KEYS. Without keys these routes are off."""
    max_priority: int = 0
    """Highest `priority` of requests without an admin key; a higher one is refused with 400."""
    share_prefixes: bool = False
    """Share cached prefixes between keys. Faster if all keys begin with one system prompt; but then `cached_tokens`
    and the time to the first token tell each of them what the others have asked."""
    weights_root: str | None = None
    """Folder below which weight updates may be read; null refuses updates from folders."""
    token_id_style: str = "vllm"
    """Where the reply of a chat has its prompt's token ids: `vllm`, in the reply, or `sglang`, in each choice."""
    responses_mb: int = 64
    """Memory in MiB for replies of /v1/responses, for `previous_response_id`; 0 stores none."""
    requests_per_minute: int | None = None
    """Generating requests per key, or per address without keys; more are refused with 429."""
    tokens_per_minute: int | None = None
    """Prompt and output tokens per key; beyond it requests are refused until the balance recovers."""
    log: str = "problems"
    """Log on standard error: `problems` only; `text` and `json` add a line per request."""
    max_body_mb: int = 8
    """Largest request body in MiB, except uploads of weights."""
    max_connections: int = 4096
    """Simultaneous connections; beyond it the longest idle one is closed."""
    header_seconds: float = 10.0
    """A connection is closed when a request's headers take longer."""
    body_seconds: float = 30.0
    """A request whose body takes longer is refused, as is an upload that stalls for this long."""
    read_seconds: float = 60.0
    """A connection is closed, and its request ended, if the client reads nothing for this long."""
    keep_alive_seconds: int = 30
    """An idle connection is closed after this long."""

    def __post_init__(self) -> None:
        check_between("port", self.port, 0, 65535)
        check_choice("dtype", self.dtype, INFERENCE_DTYPES)
        for name in self.allowed_hosts:
            if not re.fullmatch(r"[\w.-]+|\[?[\da-fA-F]*:[\da-fA-F.]*:[\da-fA-F:.]*\]?", name, re.ASCII):
                raise ConfigError("allowed_hosts", name, "must be a host name or address, without scheme and port")
        for origin in self.allowed_origins:
            if not re.fullmatch(r"[a-z][a-z\d+.-]*://[^/?#@\s]+", origin, re.ASCII):
                raise ConfigError("allowed_origins", origin, "must be SCHEME://HOST or SCHEME://HOST:PORT")
        check_between("dp", self.dp, 1, MOST_ENGINES)
        check_between("prefill", self.prefill, 0, MOST_ENGINES)
        check_minimums(self, "", shutdown_seconds=0, responses_mb=0)
        check_minimums(
            self, "", requests_per_minute=1, tokens_per_minute=1, max_body_mb=1, max_connections=1, keep_alive_seconds=1
        )
        check_choice("token_id_style", self.token_id_style, ("vllm", "sglang"))
        check_between("max_priority", self.max_priority, -100, 100)
        check_choice("log", self.log, ("problems", "text", "json"))
        for name in ("header_seconds", "body_seconds", "read_seconds"):
            check_between(name, getattr(self, name), 0.1, 86400.0)
        if not isinstance(self.engine, (PagedEngineConfig, RemoteEngineConfig)):
            accepted = "must be paged, arcforge, vllm or sglang; others cannot serve, use build_engine from Python"
            raise ConfigError("engine", self.engine.name, accepted)
        if isinstance(self.engine, RemoteEngineConfig):
            for name, given, none in (("dp", self.dp, 1), ("prefill", self.prefill, 0), ("lesson", self.lesson, [])):
                if given != none:
                    accepted = f"must be {none} with engine={self.engine.name}: its server has the engines"
                    raise ConfigError(name, given, accepted)
        if self.lesson and (self.dp > 1 or self.prefill):
            raise ConfigError(
                "lesson", self.lesson, "must be empty with dp > 1 or prefill: its weights go to one engine"
            )
        if self.gateway.sessions and (self.dp > 1 or self.prefill):
            raise ConfigError(
                "gateway.sessions",
                self.gateway.sessions,
                "must be 0 with dp > 1 or prefill: sessions live in one process",
            )
        if isinstance(self.engine, RemoteEngineConfig):
            return
        if self.prefill and self.engine.prefix_at_update != "drop":
            accepted = "must be drop with prefill > 0: those engines compute prompts with the present weights"
            raise ConfigError("engine.prefix_at_update", self.engine.prefix_at_update, accepted)
        if self.prefill and not self.engine.prefix_cache:
            raise ConfigError("prefill", self.prefill, "must be 0 with engine.prefix_cache=false")
