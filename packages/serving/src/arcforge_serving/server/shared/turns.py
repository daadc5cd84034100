"""Where the prompts of conversations come from, and what becomes of the tokens that are sampled for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Message, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams


class Cancellable(Protocol):
    """A generation that can be ended."""

    def cancel(self) -> None:
        """Ends it; no effect on one that has ended."""


class Turns(Protocol):
    """Injected into the dialects, which all ask it in the order of its methods, `ended` or `failed` once for each
    sequence.

    The server's own renders each conversation (`RenderedTurns`); a gateway's session continues recorded tokens.
    """

    def check(self, sequences: int, as_ids: bool) -> None:
        """Checks a request: how many sequences it wants, and whether its prompt is token ids instead of messages.

        Raises:
            ConfigError: it cannot be served.
        """

    def prompt(
        self, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> list[int]:
        """Returns the token ids to sample after."""

    def params(self, params: SamplingParams) -> SamplingParams:
        """Returns how to sample."""

    def began(self, generation: Cancellable) -> None:
        """Takes note of the generation."""

    def ended(self, output: GenerationOutput, stop: str | None) -> None:
        """Takes note of a sequence that ended; `stop` is the stop string that ended its text."""

    def failed(self) -> None:
        """Takes note of a sequence that the engine has failed, or whose end could not be noted."""


class RenderedTurns:
    """Renders every conversation from its messages, and keeps nothing."""

    def check(self, sequences: int, as_ids: bool) -> None:
        """Accepts all requests."""

    def prompt(
        self, template: ChatTemplate, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> list[int]:
        """Renders."""
        return list(template.render(messages, tools, options, generation_prompt=True).ids)

    def params(self, params: SamplingParams) -> SamplingParams:
        """Changes nothing."""
        return params

    def began(self, generation: Cancellable) -> None:
        """Does nothing."""

    def ended(self, output: GenerationOutput, stop: str | None) -> None:
        """Does nothing."""

    def failed(self) -> None:
        """Does nothing."""
