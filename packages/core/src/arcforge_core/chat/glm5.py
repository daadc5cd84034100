"""GLM-5's chat format (spec 5): messages to token ids, and back.

Role tokens are not followed by newlines, and no token ends a turn: the model ends it by writing the role token of the
next speaker. `glm5.jinja` is the same format for other engines; `docs/chat.md` lists what a Jinja template cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.chat import glm5_bridge as bridge
from arcforge_core.chat import glm5_read
from arcforge_core.chat.glm5_format import ASSISTANT, NEEDED, OBSERVATION, PREFIX, ROLE_TOKENS, STOPS, SYSTEM, USER
from arcforge_core.chat.glm5_spans import (
    ending_span,
    message_spans,
    prompt_spans,
    shows_reasoning,
    special_span,
    tool_spans,
)
from arcforge_core.chat.glm_parser import GlmParser
from arcforge_core.chat.parser import END_THINK, THINK
from arcforge_core.chat.spans import Span
from arcforge_core.chat.template import Template, normalized
from arcforge_core.configs import Glm5TemplateConfig, GlmParserConfig
from arcforge_core.contracts.chat import (
    ChatOptions,
    Fork,
    Message,
    NextTurn,
    OpenTurn,
    Rendered,
    RenderedTurn,
    Tool,
)
from arcforge_core.errors import ConfigError
from arcforge_core.tokenizer.templates import built_in
from arcforge_core.tokenizer.tokenizer import Tokenizer


class Glm5Template(Template):
    """Renders GLM-5's format; a `ChatTemplate`.

    Text of users, tools and the assistant is encoded as plain text: ``<|user|>`` in it is characters, never the token.

    Raises:
        ConfigError: the tokenizer lacks tokens of the format.
    """

    keeps_reasoning = True
    jinja = built_in("glm5")

    def __init__(self, config: Glm5TemplateConfig, tokenizer: Tokenizer) -> None:
        missing = [token for token in NEEDED if token not in tokenizer.special]
        if missing:
            raise ConfigError("chat_template", config.name, f"the tokenizer has no special tokens {' '.join(missing)}")
        self.tokenizer = tokenizer
        self.stop_ids = tuple(tokenizer.special[token] for token in STOPS)

    def conversation_spans(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions, prompt: bool, end_turn: bool
    ) -> list[Span]:
        """Returns the rendering of a conversation."""
        check_options(options)
        spans = [*(special_span(token) for token in PREFIX), *tool_spans(tools), *message_spans(messages, options)]
        if end_turn:
            spans.append(
                ending_span(messages, len(messages) - 1, options, OBSERVATION if messages[-1].tool_calls else USER)
            )
        return [*spans, *(prompt_spans(options) if prompt else ())]

    def normalize(
        self, messages: Sequence[Message], tools: Sequence[Tool] = (), options: ChatOptions | None = None
    ) -> list[Message]:
        """Returns the messages as `read` parses them from their rendering.

        Strips white space around the assistant's reasoning and content and around names of calls and arguments. Moves
        reasoning found in the content to its field, and empties reasoning that the options clear. Converts arguments to
        the types of the tool's schema. Call ids and `trained` are not rendered.
        """
        options = options or ChatOptions()
        return normalized(
            messages,
            lambda index: shows_reasoning(messages, index, options),
            lambda call: GlmParser.normalize(call, tools),
        )

    def read(self, ids: Sequence[int]) -> tuple[list[Message], list[Tool]]:
        """Returns the messages and tools of a rendered conversation without a generation prompt.

        Raises:
            DataError: the ids are not a rendering in this format.
        """
        return glm5_read.read(self.tokenizer, ids)

    def thinking(self, prompt_ids: Sequence[int]) -> bool | None:
        """Returns True if a prompt opens the reasoning of its last turn, False if it closes it, else None."""
        return thinks(self.tokenizer, prompt_ids)

    def parser_of(self, thinking: bool | None, tools: Sequence[Tool]) -> GlmParser:
        """Returns a parser for a completion."""
        ends = (*STOPS, SYSTEM, ASSISTANT)
        return GlmParser(GlmParserConfig(), tools, tokenizer=self.tokenizer, thinking=thinking, ends=ends)

    def open_turn(self, prompt_ids: Sequence[int], tools: Sequence[Tool] = ()) -> OpenTurn:
        """Reads a prompt."""
        shown = bridge.shown_tools(self.tokenizer, prompt_ids, tools)
        return OpenTurn(shown, self.tokenizer.special[THINK] in prompt_ids, self.thinking(prompt_ids))

    def continued(
        self, turn: OpenTurn, new_messages: Sequence[Message], tools: Sequence[Tool], options: ChatOptions
    ) -> NextTurn | Fork:
        """Returns the next turn."""
        check_options(options)
        return bridge.next_turn(self.tokenizer, turn, new_messages, tools, options)

    def turns_within(
        self, before: OpenTurn, rendered: Rendered, messages: Sequence[Message], options: ChatOptions | None = None
    ) -> Sequence[RenderedTurn]:
        """Returns the ends of the assistant's messages whose reasoning, and that before them, no later user clears."""
        return bridge.turns_within(self.tokenizer, before, rendered, messages, options or ChatOptions())


def check_options(options: ChatOptions) -> None:
    if options.extra:
        raise ConfigError(
            "chat_template_kwargs", dict(options.extra), "must contain enable_thinking and clear_thinking only"
        )


def thinks(tokenizer: Tokenizer, prompt_ids: Sequence[int]) -> bool | None:
    """Returns True if the prompt opens the reasoning of its last turn, False if it closes it, else None."""
    special = tokenizer.special
    roles = {special[token] for token in ROLE_TOKENS.values()}
    for id_ in reversed(prompt_ids):
        if id_ in (special[THINK], special[END_THINK]):
            return id_ == special[THINK]
        if id_ in roles:
            return None
    return None
