"""The tokens and fixed texts of GLM-5's chat format (spec 5.1, 5.2)."""

from __future__ import annotations

from arcforge_core.chat.glm_parser import END_KEY, END_VALUE, KEY, VALUE
from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK
from arcforge_core.tokenizer.tokenizer import EOS

PREFIX = ("[gMASK]", "<sop>")
SYSTEM, USER, ASSISTANT, OBSERVATION = "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"
RESPONSE, END_RESPONSE = "<tool_response>", "</tool_response>"
ROLE_TOKENS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": OBSERVATION}
STOPS = (EOS, USER, OBSERVATION)
"""Tokens that end the assistant's turn: the role token of the next speaker, or the end of text."""
NEEDED = (
    *PREFIX, EOS, SYSTEM, USER, ASSISTANT, OBSERVATION, THINK, END_THINK, CALL, END_CALL, RESPONSE, END_RESPONSE,
    KEY, END_KEY, VALUE, END_VALUE,
)  # fmt: skip
"""Tokens that a tokenizer must have."""

TOOLS_BEGIN = """
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
TOOLS_END = """</tools>

For each function call, output the function name and arguments within the following XML format:
"""
CALL_EXAMPLE = (
    CALL, "{function-name}", KEY, "{arg-key-1}", END_KEY, VALUE, "{arg-value-1}", END_VALUE,
    KEY, "{arg-key-2}", END_KEY, VALUE, "{arg-value-2}", END_VALUE, "...", END_CALL,
)  # fmt: skip
"""Ends the block of tools. Its tags are encoded as special tokens, as they are when Jinja's text is tokenised."""
