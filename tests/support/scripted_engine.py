"""An engine that says what a function of the prompt's text tells it, for tests of what is around a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.tokenizer.tokenizer import Tokenizer

Script = Callable[[str, SamplingParams], str]
"""Text of a prompt and how to sample, to the text of a completion; special tokens written out."""


class ScriptedEngine:
    """An `Engine` without a model.

    Args:
        tokenizer: of prompts and completions.
        script: what it says. A completion without a token that ends it, or longer than allowed, ends at a limit.

    Attributes:
        rounds: prompts of each call of `generate`.
    """

    weight_version = 0

    def __init__(self, tokenizer: Tokenizer, script: Script) -> None:
        self._tokenizer, self._script = tokenizer, script
        self.rounds: list[list[str]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> list[GenerationOutput]:
        """Returns what the script says to each prompt; every token has a log-prob of -1."""
        per_prompt = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        texts = [self._tokenizer.decode(list(prompt)) for prompt in prompts]
        self.rounds.append(texts)
        outputs = []
        for text, param in zip(texts, per_prompt, strict=True):
            ids = self._tokenizer.encode(self._script(text, param), allow_special=True)[: param.max_new_tokens]
            reason = "stop" if ids[-1:] and ids[-1] in param.stop_token_ids else "length"
            outputs.append(GenerationOutput(ids, [-1.0] * len(ids), reason, 0))
        return outputs

    def update_weights(
        self, state: Any, *, version: int | None = None, checksum: str | None = None, reset: bool = False
    ) -> None:
        """There are none."""
        raise NotImplementedError("a script has no weights")
