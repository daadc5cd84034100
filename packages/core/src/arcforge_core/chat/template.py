"""The base of our chat templates: spans to token ids, completions to messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from arcforge_core.chat.parser import Parser, split_reasoning
from arcforge_core.chat.spans import Span, encode_spans
from arcforge_core.contracts.chat import (
    ChatOptions,
    Fork,
    Message,
    NextTurn,
    OpenTurn,
    Parsed,
    Rendered,
    RenderedTurn,
    Tool,
    ToolCall,
    extend,
)
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer


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
    def thinking(self, prompt_ids: Sequence[int]) -> bool | None:
        """Returns True if a prompt opens the reasoning of its last turn, False if it closes it, else None."""

    @abstractmethod
    def parser_of(self, thinking: bool | None, tools: Sequence[Tool]) -> Parser:
        """Returns a parser for a completion, given what the prompt says about its reasoning."""

    def parser(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parser:
        """Returns a parser for the completion of a prompt."""
        return self.parser_of(self.thinking(prompt_ids), tools)

    def parse(self, completion_ids: Sequence[int], prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> Parsed:
        """Returns a whole completion as `parser` reads it."""
        return read(self.parser(prompt_ids, tools), completion_ids).parsed

    @abstractmethod
    def open_turn(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> OpenTurn:
        """Reads a prompt; see `ChatTemplate.open_turn`."""

    @abstractmethod
    def continued(
        self, turn: OpenTurn, new_messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> NextTurn | Fork:
        """Returns the next turn; the arguments are those of `next_turn`, checked."""

    def next_turn(
        self,
        turn: OpenTurn,
        new_messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
    ) -> NextTurn | Fork:
        """Returns the tokens that continue a completed turn; see `ChatTemplate.next_turn`."""
        if not new_messages:
            raise ConfigError("new_messages", new_messages, "must contain at least one message")
        return self.continued(turn, new_messages, tools, options or ChatOptions())

    def turns_within(
        self, before: OpenTurn, rendered: Rendered, messages: Sequence[Message], options: ChatOptions | None = None
    ) -> Sequence[RenderedTurn]:
        """Returns no places: a template may write a message differently when others follow it."""
        return ()

    def bridge_to_next_turn(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        new_messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        options: ChatOptions | None = None,
    ) -> Rendered | Fork:
        """Returns the next turn's prompt as an extension of recorded ids, or why there is none."""
        turn = self.open_turn(prompt_ids, tools).completed(completion_ids)
        found = self.next_turn(turn, new_messages, tools, options)
        return found if isinstance(found, Fork) else extend((*prompt_ids, *completion_ids), found.rendered)


def read(parser: Parser, completion_ids: Sequence[int]) -> Parser:
    """Returns a new parser after a whole completion."""
    parser.feed(completion_ids)
    parser.finish()
    return parser


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
