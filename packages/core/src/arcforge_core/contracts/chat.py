"""The chat contracts: messages to token ids and back.

A `ChatTemplate` renders messages to ids and records the author of each; a `ChatParser` turns a streamed completion
into reasoning, content and tool calls. Engines and training use the ids; text is never tokenised twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer

ROLES = ("system", "user", "assistant", "tool")
TEMPLATE = "template"
"""Author of tokens that the template writes: role tokens, tags around a tool's result, the start of a turn."""
RECORDED = "recorded"
"""Author of tokens copied from a recording, which knows their real authors."""


@dataclass(frozen=True)
class ToolCall:
    """A tool call by the assistant.

    Attributes:
        name: the function.
        arguments: JSON values by parameter.
        id: referenced by tool results; not rendered by templates that match results to calls by order.
    """

    name: str
    arguments: Mapping[str, Any]
    id: str | None = None


@dataclass(frozen=True)
class Tool:
    """A function that may be called.

    Attributes:
        definition: as in OpenAI's API, ``{"type": "function", "function": {"name", "description", "parameters"}}``, or
            the inner mapping alone. Rendered unchanged, key order included.

    Raises:
        ConfigError: it has no name, or its parameters are not a schema.
    """

    definition: Mapping[str, Any]

    def __post_init__(self) -> None:
        if not isinstance(self._function.get("name"), str) or not self._function["name"]:
            raise ConfigError("tools", self.definition, "must have a name: {'type': 'function', 'function': {...}}")
        if not isinstance(self._function.get("parameters") or {}, Mapping):
            raise ConfigError("tools", self.definition, f"parameters of {self.name} must be a JSON schema, an object")

    @property
    def _function(self) -> Mapping[str, Any]:
        function = self.definition.get("function", self.definition)
        return function if isinstance(function, Mapping) else {}

    @property
    def name(self) -> str:
        return str(self._function["name"])

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Returns the JSON schema of the arguments; empty when the tool has none."""
        return self._function.get("parameters") or {}


@dataclass(frozen=True)
class Message:
    """One message.

    Attributes:
        role: one of `ROLES`.
        content: its text.
        reasoning: the assistant's reasoning. None: not given; a template may then look for it in the content.
        tool_calls: calls of the assistant, after its content.
        tool_call_id: the call that a tool's result answers.
        trained: False excludes an assistant's message from the loss, such as an error that later turns correct.

    Raises:
        ConfigError: an unknown role, or reasoning or calls in a message that is not the assistant's.
    """

    role: str
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    trained: bool = True

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError("message.role", self.role, f"must be one of {', '.join(ROLES)}")
        if self.role != "assistant" and (self.reasoning is not None or self.tool_calls):
            raise ConfigError("message.role", self.role, "must be assistant in a message with reasoning or tool calls")


@dataclass(frozen=True)
class PicturedMessage(Message):
    """A message with pictures after its text. Servers of chat completions read it; chat templates have no pictures.

    Attributes:
        pictures: PNG files.
    """

    pictures: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class ChatOptions:
    """Rendering options.

    Attributes:
        enable_thinking: whether the generation prompt opens the reasoning.
        clear_thinking: drop the reasoning of turns before the last user message (GLM-5's interleaved thinking). False
            keeps all of it (preserved thinking).
        reasoning_effort: a level such as ``low`` for Jinja templates that have levels; others do not read it.
        extra: further variables of a Jinja template. GLM-5's own template has none.
        given: names of the switches that a request turned on itself. A Jinja template receives these too: its own
            default may be off.
    """

    enable_thinking: bool = True
    clear_thinking: bool = True
    reasoning_effort: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    given: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Rendered:
    """Token ids and their origins; all four fields have one entry per token.

    Attributes:
        ids: the tokens.
        authors: a role of `ROLES`, `TEMPLATE` or `RECORDED`. The assistant's tokens are those that the model would have
            sampled: reasoning, content, calls and the token that ends its turn.
        messages: index of the message that the token belongs to, -1 for none.
        trained: whether the token is a target of supervised training: written by the assistant in a message whose
            `trained` is not False, and rendered as it was sampled. Always False in a prompt (`generation_prompt`).
    """

    ids: tuple[int, ...]
    authors: tuple[str, ...]
    messages: tuple[int, ...]
    trained: tuple[bool, ...]

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.authors), len(self.messages), len(self.trained)}
        if len(lengths) > 1:
            raise ValueError(f"ids, authors, messages and trained must have one length, not {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.ids)


def extend(recorded: tuple[int, ...], rendered: Rendered) -> Rendered:
    """Returns recorded ids followed by rendered ones."""
    count = len(recorded)
    return Rendered(
        recorded + rendered.ids,
        (RECORDED,) * count + rendered.authors,
        (-1,) * count + rendered.messages,
        (False,) * count + rendered.trained,
    )


@dataclass(frozen=True)
class OpenTurn:
    """A template's knowledge of recorded ids, enough to continue them, so that a turn costs its own tokens alone.

    Made by `ChatTemplate.open_turn`, then by each `next_turn`. Several continuations may begin at one.

    Attributes:
        tools: the prompt's tools in a form of the template's own; None if the ids show others than the caller named.
        thought: whether the ids contain reasoning, or the tag that opens it.
        thinking: whether the prompt has opened the reasoning of its last turn; False if it has closed it, None if it
            leaves this to the model.
        completion_ids: tokens sampled in the last turn.
        rendered: the ids end with a message that was rendered, up to the token that ends it; nothing was sampled.
    """

    tools: str | None
    thought: bool
    thinking: bool | None
    completion_ids: tuple[int, ...] = ()
    rendered: bool = False

    def completed(self, completion_ids: Sequence[int]) -> OpenTurn:
        """Returns the turn with what was sampled in it."""
        return replace(self, completion_ids=tuple(completion_ids))


@dataclass(frozen=True)
class NextTurn:
    """The continuation of recorded ids.

    Attributes:
        rendered: the tokens after the recorded ones, none of which was sampled: the end of the turn if the model has
            not written it, the new messages, and the start of the assistant's next turn.
        turn: the next turn, without a completion.
    """

    rendered: Rendered
    turn: OpenTurn


@dataclass(frozen=True)
class RenderedTurn:
    """A place inside a rendering that another conversation may continue.

    Attributes:
        message: index of the assistant's message that ends there.
        length: number of rendered tokens up to there.
        turn: the template's knowledge there.
    """

    message: int
    length: int
    turn: OpenTurn


@dataclass(frozen=True)
class Fork:
    """The reason why recorded ids cannot be extended: the next turn must be re-rendered as a new sequence.

    Attributes:
        reason: in words.
    """

    reason: str


@dataclass(frozen=True)
class Delta:
    """An increment of the parsed answer: one of reasoning, content, or a part of a call.

    Attributes:
        reasoning: new text of the reasoning.
        content: new text of the content.
        call: index of the call that the next two belong to.
        name: the call's name, in its first delta.
        arguments: the next characters of the call's arguments, a JSON object.
    """

    reasoning: str = ""
    content: str = ""
    call: int | None = None
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Parsed:
    """A parsed completion.

    Attributes:
        message: the assistant's message.
        flaws: deviations from the format, in words; empty for a well-formed completion.
    """

    message: Message
    flaws: tuple[str, ...] = ()


class ChatParser(Protocol):
    """Parses one completion, in pieces of any size. Its target is called as below, once for every completion.

    ``target(config, tools=(), *, tokenizer=None, thinking=None, ends=())``: `tools` give the types of arguments; the
    tokenizer is needed for ids; `thinking` is True if the prompt has opened the reasoning, False if it has closed it,
    None if it leaves this to the model; nothing is read after the tokens in `ends`.

    The concatenated deltas do not depend on the cutting. In ids a tag counts only as its own token, if the tokenizer
    has one; in text, wherever it is written.
    """

    @staticmethod
    def normalize(call: ToolCall, tools: Sequence[Tool] = ()) -> ToolCall:
        """Returns the call as parsing its rendering would give it; idempotent."""

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Takes sampled ids.

        Raises:
            ConfigError: the parser has no tokenizer.
        """

    def feed_text(self, text: str) -> list[Delta]:
        """Takes sampled text, for engines that do not return ids."""

    def finish(self) -> list[Delta]:
        """Ends the completion and flushes text that was held back."""

    @property
    def parsed(self) -> Parsed:
        """Returns the sum of all deltas so far."""


class ChatTemplate(Protocol):
    """Renders messages to token ids. Its target is called as ``target(config, tokenizer)``.

    Raises:
        ConfigError: the tokenizer lacks special tokens that the template writes; the message names them.
    """

    tokenizer: Tokenizer
    stop_ids: tuple[int, ...]
    """Tokens that end the assistant's turn."""
    jinja: str
    """The template in Jinja, for ``chat_template.jinja`` of a Hugging Face directory."""
    keeps_reasoning: bool
    """Whether the template renders reasoning."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
        *,
        generation_prompt: bool = False,
        end_turn: bool = False,
    ) -> Rendered:
        """Returns the token ids of a conversation.

        Args:
            messages: in order.
            tools: tools that the assistant may call.
            options: `ChatOptions()` when None.
            generation_prompt: begin the assistant's next turn.
            end_turn: write the token that ends the last turn, where the format leaves it to the next message; requires
                an assistant's message at the end.

        Raises:
            ConfigError: the template cannot express the conversation or an option.
        """

    def normalize(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> list[Message]:
        """Returns the messages as they are parsed back from their rendering; idempotent."""

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> ChatParser:
        """Returns a parser for the completion of a prompt."""

    def parse(self, completion_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        """Parses a whole completion with a fresh `parser`."""

    def open_turn(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> OpenTurn:
        """Reads a prompt that ends with the start of the assistant's turn; `tools` are those it was rendered with."""

    def next_turn(
        self,
        turn: OpenTurn,
        new_messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
    ) -> NextTurn | Fork:
        """Returns the tokens that continue a completed turn, or why there are none.

        Its work is that of the completion and the new messages, however long the recorded ids are. Tokens of the new
        messages are numbered by their index in `new_messages`.
        """

    def turns_within(
        self, before: OpenTurn, rendered: Rendered, messages: Sequence[Message], options: ChatOptions | None = None
    ) -> Sequence[RenderedTurn]:
        """Returns the ends of the assistant's messages in a prompt that later messages of it do not change, in order.

        A conversation with the same messages up to one of them continues its tokens by `next_turn`. Templates whose
        renderings cannot be cut return none.

        Args:
            before: the turn that `rendered` continues; at the start of a prompt one without ids.
            rendered: of `messages`, by `next_turn` or `render`.
            messages: in order.
            options: of the rendering.
        """

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
    ) -> Rendered | Fork:
        """Returns the next turn's prompt as an extension of recorded ids, or why there is none.

        The result is exactly ``prompt_ids + completion_ids``, followed by what `next_turn` returns.
        """
