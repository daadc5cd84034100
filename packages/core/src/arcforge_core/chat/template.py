"""The base of our chat templates: spans to token ids, completions to messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from arcforge_core.chat.parser import Parser, split_reasoning
from arcforge_core.chat.spans import Span, encode_spans
from arcforge_core.contracts.chat import ChatOptions, Fork, Message, Parsed, Rendered, Tool, ToolCall
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class RecordedTurn:
    """A prompt and what was sampled after it.

    Attributes:
        prompt_ids: tokens.
        completion_ids: tokens.
        parser: of this completion, without input so far.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    parser: Parser

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens."""
        return (*self.prompt_ids, *self.completion_ids)

    def read(self) -> Parser:
        """Returns the parser after the completion; to be called once."""
        self.parser.feed(self.completion_ids)
        self.parser.finish()
        return self.parser


class Template(ABC):
    """A `ChatTemplate` that renders to spans, and whose completions a `Parser` reads."""

    tokenizer: Tokenizer

    @abstractmethod
    def conversation_spans(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions, prompt: bool, end_turn: bool
    ) -> list[Span]:
        """Returns the rendering of a conversation; the arguments are those of `render`, checked."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
        *,
        generation_prompt: bool = False,
        end_turn: bool = False,
    ) -> Rendered:
        """Returns the token ids of a conversation; see `ChatTemplate.render`."""
        if end_turn and (generation_prompt or not messages or messages[-1].role != "assistant"):
            raise ConfigError("end_turn", True, "requires an assistant's message at the end and no generation prompt")
        spans = self.conversation_spans(messages, tools, options or ChatOptions(), generation_prompt, end_turn)
        return encode_spans(self.tokenizer, spans, is_prompt=generation_prompt)

    @abstractmethod
    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parser:
        """Returns a parser for the completion of a prompt."""

    @abstractmethod
    def bridge(
        self, turn: RecordedTurn, new_messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> Rendered | Fork:
        """Returns the next turn's prompt; the arguments are those of `bridge_to_next_turn`, checked."""

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
    ) -> Rendered | Fork:
        """Returns the next turn's prompt as an extension of recorded ids, or why there is none."""
        if not new_messages:
            raise ConfigError("new_messages", new_messages, "must contain at least one message")
        turn = RecordedTurn(tuple(prompt_ids), tuple(completion_ids), self.parser(prompt_ids, tools))
        return self.bridge(turn, new_messages, tools, options or ChatOptions())

    def parse(self, completion_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        """Returns a whole completion as `parser` reads it."""
        return RecordedTurn((), tuple(completion_ids), self.parser(prompt_ids, tools)).read().parsed


def normalized(
    messages: Sequence[Message], shown: Callable[[int], bool], normalize: Callable[[ToolCall], ToolCall]
) -> list[Message]:
    """Returns messages without what no rendering keeps: white space around texts, call ids, `trained`.

    Args:
        messages: in order; reasoning inside an assistant's content moves to its field.
        shown: whether the reasoning of the message of this index is rendered; it is emptied otherwise.
        normalize: `ChatParser.normalize` with the tools filled in.
    """
    normal = []
    for index, message in enumerate(messages):
        if message.role != "assistant":
            normal.append(Message(message.role, message.content))
            continue
        reasoning, content = split_reasoning(message)
        reasoning = reasoning.strip() if shown(index) else ""
        calls = tuple(normalize(call) for call in message.tool_calls)
        normal.append(Message("assistant", content.strip(), reasoning=reasoning, tool_calls=calls))
    return normal
