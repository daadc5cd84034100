"""Builds the chat template of a tokenizer, or of a Hugging Face directory."""

from __future__ import annotations

from itertools import product
from pathlib import Path

from arcforge_core.chat.glm5_format import NEEDED
from arcforge_core.chat.jinja_conversation import TemplateConversation, TemplateText
from arcforge_core.config.schema import ChatTemplateConfig
from arcforge_core.configs import Glm5TemplateConfig, JinjaTemplateConfig
from arcforge_core.contracts.chat import ChatOptions, ChatTemplate, Message, Tool, ToolCall
from arcforge_core.errors import ConfigError
from arcforge_core.plugins.loader import registry
from arcforge_core.tokenizer.templates import built_in
from arcforge_core.tokenizer.tokenizer import Tokenizer

PROBE_TOOLS = (Tool({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}),)
PROBE = (
    Message("system", "s"),
    Message("user", " u\n"),
    Message("assistant", " a ", reasoning=" r ", tool_calls=(ToolCall("f", {"k": "v", "n": [1, "é"]}),) * 2),
    Message("tool", " t "),
    Message("tool", ""),
    Message("assistant", "x</think>y"),
    Message("assistant", "", reasoning=""),
    Message("user", ""),
    Message("assistant", "b", reasoning="q"),
    Message("tool", "t"),
)
"""A conversation that exercises every rule of GLM-5's format."""


def build_chat_template(tokenizer: Tokenizer, config: ChatTemplateConfig | None = None) -> ChatTemplate:
    """Returns the chat template of a tokenizer.

    Args:
        tokenizer: provides the tokens and its own template.
        config: a component of kind ``chat_template``. None chooses GLM-5's renderer if the tokenizer's template renders
            GLM-5's format, or if it has no template but all of GLM-5's tokens; otherwise the tokenizer's own template.

    Raises:
        ConfigError: tokens or the template are missing.
    """
    if config is None:
        config = Glm5TemplateConfig() if _speaks_glm5(tokenizer) else JinjaTemplateConfig()
    template: ChatTemplate = registry().get("chat_template", config.name).load()(config, tokenizer)
    return template


def load_chat_template(folder: str | Path, config: ChatTemplateConfig | None = None) -> ChatTemplate:
    """Returns the chat template of a Hugging Face directory, its tokenizer included.

    Reads ``tokenizer.json``, ``tokenizer_config.json`` and ``chat_template.jinja``.

    Raises:
        DataError: the folder has no usable tokenizer.
        ConfigError: as in `build_chat_template`.
    """
    return build_chat_template(Tokenizer.load(folder), config)


def _speaks_glm5(tokenizer: Tokenizer) -> bool:
    if any(token not in tokenizer.special for token in NEEDED):
        return False
    own, ours = tokenizer.chat_template, built_in("glm5")
    if own is None or own == ours:
        return True
    switches = (True, False)
    return all(
        _text(own, tokenizer, *case) == _text(ours, tokenizer, *case)
        for case in product(range(1, len(PROBE) + 1), switches, switches)
    )


def _text(template: str, tokenizer: Tokenizer, count: int, clear: bool, think: bool) -> str | None:
    conversation = TemplateConversation(
        PROBE[:count],
        PROBE_TOOLS if count % 2 else (),
        ChatOptions(enable_thinking=think, clear_thinking=clear),
        generation_prompt=True,
    )
    try:
        return TemplateText(template, tokenizer).plain(conversation).text
    except ConfigError:
        return None
