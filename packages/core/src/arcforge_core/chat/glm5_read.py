"""Parses a conversation rendered in GLM-5's format back into messages."""

from __future__ import annotations

import json
from collections.abc import Sequence

from arcforge_core.chat.glm5_format import (
    ASSISTANT,
    CALL_EXAMPLE,
    END_RESPONSE,
    OBSERVATION,
    PREFIX,
    RESPONSE,
    ROLE_TOKENS,
    SYSTEM,
    TOOLS_BEGIN,
    TOOLS_END,
)
from arcforge_core.chat.glm_parser import GlmParser
from arcforge_core.chat.parser import END_THINK, THINK
from arcforge_core.configs import GlmParserConfig
from arcforge_core.contracts.chat import Message, Tool
from arcforge_core.errors import ArcforgeError, DataError
from arcforge_core.tokenizer.tokenizer import Tokenizer

ROLES = {token: role for role, token in ROLE_TOKENS.items()}


def read(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[list[Message], list[Tool]]:
    """Returns the messages and tools of a rendered conversation.

    Raises:
        DataError: the ids do not follow the format.
    """
    prefix = [tokenizer.special[token] for token in PREFIX]
    if list(ids[: len(prefix)]) != prefix:
        raise DataError(f"a conversation must begin with {''.join(PREFIX)}, not {tokenizer.decode(ids[:2])!r}")
    blocks = _blocks(tokenizer, ids[len(prefix) :])
    tools = _tools(tokenizer, blocks)
    messages: list[Message] = []
    for token, block in blocks[bool(tools) :]:
        if token == ASSISTANT:
            messages.append(_assistant(tokenizer, block, tools))
        elif token == OBSERVATION:
            messages += [Message("tool", text) for text in _responses(tokenizer, block)]
        else:
            messages.append(Message(ROLES[token], tokenizer.decode(block)))
    return messages, tools


def _blocks(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Returns each role token with the ids that follow it."""
    names = {tokenizer.special[token]: token for token in ROLES}
    blocks: list[tuple[str, list[int]]] = []
    for id_ in ids:
        if id_ in names:
            blocks.append((names[id_], []))
        elif blocks:
            blocks[-1][1].append(id_)
        else:
            raise DataError(f"{tokenizer.decode([id_])!r} precedes the first role token")
    return blocks


def read_tools(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Tool]:
    """Returns the tools of a prompt that begins with the format's prefix; reads its first block alone."""
    roles = {tokenizer.special[token] for token in ROLES}
    starts = (position for position, id_ in enumerate(ids) if id_ in roles)
    _, end = next(starts, None), next(starts, None)
    return _tools(tokenizer, _blocks(tokenizer, ids[len(PREFIX) : end]))


def _tools(tokenizer: Tokenizer, blocks: Sequence[tuple[str, list[int]]]) -> list[Tool]:
    """Returns the tools of the first block; [] if it is a message."""
    if not blocks or blocks[0][0] != SYSTEM:
        return []
    text, end = tokenizer.decode(blocks[0][1]), TOOLS_END + "".join(CALL_EXAMPLE)
    if not (text.startswith(TOOLS_BEGIN) and text.endswith(end)):
        return []
    try:
        return [Tool(json.loads(line)) for line in text[len(TOOLS_BEGIN) : -len(end)].split("\n")[:-1]]
    except (ValueError, AttributeError, ArcforgeError):
        return []  # a message that looks like the block


def _assistant(tokenizer: Tokenizer, block: Sequence[int], tools: Sequence[Tool]) -> Message:
    opening = {tokenizer.special[THINK]: True, tokenizer.special[END_THINK]: False}
    if not block or block[0] not in opening:
        raise DataError(
            f"an assistant's turn must begin with {THINK} or {END_THINK}, not {tokenizer.decode(block[:1])!r}"
        )
    parser = GlmParser(GlmParserConfig(), tools, tokenizer=tokenizer, thinking=opening[block[0]])
    parser.feed(block[1:])
    parser.finish()
    return parser.parsed.message


def _responses(tokenizer: Tokenizer, block: Sequence[int]) -> list[str]:
    begin, end = tokenizer.special[RESPONSE], tokenizer.special[END_RESPONSE]
    responses: list[str] = []
    position = 0
    while position < len(block):
        if block[position] != begin or end not in block[position:]:
            raise DataError(f"a tool's results must be enclosed in {RESPONSE} and {END_RESPONSE}")
        stop = block.index(end, position)
        responses.append(tokenizer.decode(block[position + 1 : stop]))
        position = stop + 1
    return responses
