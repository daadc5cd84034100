"""Any Hugging Face Jinja template under the same contract as GLM-5's renderer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from arcforge_core.chat.jinja_conversation import REASONING, TemplateConversation, TemplateText, find_turns, spans
from arcforge_core.chat.parser import END_THINK, THINK, Parser
from arcforge_core.chat.spans import Span, encode_spans
from arcforge_core.chat.template import Template, normalized, read
from arcforge_core.configs import JinjaTemplateConfig
from arcforge_core.contracts.chat import ChatOptions, Fork, Message, NextTurn, OpenTurn, Tool, ToolCall
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.templates import BUILT_IN, built_in
from arcforge_core.tokenizer.tokenizer import Tokenizer

PROBE = "PROBE"
"""Text of the conversation that probes how a template behaves."""
PROBE_TOOL = Tool({"type": "function", "function": {"name": "probe", "parameters": {"type": "object"}}})
TAG = re.compile(r"<[^\s<>{}']+>")


class JinjaTemplate(Template):
    """A Jinja template with a tokenizer; a `ChatTemplate`.

    Text of messages is encoded as plain text; only text written by the template itself may become special tokens.

    Raises:
        ConfigError: the template is invalid, or no special token of the tokenizer ends the assistant's turn in it.
    """

    def __init__(self, config: JinjaTemplateConfig, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.jinja = _template_text(config, tokenizer)
        self._text = TemplateText(self.jinja, tokenizer)
        parser = config.parser or _guess_parser(self.jinja)
        component = registry().get("parser", parser)
        self._parser, self._parser_config = component.load(), component.load_schema()()

        self.keeps_reasoning = self._says(Message("assistant", "x", reasoning=PROBE))
        call = Message("assistant", tool_calls=(ToolCall("probe", {"x": PROBE}, "a" * 9),))
        self.keeps_calls = self._says(call)
        ends = [self._turn_end(Message("assistant", PROBE), Message("user", "x"))]
        if self.keeps_calls:
            ends.append(self._turn_end(call, Message("tool", "x", tool_call_id="a" * 9)))
        self._end, self._end_of_calls = ends[0], ends[-1]
        stops = (*(tokenizer.special[token] for token in ends), tokenizer.eos_id)
        self.stop_ids = tuple(dict.fromkeys(stops))
        self._stops = frozenset(token for token, id_ in tokenizer.special.items() if id_ in self.stop_ids)

    def conversation_spans(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions, prompt: bool, end_turn: bool
    ) -> list[Span]:
        """Returns the rendering of a conversation."""
        conversation = self._conversation(messages, tools, options, prompt)
        turns = [] if prompt else find_turns(self._text, conversation, self._stops)
        found = list(spans(self._text, conversation, turns))
        last = len(messages) - 1
        if end_turn and not any(span.special and span.message == last and span.text in self._stops for span in found):
            trained = messages[-1].trained and any(turn.message == last for turn in turns)
            token = self._end_of_calls if messages[-1].tool_calls else self._end
            found.append(Span(token, special=True, author="assistant", message=last, trained=trained))
        return found

    def normalize(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> list[Message]:
        """Returns the messages as they are parsed back: stripped, without reasoning that the template drops."""
        written = self._text.written(self._conversation(messages, tools, options, False))
        sources = {written.sources[piece.source] for piece in written.marked.pieces if piece.source is not None}
        thought = {source.message for source in sources if source.field == REASONING}
        return normalized(messages, thought.__contains__, lambda call: self._parser.normalize(call, tools))

    def thinking(self, prompt_ids: Sequence[int]) -> bool | None:
        """Returns True if a prompt ends with the tag that opens reasoning, False if it closes it, else None."""
        tail = self.tokenizer.decode(prompt_ids[-32:]).rstrip()
        return True if tail.endswith(THINK) else False if tail.endswith(END_THINK) else None

    def parser_of(self, thinking: bool | None, tools: Sequence[Tool]) -> Parser:
        """Returns a parser for a completion."""
        parser: Parser = self._parser(
            self._parser_config, tools, tokenizer=self.tokenizer, thinking=thinking, ends=sorted(self._stops)
        )
        return parser

    def open_turn(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> OpenTurn:
        """Reads a prompt. It is not checked whether its tools are these."""
        thought = THINK in self.tokenizer.decode(prompt_ids)
        return OpenTurn(_written(tools), thought, self.thinking(prompt_ids))

    def continued(
        self, turn: OpenTurn, new_messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> NextTurn | Fork:
        """Returns the next turn. Its text is rendered from a conversation with the recorded turn alone."""
        if turn.tools != _written(tools):
            return Fork("the recorded prompt has other tools")
        completion_ids, parser = turn.completion_ids, read(self.parser_of(turn.thinking, tools), turn.completion_ids)
        said = parser.parsed.message
        if turn.thought and not said.reasoning:
            said = replace(said, reasoning=PROBE)  # earlier turns have reasoning: does the template keep it?
        before = self._conversation([Message("user", "x"), said], tools, options, False)
        conversation = replace(before, messages=(*before.messages, *new_messages), generation_prompt=True)
        said_turn = next((found for found in find_turns(self._text, before, self._stops) if found.message == 1), None)
        whole = self._text.written(conversation)
        if said_turn is None or not whole.marked.text.startswith(self._text.plain(before).text[: said_turn.end]):
            return Fork("the template renders earlier turns differently when new messages follow")
        # a token of the template's own precedes the end of the turn; otherwise the next role's token follows it
        ending = next(
            (t for t in self._text.specials(whole) if t[0] in self._stops and said_turn.end in (t.end(), t.start())),
            None,
        )
        start = said_turn.end if ending is None else ending.start()
        ended = [self.tokenizer.decode([id_]) for id_ in completion_ids if id_ in self.stop_ids]
        if ended:
            if len(ended) > 1 or completion_ids[-1] not in self.stop_ids:
                return Fork(f"tokens follow the end of the turn, {ended[0]}")
            if ending is None or ended != [ending[0]]:
                wanted = "none" if ending is None else ending[0]
                return Fork(f"the turn ended with {ended[0]}, but the template expects {wanted} there")
            start = ending.end()
        elif parser.cut_off:
            return Fork(f"the turn was cut off: {parser.cut_off}")
        tail = [
            replace(span, message=max(span.message - 2, -1))
            for span in spans(self._text, conversation, (), start=start)
        ]
        rendered = encode_spans(self.tokenizer, tail, is_prompt=True)
        thought = turn.thought or THINK in self.tokenizer.decode([*completion_ids, *rendered.ids])
        return NextTurn(rendered, OpenTurn(turn.tools, thought, self.thinking(rendered.ids)))

    def _conversation(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions | None, generation_prompt: bool
    ) -> TemplateConversation:
        if not self.keeps_calls and any(message.tool_calls for message in messages):
            raise ConfigError("messages", "tool_calls", "the chat template does not render tool calls")
        return TemplateConversation(tuple(messages), tuple(tools), options or ChatOptions(), generation_prompt)

    # ---- what the template does --------------------------------------------------------------------------------------

    def _says(self, message: Message) -> bool:
        conversation = TemplateConversation((Message("user", "x"), message), (PROBE_TOOL,))
        try:
            return PROBE in self._text.plain(conversation).text
        except ConfigError:
            return False

    def _turn_end(self, message: Message, following: Message) -> str:
        """Returns the special token that follows the assistant's text; the parser's own tags do not count."""
        tools = (PROBE_TOOL,) if message.tool_calls else ()
        written = self._text.written(TemplateConversation((Message("user", "x"), message, following), tools))
        said = written.marked.text.rfind(PROBE)
        if said < 0:
            raise ConfigError("chat_template", self.config.template, "does not render the assistant's text")
        for token in self._text.specials(written):
            if token.start() > said and token[0] not in self._parser.tags:
                return token[0]
        known = ", ".join(sorted(set(TAG.findall(self.jinja)) - set(self.tokenizer.special))) or "none"
        raise ConfigError(
            "chat_template",
            self.config.template,
            "no special token of the tokenizer ends the assistant's turn; tokens in the template that the tokenizer "
            f"lacks: {known}",
        )


def _written(tools: Sequence[Tool]) -> str:
    return "".join(json.dumps(tool.definition) for tool in tools)


def _template_text(config: JinjaTemplateConfig, tokenizer: Tokenizer) -> str:
    if config.template in BUILT_IN:
        return built_in(config.template)
    if config.template:
        file = Path(config.template)
        if not file.is_file():
            accepted = f"must be one of {', '.join(BUILT_IN)}, or a file; empty for the tokenizer's own"
            raise ConfigError("chat_template.template", config.template, accepted)
        return file.read_text(encoding="utf-8")
    if tokenizer.chat_template is None:
        raise ConfigError("chat_template.template", "", "must be set: the tokenizer has no chat template")
    return tokenizer.chat_template


def _guess_parser(template: str) -> str:
    """Returns the parser whose tags the template contains."""
    if "<arg_key>" in template:
        return "glm"
    return "llama" if "<|start_header_id|>" in template else "hermes"
