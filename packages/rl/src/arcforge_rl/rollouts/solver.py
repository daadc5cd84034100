"""The policy as an agent: renders conversations, asks the engine, and records what was sampled, token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from arcforge_core.chat.load import build_chat_template
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Fork, Message, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Reply
from arcforge_core.data.split import key_hash
from arcforge_core.data.tokenizer import Tokenizer
from arcforge_core.errors import ConfigError
from arcforge_rl.rollouts.turns import Turns


class Speaker(Protocol):
    """Turns conversations into prompts, and what is sampled into replies."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Returns the prompt of a conversation, up to where the reply begins."""

    def extend(
        self, ids: Sequence[int], prompt_length: int, news: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """Returns `ids`, which end with a reply, with further messages behind; None where the format forbids it."""

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Returns what a completion says."""


@dataclass(frozen=True)
class ChatSpeaker:
    """Speaks a chat template."""

    template: ChatTemplate
    options: ChatOptions

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        return self.template.stop_ids

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Renders."""
        return list(self.template.render(messages, tools, self.options, generation_prompt=True).ids)

    def extend(
        self, ids: Sequence[int], prompt_length: int, news: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """Bridges to the next turn."""
        rendered = self.template.bridge_to_next_turn(
            ids[:prompt_length], ids[prompt_length:], news, tools, self.options
        )
        return None if isinstance(rendered, Fork) else list(rendered.ids)

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Parses reasoning, content and calls; calls that are not well-formed are no calls."""
        message = self.template.parse(completion, prompt, tools).message
        return Reply(message.content, message.reasoning or "", message.tool_calls)


@dataclass(frozen=True)
class TextSpeaker:
    """Speaks plain text: contents of messages one behind the other, as a document of its own."""

    tokenizer: Tokenizer

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end of a text."""
        return (self.tokenizer.eos_id,)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Encodes.

        Raises:
            ConfigError: there are tools, which plain text has no words for.
        """
        if tools:
            raise ConfigError("environment", tools[0].name, "offers tools, and the tokenizer has no chat template")
        return [self.tokenizer.bos_id, *self.tokenizer.encode("".join(message.content for message in messages))]

    def extend(
        self, ids: Sequence[int], prompt_length: int, news: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """Goes on behind a reply that was cut off; behind the end of a text nothing can stand."""
        if ids[-1] in self.stop_ids:
            return None
        return [*ids, *self.tokenizer.encode("".join(message.content for message in news))]

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Decodes."""
        return Reply(self.tokenizer.decode([token for token in completion if token not in self.stop_ids]))


def build_speaker(tokenizer: Tokenizer, thinking: bool, field: str = "rollout.thinking") -> Speaker:
    """Returns the chat template's speaker where the tokenizer has one, else plain text.

    Raises:
        ConfigError: thinking, and no chat template.
    """
    try:
        template = build_chat_template(tokenizer)
    except ConfigError as error:
        if thinking:
            raise ConfigError(field, "on", f"needs a chat template: {error}") from error
        return TextSpeaker(tokenizer)
    return ChatSpeaker(template, ChatOptions(enable_thinking=thinking))


@dataclass(frozen=True)
class Manner:
    """How a policy samples.

    Attributes:
        speaker: words and tokens.
        max_new_tokens: of a reply.
        temperature: 0 is greedy.
        positions: that the model has.
        seed: of all rollouts of a step.
        logprob_noise: standard deviation of an error that recorded log-probs get, in nats: a fault that is asked for.
    """

    speaker: Speaker
    max_new_tokens: int
    temperature: float
    positions: int
    seed: str
    logprob_noise: float = 0.0


class Solver:
    """One rollout's policy; implements `contracts.environment.Agent`.

    A conversation that goes on where it was keeps its tokens; one that was changed, or that the template renders
    otherwise, begins another branch.

    Attributes:
        branches: what was read and sampled so far.
        truncated: whether the last reply was cut off.
    """

    def __init__(self, turns: Turns, number: int, manner: Manner) -> None:
        self.turns, self.number, self.manner = turns, number, manner
        self.branches: list[Branch] = []
        self.truncated = False
        self._known: list[Message] = []
        self._prompt_length = 0
        self._replies = 0

    @property
    def recorded(self) -> list[Branch]:
        """The branches, but one that was begun and had no room."""
        return [branch for branch in self.branches if branch.ids]

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Reply:
        """Samples the next turn."""
        prompt = self._prompt(list(messages), tools)
        manner = self.manner
        room = manner.positions - len(prompt)
        if room < 1:
            self.truncated = True
            return Reply(finish_reason="length")
        seed = key_hash(f"{manner.seed}/{self.number}/{self._replies}") >> 1
        params = SamplingParams(
            min(manner.max_new_tokens, room), manner.temperature, stop_token_ids=manner.speaker.stop_ids, seed=seed
        )
        output = await self.turns.ask(self.number, prompt, params)
        self._record(prompt, output, self._misread(output.logprobs, seed))
        self.truncated = output.finish_reason != "stop"
        reply = manner.speaker.parse(output.token_ids, prompt, tools)
        if self.truncated:
            reply = Reply(reply.text, reply.reasoning, (), "length")
        self._known = [*messages, reply.message]
        self._prompt_length = len(prompt)
        self._replies += 1
        return reply

    def _prompt(self, messages: list[Message], tools: Sequence[Tool]) -> list[int]:
        """Returns the prompt, as an extension of the last branch where that can be; else a branch is begun."""
        speaker, known = self.manner.speaker, self._known
        if self.branches and len(messages) > len(known) and messages[: len(known)] == known:
            extended = speaker.extend(self.branches[-1].ids, self._prompt_length, messages[len(known) :], tools)
            if extended is not None:
                return extended
        self.branches.append(Branch(f"{len(self.branches)}", [], [], [], []))
        return speaker.prompt(messages, tools)

    def _misread(self, logprobs: Sequence[float], seed: int) -> list[float]:
        """Returns log-probs with the error that is asked for, none of them above 0."""
        noise = self.manner.logprob_noise
        if noise:
            draw = random.Random(seed)
            logprobs = [logprob + draw.gauss(0.0, noise) for logprob in logprobs]
        return [min(logprob, 0.0) for logprob in logprobs]

    def _record(self, prompt: list[int], output: GenerationOutput, logprobs: list[float]) -> None:
        branch, count = self.branches[-1], len(output.token_ids)
        read = len(prompt) - len(branch.ids)
        versions = [version for version, tokens in output.weight_versions for _ in range(tokens)]
        versions = versions or [output.weight_version] * count
        self.branches[-1] = Branch(
            branch.branch_id,
            [*prompt, *output.token_ids],
            [*branch.sampled, *[False] * read, *[True] * count],
            [*branch.logprobs, *[0.0] * read, *logprobs],
            [*branch.versions, *[-1] * read, *versions],
        )
