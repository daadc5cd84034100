"""Continues a recorded turn without tokenising it again.

The model ends its turn with the role token of the next speaker. A turn that ended otherwise is closed by tokens that
the model did not sample, as the package ``renderers`` does: ``</think>`` and ``<|endoftext|>`` after a turn that was
cut off, and the role token of the message that follows after ``<|endoftext|>`` or the other role token.
"""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.chat.glm5_format import PREFIX, ROLE_TOKENS, STOPS
from arcforge_core.chat.glm5_read import read_tools
from arcforge_core.chat.glm5_spans import message_spans, prompt_spans, special_span, tool_spans
from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK, split_reasoning
from arcforge_core.chat.spans import encode_spans
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
from arcforge_core.tokenizer.tokenizer import EOS, Tokenizer


def shown_tools(tokenizer: Tokenizer, prompt_ids: Sequence[int], tools: Sequence[Tool]) -> str | None:
    """Returns `OpenTurn.tools`: the block of tools as text if a prompt begins with the block of these tools."""
    head = encode_spans(tokenizer, [*map(special_span, PREFIX), *tool_spans(tools)]).ids
    if tuple(prompt_ids[: len(head)]) != head or (not tools and read_tools(tokenizer, prompt_ids)):
        return None
    return _written(tools)


def _written(tools: Sequence[Tool]) -> str:
    return "".join(span.text for span in tool_spans(tools))


def next_turn(
    tokenizer: Tokenizer,
    turn: OpenTurn,
    new_messages: Sequence[Message],
    tools: Sequence[Tool],
    options: ChatOptions,
) -> NextTurn | Fork:
    """Returns the tokens after a turn, or why the next one must be re-rendered.

    Args:
        tokenizer: has the format's tokens.
        turn: the completed turn.
        new_messages, tools, options: see `ChatTemplate.next_turn`.
    """
    special = tokenizer.special
    if turn.tools != _written(tools):
        return Fork("the recorded prompt has other tools")
    thought = turn.thought or special[THINK] in turn.completion_ids
    if thought and options.clear_thinking and any(message.role == "user" for message in new_messages):
        return Fork("a user's message clears the reasoning before it; clear_thinking=false keeps it")

    stops = {special[token]: token for token in STOPS}
    ended = [stops[id_] for id_ in turn.completion_ids if id_ in stops]
    if ended and (len(ended) > 1 or turn.completion_ids[-1] not in stops):
        return Fork(f"tokens follow the end of the turn, {ended[0]}")
    reasons = reasoning_is_open(tokenizer, turn)
    if ended and reasons:
        return Fork(f"the turn ended with {ended[0]} inside its reasoning")

    closing = [] if ended or turn.rendered else [*([END_THINK] if reasons else []), EOS]
    spans = [*message_spans(new_messages, options), *prompt_spans(options)]
    if ended == [ROLE_TOKENS[new_messages[0].role]]:
        spans = spans[1:]  # the model has written it
    rendered = encode_spans(tokenizer, [*map(special_span, closing), *spans], is_prompt=True)
    return NextTurn(rendered, OpenTurn(turn.tools, thought or special[THINK] in rendered.ids, options.enable_thinking))


def turns_within(
    tokenizer: Tokenizer, before: OpenTurn, rendered: Rendered, messages: Sequence[Message], options: ChatOptions
) -> list[RenderedTurn]:
    """Returns the places after assistant's messages in a prompt; see `ChatTemplate.turns_within`."""
    special, stops = tokenizer.special, {tokenizer.special[token] for token in STOPS}
    kept = {index for index, message in enumerate(messages) if message.role == "assistant"}
    if options.clear_thinking:
        kept -= _cleared(messages)
    thought = before.thought or special[THINK] in before.completion_ids
    found: dict[int, RenderedTurn] = {}
    for place, (id_, message) in enumerate(zip(rendered.ids, rendered.messages, strict=True), 1):
        thought = thought or id_ == special[THINK]
        if message in kept and id_ not in stops:  # the token that ends it is the next message's to choose
            turn = OpenTurn(before.tools, thought, thinking=False, rendered=True)
            found[message] = RenderedTurn(message, place, turn)
    return [*found.values()]


def _cleared(messages: Sequence[Message]) -> set[int]:
    """Returns the messages that end a part of the conversation whose reasoning a later user's message clears."""
    users = [index for index, message in enumerate(messages) if message.role == "user"]
    found, reasons = set(), False
    for index, message in enumerate(messages[: users[-1]] if users else ()):
        reasons = message.role != "user" and (reasons or bool(split_reasoning(message)[0]))
        if reasons:
            found.add(index)
    return found


def reasoning_is_open(tokenizer: Tokenizer, turn: OpenTurn) -> bool:
    """Whether a completion leaves the reasoning open. Unlike a parser, it reads past role tokens that end no turn."""
    tags = {tokenizer.special[tag]: tag for tag in (THINK, END_THINK, CALL, END_CALL)}
    is_open, calls = bool(turn.thinking), False
    for tag in (tags[id_] for id_ in turn.completion_ids if id_ in tags):
        if tag in (CALL, END_CALL):
            is_open, calls = is_open and tag == END_CALL, tag == CALL
        elif not calls:
            is_open = tag == THINK and turn.thinking is not False
    return is_open
