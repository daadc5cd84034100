"""Tokens of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arcforge_core.contracts.engine import GenerationOutput
from arcforge_serving.server.shared.jobs import Job, Update

Json = dict[str, Any]


class Usage:
    """Counts tokens; a prompt counts once, however many sequences continue it.

    Args:
        jobs: the sequences of the request.
        per_prompt: how many of them continue each prompt.
        prompt_only: whether generated tokens are not counted.
    """

    def __init__(self, jobs: Sequence[Job], per_prompt: int = 1, prompt_only: bool = False) -> None:
        self._per_prompt, self._prompt_only = per_prompt, prompt_only
        self.prompt = sum(len(job.prompt) for job in jobs[::per_prompt])
        self._completion = [0] * len(jobs)
        self._cached = self._drafted = self._accepted = 0

    def add(self, update: Update) -> None:
        """Counts the tokens of an update; at the end of a sequence, all of its tokens."""
        output: GenerationOutput | None = update.output
        if output is not None:
            self._cached += output.cached_tokens if update.index % self._per_prompt == 0 else 0
            self._drafted += output.drafted_tokens
            self._accepted += output.accepted_tokens
        if self._prompt_only:
            return
        if output is None:
            self._completion[update.index] += sum(len(piece.tokens) for piece in update.pieces)
        else:
            self._completion[update.index] = len(output.token_ids)

    @property
    def completion(self) -> int:
        """Tokens that were generated so far."""
        return sum(self._completion)

    @property
    def body(self) -> Json:
        """OpenAI's object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": self._accepted,
                "rejected_prediction_tokens": self._drafted - self._accepted,
            },
        }
