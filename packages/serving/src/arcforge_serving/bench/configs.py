"""Schemas of ``arcforge-bench`` and of what it asks; torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from arcforge_core.config.schema import ComponentConfig, check_at_least, check_between, check_choice, check_minimums
from arcforge_core.errors import ConfigError


def check_range(field_name: str, value: list[int], minimum: int = 1) -> None:
    """Raises `ConfigError` unless `value` is two numbers, the lower one first."""
    if len(value) != 2 or not minimum <= value[0] <= value[1]:
        raise ConfigError(field_name, value, f"must be [least, most] with {minimum} <= least <= most")


@dataclass
class WorkloadConfig(ComponentConfig):
    """Base of what ``arcforge-bench`` asks an endpoint."""


@dataclass
class RandomWorkloadConfig(WorkloadConfig):
    """Independent requests of random words."""

    name: str = "random"
    requests: int = 64
    """How many."""
    input_tokens: list[int] = field(default_factory=lambda: [32, 1024])
    """Least and most tokens of a prompt, all equally likely; without `tokenizer` a word counts as one."""
    output_tokens: list[int] = field(default_factory=lambda: [32, 256])
    """Least and most tokens that a request asks for."""

    def __post_init__(self) -> None:
        check_at_least("workload.requests", self.requests, 1)
        check_range("workload.input_tokens", self.input_tokens)
        check_range("workload.output_tokens", self.output_tokens)


@dataclass
class SharedPrefixWorkloadConfig(WorkloadConfig):
    """Requests that begin alike, in groups."""

    name: str = "shared_prefix"
    requests: int = 64
    """How many; they take turns by group."""
    groups: int = 1
    """Different beginnings."""
    input_tokens: int = 1024
    """Tokens of a prompt; without `tokenizer` a word counts as one."""
    share: float = 0.9
    """Share of them that a group has in common."""
    output_tokens: int = 32
    """Tokens that a request asks for."""

    def __post_init__(self) -> None:
        check_minimums(self, "workload", requests=1, groups=1, input_tokens=1, output_tokens=1)
        check_between("workload.share", self.share, 0.0, 1.0)


@dataclass
class AgentWorkloadConfig(WorkloadConfig):
    """Conversations that grow by replies and by results of tools."""

    name: str = "agent"
    sessions: int = 16
    """How many."""
    turns: list[int] = field(default_factory=lambda: [2, 8])
    """Least and most requests of a session."""
    system_tokens: int = 256
    """Tokens of the system prompt, which all sessions share."""
    task_tokens: list[int] = field(default_factory=lambda: [32, 256])
    """Least and most tokens of the first message."""
    result_tokens: list[int] = field(default_factory=lambda: [32, 512])
    """Least and most tokens of a tool's result, which each further request brings."""
    output_tokens: list[int] = field(default_factory=lambda: [32, 128])
    """Least and most tokens that a request asks for."""
    tool_seconds: float = 0.0
    """What a tool takes: the pause before each further request."""

    def __post_init__(self) -> None:
        check_minimums(self, "workload", sessions=1, system_tokens=1)
        check_between("workload.tool_seconds", self.tool_seconds, 0.0, 3600.0)
        for name in ("turns", "task_tokens", "result_tokens", "output_tokens"):
            check_range(f"workload.{name}", getattr(self, name))


@dataclass
class FileWorkloadConfig(WorkloadConfig):
    """The requests of a file."""

    name: str = "file"
    path: str = MISSING
    """JSON lines with ``prompt``, or ``messages`` of ``role`` and ``content``, and perhaps ``max_tokens``."""
    output_tokens: int = 128
    """Tokens that a line without ``max_tokens`` asks for."""

    def __post_init__(self) -> None:
        check_at_least("workload.output_tokens", self.output_tokens, 1)


@dataclass
class SloConfig:
    """Bounds that a request must keep to count as goodput; null sets none."""

    ttft_ms: float | None = None
    """Milliseconds to the first token."""
    tpot_ms: float | None = None
    """Mean milliseconds of each token after it."""
    e2e_ms: float | None = None
    """Milliseconds of the whole request."""

    def __post_init__(self) -> None:
        check_minimums(self, "slo", ttft_ms=0.0, tpot_ms=0.0, e2e_ms=0.0)


APIS = ("completions", "chat")


@dataclass
class BenchConfig:
    """The root of ``arcforge-bench``."""

    workload: WorkloadConfig = MISSING
    url: str = "http://127.0.0.1:8000/v1"
    """An OpenAI endpoint. A key is taken from the variable ARCFORGE_API_KEY."""
    model_name: str | None = None
    """Name of the model there; null takes the only one that the server lists."""
    api: str = "completions"
    """``completions`` sends texts, ``chat`` messages."""
    rate: float | None = None
    """Sessions that begin per second, at random intervals (Poisson); null begins each as soon as it may."""
    concurrency: int | None = None
    """Sessions at a time at most; null is 16 without a `rate`, and no limit with one."""
    warmup: int = 2
    """Requests of random words that are sent first and not counted."""
    temperature: float = 0.0
    """0 is greedy."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of each request, e.g. ``+extra.ignore_eos=true`` where the server has it."""
    tokenizer: str | None = None
    """Folder of the model's tokenizer, so that prompts have the lengths asked for; null takes a word for a token."""
    timeout: float = 600.0
    """Seconds after which a request is given up."""
    seed: int = 0
    """Of texts and arrivals. A server with a prefix cache may know the prompts of an earlier run with the same seed."""
    slo: SloConfig = field(default_factory=SloConfig)
    output_dir: str = "outputs"

    def __post_init__(self) -> None:
        check_choice("api", self.api, APIS)
        if self.rate is not None and not 0.0 < self.rate < float("inf"):
            raise ConfigError("rate", self.rate, "must be above 0")
        check_minimums(self, "", concurrency=1, warmup=0, seed=0, temperature=0)
        if not 0.0 < self.timeout < float("inf"):
            raise ConfigError("timeout", self.timeout, "must be above 0")
        reserved = sorted({"model", "prompt", "messages", "max_tokens", "stream", "stream_options"} & set(self.extra))
        if reserved:
            raise ConfigError("extra", reserved[0], "is set by the benchmark itself")
