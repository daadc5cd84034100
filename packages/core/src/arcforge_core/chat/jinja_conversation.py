"""A conversation rendered by a Jinja template: its text, the author of each part, and the assistant's turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import jinja2

from arcforge_core.chat.jinja_text import Marked, Marker, compile_template, mark_strings
from arcforge_core.chat.openai import message_for_template
from arcforge_core.chat.parser import END_THINK, split_reasoning
from arcforge_core.chat.spans import Span
from arcforge_core.contracts.chat import ChatOptions, Message, Tool
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.tokenizer import Tokenizer

CONTENT, REASONING, CALLS, CALL_ID = "content", "reasoning_content", "tool_calls", "tool_call_id"


@dataclass(frozen=True)
class TemplateSource:
    """Origin of a marked string; `message` is -1 for the tools."""

    message: int
    field: str


@dataclass(frozen=True)
class TemplateConversation:
    """The input of a rendering.

    Attributes:
        messages, tools, options, generation_prompt: as in `ChatTemplate.render`.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    options: ChatOptions = field(default_factory=ChatOptions)
    generation_prompt: bool = False

    def until(self, count: int, generation_prompt: bool = False, thinking: bool | None = None) -> TemplateConversation:
        """Returns the conversation's first `count` messages."""
        options = self.options if thinking is None else replace(self.options, enable_thinking=thinking)
        return replace(self, messages=self.messages[:count], options=options, generation_prompt=generation_prompt)


@dataclass(frozen=True)
class Written:
    """A rendered conversation.

    Attributes:
        marked: the text and its pieces.
        sources: origins of the pieces, indexed by `TextPiece.source`.
    """

    marked: Marked
    sources: tuple[TemplateSource, ...]


class TemplateText:
    """Renders a template to text.

    Args:
        text: the template.
        tokenizer: provides ``bos_token``, ``eos_token`` and the special tokens.
    """

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self._template = compile_template(text)
        names = {id_: token for token, id_ in tokenizer.special.items()}
        self._variables = {
            "bos_token": names.get(tokenizer.bos_id, ""),
            "eos_token": names.get(tokenizer.eos_id, ""),
        }
        longest_first = sorted(tokenizer.special, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def plain(self, conversation: TemplateConversation) -> Marked:
        """Returns the text as transformers renders it.

        Raises:
            ConfigError: the template refuses the conversation.
        """
        messages = [_for_template(message) for message in conversation.messages]
        marked = Marker("").find(self._render(conversation, messages, [dict(t.definition) for t in conversation.tools]))
        assert marked is not None  # nothing was marked
        return marked

    def written(self, conversation: TemplateConversation) -> Written:
        """Returns the text with the origins of its parts.

        Text of messages that the template transforms untraceably counts as the template's.

        Raises:
            ConfigError: as in `plain`; or untraceable text contains a special token.
        """
        plain = self.plain(conversation)
        sources: list[TemplateSource] = []
        marker = Marker("".join(_strings(conversation)))
        messages = [_marked(message, n, marker, sources) for n, message in enumerate(conversation.messages)]
        tools = [
            _mark(tool.definition, TemplateSource(-1, "tools"), marker, sources, self.special)
            for tool in conversation.tools
        ]
        try:
            marked = marker.find(self._render(conversation, messages, tools))
        except ConfigError:
            marked = None  # the template inspects the text of messages
        if marked is not None and marked.text == plain.text:
            return Written(marked, tuple(sources))
        for text in _strings(conversation):
            if found := self.special.search(text):
                raise ConfigError(
                    "messages", text[:80], f"contains {found[0]}, and the template transforms the text of messages, so "
                    "the text cannot be distinguished from the template's own token",
                )  # fmt: skip
        return Written(plain, ())

    def specials(self, written: Written) -> Iterator[re.Match[str]]:
        """Yields the special tokens that the template wrote."""
        for piece in written.marked.pieces:
            if piece.source is None:
                yield from self.special.finditer(written.marked.text, piece.start, piece.end)

    def _render(self, conversation: TemplateConversation, messages: Sequence[Any], tools: Sequence[Any]) -> str:
        options = conversation.options
        switches = {"enable_thinking": options.enable_thinking, "clear_thinking": options.clear_thinking}
        # templates test whether they are defined
        shown: dict[str, bool | str] = {
            name: value for name, value in switches.items() if not value or name in options.given
        }
        if options.reasoning_effort is not None:
            shown["reasoning_effort"] = options.reasoning_effort
        variables = {**self._variables, **shown, **options.extra, "messages": messages, "tools": tools or None}
        try:
            return self._template.render(**variables, add_generation_prompt=conversation.generation_prompt)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise ConfigError("messages", _roles(conversation), f"the chat template rejects them: {error}") from error


@dataclass(frozen=True)
class TemplateTurn:
    """A turn of the assistant in the text.

    Attributes:
        start, end: range in the text, including the token that ends the turn.
        message: index of its message.
    """

    start: int
    end: int
    message: int


def spans(
    text: TemplateText, conversation: TemplateConversation, turns: Sequence[TemplateTurn], start: int = 0
) -> Iterator[Span]:
    """Yields a conversation's parts from `start` on: messages as plain text, and the template's special tokens."""
    written = text.written(conversation)
    pieces = iter(written.marked.pieces)
    piece = next(pieces, None)
    edges = {start, *(p.end for p in written.marked.pieces), *(edge for t in turns for edge in (t.start, t.end))}
    for begin, end in pairwise(sorted(edge for edge in edges if edge >= start)):
        while piece is not None and piece.end <= begin:
            piece = next(pieces, None)
        assert piece is not None  # pieces cover the text
        source = None if piece.source is None else written.sources[piece.source]
        turn = next((turn for turn in turns if turn.start <= begin < turn.end), None)
        part = written.marked.text[begin:end]
        span = replace(_owned(conversation, part, source, turn), begins_run=turn is not None and turn.start == begin)
        yield from [span] if source is not None else _cut(span, text.special)


def find_turns(text: TemplateText, conversation: TemplateConversation, stops: frozenset[str]) -> list[TemplateTurn]:
    """Returns the turns that are rendered exactly as the model would have sampled them.

    They are the ``{% generation %}`` blocks if the template has them. Otherwise a turn lies between its prompt, with
    which the text must begin, and the first special token of `stops` after the rendering of the messages up to it.
    Turns whose prompt would now render differently (their reasoning was dropped since) are left out.
    """
    whole = text.written(conversation)
    generated = whole.marked.generated
    assistants = [n for n, message in enumerate(conversation.messages) if message.role == "assistant"]
    if generated:
        if len(generated) != len(assistants):
            counts = f"{len(generated)} generation blocks for {len(assistants)} messages"
            raise ConfigError("chat_template", counts, "must mark every assistant's message once")
        return [TemplateTurn(*edges, n) for edges, n in zip(generated, assistants, strict=True)]
    ends = [token for token in text.specials(whole) if token[0] in stops]
    found = [_find_turn(text, conversation, whole.marked.text, n, ends) for n in assistants]
    return [turn for turn in found if turn is not None]


def _find_turn(
    text: TemplateText, conversation: TemplateConversation, whole: str, message: int, ends: Sequence[re.Match[str]]
) -> TemplateTurn | None:
    after = text.plain(conversation.until(message + 1)).text
    if not whole.startswith(after):
        return None
    first = conversation.options.enable_thinking
    for thinking in (first, not first):
        prompt = text.plain(conversation.until(message, generation_prompt=True, thinking=thinking)).text
        if after.startswith(prompt):
            break
    else:
        return None
    own = [token.end() for token in ends if len(prompt) <= token.start() < len(after)]
    # if no token of its own ends a turn, the next message's role token does
    following = [token.end() for token in ends if token.start() == len(after)]
    return TemplateTurn(len(prompt), [len(after), *following, *own][-1], message)


def _owned(
    conversation: TemplateConversation, text: str, source: TemplateSource | None, turn: TemplateTurn | None
) -> Span:
    if turn is not None:
        trained = conversation.messages[turn.message].trained
        return Span(text, author="assistant", message=turn.message, trained=trained)
    if source is None or source.message < 0:
        return Span(text)
    return Span(text, author=conversation.messages[source.message].role, message=source.message)


def _cut(span: Span, special: re.Pattern[str]) -> Iterator[Span]:
    """Yields the template's own text, split at its special tokens."""
    position = 0
    for found in [*special.finditer(span.text), None]:
        between = span.text[position : found.start() if found else len(span.text)]
        if between:
            yield replace(span, text=between, begins_run=span.begins_run and position == 0)
        if found:
            yield replace(span, text=found[0], special=True)
            position = found.end()


# ---- messages --------------------------------------------------------------------------------------------------------


def _for_template(message: Message) -> dict[str, Any]:
    """Returns a message as a dictionary; reasoning has its own field, so no template searches the content for it.

    Without reasoning the field is absent, because many templates test whether it is defined.
    """
    if message.role == "assistant":
        reasoning, content = split_reasoning(message)
        given = reasoning if reasoning or END_THINK in content else None
        message = replace(message, reasoning=given, content=content)
    return message_for_template(message)


def _marked(message: Message, number: int, marker: Marker, sources: list[TemplateSource]) -> dict[str, Any]:
    found = _for_template(message)
    for name in (CONTENT, REASONING, CALL_ID):
        if name in found:
            found[name] = _mark(found[name], TemplateSource(number, name), marker, sources)
    for call in found.get(CALLS, ()):
        function = call["function"]
        for fields, name in ((function, "name"), (function, "arguments"), (call, "id")):
            if name in fields:
                fields[name] = _mark(fields[name], TemplateSource(number, CALLS), marker, sources)
    return found


def _mark(
    value: Any,
    source: TemplateSource,
    marker: Marker,
    sources: list[TemplateSource],
    only: re.Pattern[str] | None = None,
) -> Any:
    """Marks all strings of a JSON value, or those that contain `only`."""

    def mark(text: str) -> str:
        marked = marker.mark(text) if only is None or only.search(text) else text
        if marked != text:
            sources.append(source)
        return marked

    return mark_strings(value, mark)


def _strings(conversation: TemplateConversation) -> Iterator[str]:
    """Yields every string of the messages and tools."""
    found: list[str] = []

    def collect(text: str) -> str:
        found.append(text)
        return text

    for message in conversation.messages:
        fields = _for_template(message)
        mark_strings([fields.get(name, "") for name in (CONTENT, REASONING, CALL_ID)], collect)
        mark_strings(fields.get(CALLS, []), collect)
    mark_strings([tool.definition for tool in conversation.tools], collect)
    return iter(found)


def _roles(conversation: TemplateConversation) -> str:
    return " ".join(message.role for message in conversation.messages)
