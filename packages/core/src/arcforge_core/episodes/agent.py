"""The policy as an agent: renders conversations, asks the engine, and records what was sampled, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from arcforge_core.chat.load import build_chat_template
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Fork, Message, Tool
from arcforge_core.contracts.engine import GenerationOutput, SamplingParams
from arcforge_core.contracts.environment import Failure, Reply
from arcforge_core.data.split import key_hash
from arcforge_core.episodes.lockstep import Lockstep
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer

ATTEMPTS = 2
"""At a turn that the engine does not finish."""


class Dialogue(Protocol):
    """Renders conversations into prompts, and parses what was sampled into replies."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> list[int]:
        """Returns the prompt of a conversation, with the generation prompt at its end."""

    def extend(
        self,
        ids: Sequence[int],
        prompt_length: int,
        news: Sequence[Message],
        tools: Sequence[Tool],
        options: ChatOptions | None = None,
    ) -> list[int] | None:
        """Returns `ids`, which end with a reply, extended by further messages; None where the format forbids it."""

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Returns what a completion says."""


@dataclass(frozen=True)
class ChatDialogue:
    """A conversation in a chat template."""

    template: ChatTemplate
    options: ChatOptions

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        return self.template.stop_ids

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> list[int]:
        """Renders."""
        return list(self.template.render(messages, tools, options or self.options, generation_prompt=True).ids)

    def extend(
        self,
        ids: Sequence[int],
        prompt_length: int,
        news: Sequence[Message],
        tools: Sequence[Tool],
        options: ChatOptions | None = None,
    ) -> list[int] | None:
        """Bridges to the next turn."""
        rendered = self.template.bridge_to_next_turn(
            ids[:prompt_length], ids[prompt_length:], news, tools, options or self.options
        )
        return None if isinstance(rendered, Fork) else list(rendered.ids)

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Parses reasoning, content and calls; calls that are not well-formed are no calls."""
        parsed = self.template.parse(completion, prompt, tools)
        message = parsed.message
        return Reply(message.content, message.reasoning or "", message.tool_calls, parsed=parsed)


@dataclass(frozen=True)
class TextDialogue:
    """A conversation in plain text: the contents of its messages, concatenated into one document."""

    tokenizer: Tokenizer

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end of a text."""
        return (self.tokenizer.eos_id,)

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> list[int]:
        """Encodes.

        Raises:
            ConfigError: there are tools, which plain text cannot render.
        """
        if tools:
            raise ConfigError("environment", tools[0].name, "offers tools, and the tokenizer has no chat template")
        return [self.tokenizer.bos_id, *self.tokenizer.encode("".join(message.content for message in messages))]

    def extend(
        self,
        ids: Sequence[int],
        prompt_length: int,
        news: Sequence[Message],
        tools: Sequence[Tool],
        options: ChatOptions | None = None,
    ) -> list[int] | None:
        """Continues a reply that was cut off; nothing can follow the end of a text."""
        if ids[-1] in self.stop_ids:
            return None
        return [*ids, *self.tokenizer.encode("".join(message.content for message in news))]

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Decodes."""
        return Reply(self.tokenizer.decode([token for token in completion if token not in self.stop_ids]))


def build_dialogue(tokenizer: Tokenizer, thinking: bool, field: str = "rollout.thinking") -> Dialogue:
    """Returns a dialogue in the chat template if the tokenizer has one, else in plain text.

    Raises:
        ConfigError: thinking without a chat template.
    """
    try:
        template = build_chat_template(tokenizer)
    except ConfigError as error:
        if thinking:
            raise ConfigError(field, "on", f"needs a chat template: {error}") from error
        return TextDialogue(tokenizer)
    return ChatDialogue(template, ChatOptions(enable_thinking=thinking))


@dataclass(frozen=True)
class SamplingSetup:
    """How a policy samples its replies.

    Attributes:
        dialogue: renders and parses.
        max_new_tokens: of a reply.
        temperature: 0 is greedy.
        positions: that the model has.
        sampled_logprobs: whether recorded log-probs are those of the sampled distribution; see `SamplingParams`.
    """

    dialogue: Dialogue
    max_new_tokens: int
    temperature: float
    positions: int
    sampled_logprobs: bool = False


@dataclass
class Recording:
    """The tokens of a branch, appended turn by turn; the same fields as `Branch`."""

    ids: list[int] = field(default_factory=list)
    sampled: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def append(self, ids: Sequence[int], sampled: bool, logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Adds tokens that were all sampled, or all read."""
        self.ids += ids
        self.sampled += [sampled] * len(ids)
        self.logprobs += logprobs
        self.versions += versions


class PolicyAgent:
    """The policy in one rollout; implements `contracts.environment.Agent`.

    A conversation that continues the one before keeps its tokens. One that was changed, or that the template renders
    otherwise, begins another branch. A turn that the engine aborts or that makes it raise is asked for once more, with
    the same seed; then the agent has failed.

    Args:
        lockstep: takes its requests to the engine.
        number: of the rollout; orders the batch.
        setup: how it samples.
        seed: prefix of its seeds: reply k is sampled with ``key_hash(f"{seed}/{k}") >> 1``.

    Attributes:
        truncated: whether the last reply was cut off.
        tools: that it was offered last.
        failure: of the engine; further replies are empty.
    """

    def __init__(self, lockstep: Lockstep, number: int, setup: SamplingSetup, seed: str) -> None:
        self.lockstep, self.number, self.setup, self.seed = lockstep, number, setup, seed
        self.truncated = False
        self.tools: Sequence[Tool] = ()
        self.failure: Failure | None = None
        self._recordings: list[Recording] = []
        self._known: list[Message] = []  # before the last reply
        self._said: tuple[Message, ...] = ()  # the messages that a conversation may have for it
        self._prompt_length = 0
        self._replies = 0

    @property
    def branches(self) -> list[Branch]:
        """The tokens read and sampled so far; a conversation that had no room for a reply has a branch without any."""
        return [Branch(f"{number}", **vars(recording)) for number, recording in enumerate(self._recordings)]

    @property
    def recorded(self) -> list[Branch]:
        """The branches with tokens."""
        return [branch for branch in self.branches if branch.ids]

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Samples the next turn."""
        self.tools = tools
        if self.failure is not None:
            return Reply(finish_reason="error")
        prompt = self._prompt(messages, tools, options)
        setup = self.setup
        room = setup.positions - len(prompt)
        if room < 1:
            self.truncated = True
            return Reply(finish_reason="length")
        seed = key_hash(f"{self.seed}/{self._replies}") >> 1
        params = SamplingParams(
            min(setup.max_new_tokens, room),
            setup.temperature,
            stop_token_ids=setup.dialogue.stop_ids,
            seed=seed,
            sampled_logprobs=setup.sampled_logprobs,
        )
        output = await self._sample(prompt, params)
        if isinstance(output, Reply):
            return output
        self._record(prompt, output)
        self.truncated = output.finish_reason != "stop"
        reply = setup.dialogue.parse(output.token_ids, prompt, tools)
        if self.truncated:
            reply = replace(reply, calls=(), finish_reason="length")
        self._known = [*messages]
        self._said = (reply.message, *([reply.parsed.message] if reply.parsed else []))
        self._prompt_length = len(prompt)
        self._replies += 1
        return reply

    async def _sample(self, prompt: list[int], params: SamplingParams) -> GenerationOutput | Reply:
        """Asks the engine; returns an empty reply where it fails `ATTEMPTS` times."""
        for _ in range(ATTEMPTS):
            try:
                output = await self.lockstep.ask(self.number, prompt, params)
            except (ConfigError, CheckpointError):  # no request can be served
                raise
            except Exception as error:
                ending, reason = "error", f"{type(error).__name__}: {error}"
            else:
                if output.finish_reason not in ("abort", "error"):
                    return output
                ending = output.finish_reason
                reason = f"the engine ended the request with {ending} after {len(output.token_ids)} tokens"
        self.failure = Failure("engine", reason)
        return Reply(finish_reason=ending)

    def _prompt(self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None) -> list[int]:
        """Returns the prompt: an extension of the last branch if possible, else the start of another one."""
        dialogue, known = self.setup.dialogue, len(self._known)
        continued = self._said and len(messages) > known + 1 and messages[known] in self._said
        if continued and [*messages[:known]] == self._known:
            ids, news = self._recordings[-1].ids, messages[known + 1 :]
            extended = dialogue.extend(ids, self._prompt_length, news, tools, options)
            if extended is not None:
                return extended
        self._recordings.append(Recording())
        return dialogue.prompt(messages, tools, options)

    def _record(self, prompt: list[int], output: GenerationOutput) -> None:
        recording, count = self._recordings[-1], len(output.token_ids)
        read = prompt[len(recording.ids) :]
        recording.append(read, False, [0.0] * len(read), [-1] * len(read))
        versions = [version for version, tokens in output.weight_versions for _ in range(tokens)]
        logprobs = [min(logprob, 0.0) for logprob in output.logprobs]  # rounding may leave them above 0
        recording.append(output.token_ids, True, logprobs, versions or [output.weight_version] * count)
