"""Extends a recorded turn to the next prompt without tokenising the turn again."""

from __future__ import annotations

from collections.abc import Sequence

from arcforge_core.chat.glm5_format import PREFIX, ROLE_TOKENS, STOPS
from arcforge_core.chat.glm5_read import read_tools
from arcforge_core.chat.glm5_spans import message_spans, prompt_spans, special_span, tool_spans
from arcforge_core.chat.parser import THINK
from arcforge_core.chat.spans import encode_spans
from arcforge_core.chat.template import RecordedTurn
from arcforge_core.contracts.chat import ChatOptions, Fork, Message, Rendered, Tool, extend
from arcforge_core.tokenizer.tokenizer import Tokenizer


def bridge(
    tokenizer: Tokenizer,
    turn: RecordedTurn,
    new_messages: Sequence[Message],
    tools: Sequence[Tool],
    options: ChatOptions,
) -> Rendered | Fork:
    """Returns recorded ids, the new messages and the start of a turn; or why the next turn must be re-rendered.

    Arguments are those of `ChatTemplate.bridge_to_next_turn`, checked.
    """
    prompt_ids, completion_ids = turn.prompt_ids, turn.completion_ids
    special = tokenizer.special
    head = encode_spans(tokenizer, [*map(special_span, PREFIX), *tool_spans(tools)]).ids
    if prompt_ids[: len(head)] != head or (not tools and read_tools(tokenizer, prompt_ids)):
        return Fork("the recorded prompt has other tools")
    thought = special[THINK] in prompt_ids or special[THINK] in completion_ids
    if thought and options.clear_thinking and any(message.role == "user" for message in new_messages):
        return Fork("a user's message clears the reasoning before it; clear_thinking=false keeps it")

    spans = [*message_spans(new_messages, options), *prompt_spans(options)]
    stops = {special[token]: token for token in STOPS}
    ended = [stops[id_] for id_ in completion_ids if id_ in stops]
    next_token = ROLE_TOKENS[new_messages[0].role]
    if ended:
        if len(ended) > 1 or completion_ids[-1] not in stops:
            return Fork(f"tokens follow the end of the turn, {ended[0]}")
        if ended != [next_token]:
            return Fork(f"the turn ended with {ended[0]}, but the next message begins with {next_token}")
        spans = spans[1:]  # the model has written it
    elif reason := turn.read().cut_off:
        return Fork(f"the turn was cut off: {reason}")
    return extend(turn.ids, encode_spans(tokenizer, spans))
