"""Schemas of core's evaluation suites, torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from arcforge_core.config.schema import (
    PlayConfig,
    SuiteConfig,
    check_at_least,
    check_choice,
    check_minimums,
    check_multiple,
)
from arcforge_core.errors import ConfigError

EVALUATION_DEPTHS = tuple(n / 10 for n in range(11))
"""Depths at which long-context evaluation places needles; training uses none of them."""

LONG_CONTEXT_TASKS = (
    "single",
    "multi_key",
    "multi_value",
    "multi_query",
    "variable_tracking",
    "common_words",
    "frequent_words",
    "qa",
)
"""Tasks of the suite ``long_context``."""


@dataclass
class LanguageModelSuiteConfig(SuiteConfig):
    """Bits per byte of held-out text, compared with compressors, and functions that parse."""

    name: str = "language_model"
    sequence_length: int = 512
    micro_batch_tokens: int = 8192
    """Tokens of one forward pass; a multiple of sequence_length."""
    max_tokens: int | None = None
    """Maximum held-out tokens; None uses all."""
    functions: int = 50
    """Functions sampled from the prompt ``def NAME(`` and parsed; 0 samples none."""
    max_new_tokens: int = 160
    """Maximum tokens of a sampled function."""
    temperature: float = 0.6
    seed: int = 0

    def __post_init__(self) -> None:
        check_minimums(self, "suite", sequence_length=1, micro_batch_tokens=1, max_tokens=1, max_new_tokens=1)
        check_minimums(self, "suite", functions=0, temperature=0, seed=0)
        check_multiple("suite.micro_batch_tokens", self.micro_batch_tokens, "sequence_length", self.sequence_length)


@dataclass
class LongContextSuiteConfig(SuiteConfig):
    """RULER-style tasks at growing lengths, on a checkpoint or on an endpoint."""

    name: str = "long_context"
    tasks: list[str] = field(default_factory=lambda: list(LONG_CONTEXT_TASKS))
    lengths: list[int] = field(default_factory=lambda: [256, 512, 1024])
    """Tokens of a prompt and its answer."""
    depths: list[float] = field(default_factory=lambda: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    """Positions of the answer as shares of the context; tenths, which training on data=retrieval avoids."""
    samples: int = 5
    """Examples for each task, length and depth."""
    seed: int = 0
    output: str | None = None
    """Folder of the results; an unfinished evaluation in it resumes. None selects one below outputs/long_context."""
    endpoint: str | None = None
    """Base URL of a server with OpenAI's completions API, measured instead of a checkpoint."""
    model: str | None = None
    """The model's name there; None omits it."""
    tokenizer: str | None = None
    """A ``tokenizer.json`` or its folder, which counts the lengths at an endpoint; None approximates."""

    def __post_init__(self) -> None:
        for name in ("tasks", "lengths", "depths"):
            if not getattr(self, name):
                raise ConfigError(f"suite.{name}", [], "must name at least one")
        for task in self.tasks:
            check_choice("suite.tasks", task, LONG_CONTEXT_TASKS)
        for length in self.lengths:
            check_at_least("suite.lengths", length, 1)
        for depth in self.depths:
            if depth not in EVALUATION_DEPTHS:
                raise ConfigError("suite.depths", depth, "must be one of 0, 0.1, 0.2, ..., 1")
        check_minimums(self, "suite", samples=1, seed=0)
        if self.endpoint is not None and not self.endpoint.startswith(("http://", "https://")):
            raise ConfigError("suite.endpoint", self.endpoint, "must begin with http:// or https://")
        if self.endpoint is None:
            for name in ("model", "tokenizer"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"suite.{name}", getattr(self, name), "belongs to suite.endpoint; set that too")


@dataclass
class ConversationsSuiteConfig(SuiteConfig, PlayConfig):
    """Held-out conversations, played by generation and checked."""

    prefix: ClassVar[str] = "suite."

    name: str = "conversations"
    output: str | None = None
    """Folder of figures and rollouts; None selects a dated one below outputs."""

    def __post_init__(self) -> None:
        PlayConfig.__post_init__(self)


@dataclass
class MtpAcceptanceSuiteConfig(SuiteConfig):
    """Tokens drafted by the MTP module that the main model accepts."""

    name: str = "mtp_acceptance"
    drafts: int = 4
    """Tokens drafted at each position."""
    positions: int = 1024
    """Positions of held-out text, and the same number in greedy continuations; rounded up to whole texts."""
    sequence_length: int = 128
    """Maximum tokens before a position."""

    def __post_init__(self) -> None:
        check_minimums(self, "suite", drafts=1, positions=1, sequence_length=2)
