"""The policy as an agent: renders conversations, asks the engine, and records what was sampled, token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from arcforge_core.chat.load import build_chat_template
from arcforge_core.contracts.algorithm import Branch
from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Fork, Message, OpenTurn, PicturedMessage, Tool
from arcforge_core.contracts.engine import GenerationOutput, Matcher, SamplingParams
from arcforge_core.contracts.environment import Agent, Failure, Reply
from arcforge_core.data.split import key_hash
from arcforge_core.episodes.asking import Asking
from arcforge_core.errors import CheckpointError, ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer

ATTEMPTS = 2
"""At a turn that the engine does not finish."""


@dataclass(frozen=True)
class TurnPrompt:
    """Tokens to read before a reply.

    Attributes:
        ids: all tokens of a conversation that begins; those after the recorded ones of one that continues.
        turn: state from which the dialogue continues after the reply.
    """

    ids: Sequence[int]
    turn: OpenTurn


class Dialogue(Protocol):
    """Renders conversations into prompts, and parses what was sampled into replies."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that end a reply."""

    def prompt(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> TurnPrompt:
        """Returns the prompt of a conversation, with the generation prompt at its end."""

    def extend(
        self, turn: OpenTurn, news: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> TurnPrompt | None:
        """Returns the tokens that follow a completed turn; None where the format forbids it."""

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
    ) -> TurnPrompt:
        """Renders."""
        ids = self.template.render(messages, tools, options or self.options, generation_prompt=True).ids
        return TurnPrompt(ids, self.template.open_turn(ids, tools))

    def extend(
        self, turn: OpenTurn, news: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> TurnPrompt | None:
        """Continues the turn in the template's format."""
        found = self.template.next_turn(turn, news, tools, options or self.options)
        return None if isinstance(found, Fork) else TurnPrompt(found.rendered.ids, found.turn)

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Parses reasoning, content and calls; calls that are not well-formed are no calls."""
        parsed = self.template.parse(completion, prompt, tools)
        message = parsed.message
        return Reply(message.content, message.reasoning or "", message.tool_calls, parsed=parsed)


NO_TURN = OpenTurn(None, False, None)
"""Of plain text, which has no turns."""


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
    ) -> TurnPrompt:
        """Encodes.

        Raises:
            ConfigError: there are tools, which plain text cannot render.
        """
        if tools:
            raise ConfigError("environment", tools[0].name, "offers tools, and the tokenizer has no chat template")
        return TurnPrompt([self.tokenizer.bos_id, *self._encode(messages)], NO_TURN)

    def extend(
        self, turn: OpenTurn, news: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None = None
    ) -> TurnPrompt | None:
        """Continues a reply that was cut off; nothing can follow the end of a text."""
        return None if turn.completion_ids[-1] in self.stop_ids else TurnPrompt(self._encode(news), NO_TURN)

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        return self.tokenizer.encode("".join(message.content for message in messages))

    def parse(self, completion: Sequence[int], prompt: Sequence[int], tools: Sequence[Tool]) -> Reply:
        """Decodes."""
        return Reply(self.tokenizer.decode([token for token in completion if token not in self.stop_ids]))


THINKING = {
    "off": ChatOptions(enable_thinking=False),
    "on": ChatOptions(),
    "interleaved": ChatOptions(given=frozenset({"enable_thinking", "clear_thinking"})),
    "preserved": ChatOptions(clear_thinking=False, given=frozenset({"enable_thinking"})),
}
"""Rendering options of the thinking modes. ``on`` leaves the history to the template's own default; ``interleaved``:
reasoning before each reply and call, dropped at the next message of a user; ``preserved``: all of it stays."""


def build_dialogue(tokenizer: Tokenizer, thinking: str, field: str = "rollout.thinking") -> Dialogue:
    """Returns a dialogue in the chat template if the tokenizer has one, else in plain text.

    Args:
        tokenizer: of the model.
        thinking: one of `THINKING`.
        field: named by errors.

    Raises:
        ConfigError: thinking without a chat template.
    """
    try:
        template = build_chat_template(tokenizer)
    except ConfigError as error:
        if thinking != "off":
            raise ConfigError(field, thinking, f"needs a chat template: {error}") from error
        return TextDialogue(tokenizer)
    return ChatDialogue(template, THINKING[thinking])


@dataclass(frozen=True)
class SamplingSetup:
    """How a policy samples its replies.

    Attributes:
        dialogue: renders and parses.
        max_new_tokens: of a reply.
        temperature: 0 is greedy.
        positions: that the model has.
        sampled_logprobs: whether recorded log-probs are those of the sampled distribution; see `SamplingParams`.
        others: makes the further agents of a rollout, by name, from the policy in it.
        experts: whether the engine's choices of experts are recorded.
        matcher: restricts the tokens of a reply; see `SamplingParams`.
    """

    dialogue: Dialogue
    max_new_tokens: int
    temperature: float
    positions: int
    sampled_logprobs: bool = False
    others: Mapping[str, Callable[[PolicyAgent], Agent]] = field(default_factory=dict)
    experts: bool = False
    matcher: Callable[[], Matcher] | None = None


class PolicyAgent:
    """The policy in one rollout; implements `contracts.environment.Agent`.

    A conversation that continues the one before keeps its tokens. One that was changed, or that the template renders
    otherwise, begins another branch. A turn that the engine aborts or that makes it raise is asked for once more, with
    the same seed; then the agent has failed. So it has if a token comes without a finite log-probability.

    Args:
        lockstep: takes its requests to the engine.
        number: of the rollout; orders the batch.
        setup: how it samples.
        seed: prefix of its seeds: reply k is sampled with ``key_hash(f"{seed}/{k}") >> 1``. It names the rollout's
            session in the engine, too.

    Attributes:
        truncated: whether the last reply was cut off.
        tools: that it was offered last.
        failure: of the engine; further replies are empty.
    """

    def __init__(self, lockstep: Asking, number: int, setup: SamplingSetup, seed: str) -> None:
        self.lockstep, self.number, self.setup, self.seed = lockstep, number, setup, seed
        self.truncated = False
        self.tools: Sequence[Tool] = ()
        self.failure: Failure | None = None
        self._branches: list[Branch] = []
        self._known: list[Message] = []  # before the last reply
        self._said: tuple[Message, ...] = ()  # the messages that a conversation may have for it
        self._turn = NO_TURN  # with the last reply
        self._ids: list[int] = []  # of the last branch, as engines read them
        self._replies = 0

    @property
    def branches(self) -> list[Branch]:
        """The tokens read and sampled so far; a conversation that had no room for a reply has a branch without any."""
        return [branch.named(branch.branch_id) for branch in self._branches]

    @property
    def others(self) -> dict[str, Agent]:
        """The further agents of its rollout, as they are at its beginning."""
        return {name: make(self) for name, make in self.setup.others.items()}

    @property
    def recorded(self) -> list[Branch]:
        """The branches with tokens."""
        return [branch for branch in self.branches if len(branch)]

    async def reply(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> Reply:
        """Samples the next turn.

        Raises:
            ConfigError: a message has pictures, which no chat template has.
        """
        if any(isinstance(message, PicturedMessage) for message in messages):
            raise ConfigError("agents", "an engine", "cannot see pictures: name url, a server that can")
        self.tools = tools
        if self.failure is not None:
            return Reply(finish_reason="error")
        news = self._read(messages, tools, options)
        prompt = [*self._ids, *news.ids]
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
            experts_from=self._branches[-1].routed if setup.experts else None,
            matcher=setup.matcher,
        )
        output = await self._sample(prompt, params)
        if isinstance(output, Reply):
            return output
        try:
            self._record(news, output)
        except ValueError as error:  # log-probabilities that are missing or not finite
            self.failure = Failure("engine", str(error))
            return Reply(finish_reason="error")
        self._ids += [*news.ids, *output.token_ids]
        self.truncated = output.finish_reason != "stop"
        reply = setup.dialogue.parse(output.token_ids, prompt, tools)
        if self.truncated:
            reply = replace(reply, calls=(), finish_reason="length")
        self._known = [*messages]
        self._said = (reply.message, *([reply.parsed.message] if reply.parsed else []))
        self._replies += 1
        return reply

    async def _sample(self, prompt: list[int], params: SamplingParams) -> GenerationOutput | Reply:
        """Asks the engine; returns an empty reply where it fails `ATTEMPTS` times."""
        for _ in range(ATTEMPTS):
            try:
                output = await self.lockstep.ask(self.number, prompt, params, self.seed)
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

    def _read(self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None) -> TurnPrompt:
        """Returns the tokens that continue the last branch if possible; else begins another one."""
        dialogue, known = self.setup.dialogue, len(self._known)
        continued = self._said and len(messages) > known + 1 and messages[known] in self._said
        if continued and [*messages[:known]] == self._known:
            extended = dialogue.extend(self._turn, messages[known + 1 :], tools, options)
            if extended is not None:
                return extended
        self._branches.append(Branch(str(len(self._branches))))
        self._ids = []
        return dialogue.prompt(messages, tools, options)

    def _record(self, news: TurnPrompt, output: GenerationOutput) -> None:
        branch = self._branches[-1]
        versions = [version for version, tokens in output.weight_versions for _ in range(tokens)]
        branch.read(news.ids)
        branch.sample(output.token_ids, output.logprobs, versions or [output.weight_version] * len(output.token_ids))
        if output.experts is not None:
            branch.route(output.experts)
        self._turn = news.turn.completed(output.token_ids)
