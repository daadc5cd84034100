"""Constraints of a chat request as matchers: tool choice, strict tools and structured output."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from arcforge_core.chat.parser import CALL, END_CALL, END_THINK, THINK
from arcforge_core.contracts.chat import ChatTemplate, Tool
from arcforge_core.errors import ConfigError
from arcforge_serving.server.openai.chat_request import ChatRequest, NamedTool
from arcforge_serving.server.openai.tool_grammar import rest_of_call, strict, whole_calls, without_schema
from arcforge_serving.server.openai.turn_grammar import CallsMatcher, EitherMatcher, TurnMatcher, free_mask
from arcforge_serving.server.shared.state import ServerState
from arcforge_serving.server.shared.structured import MatcherFactory, Structure


def turn_matcher(
    body: ChatRequest, server: ServerState, template: ChatTemplate, prompt: Sequence[int], tools: Sequence[Tool]
) -> MatcherFactory | None:
    """Returns the matcher of the assistant's turn; None without constraints.

    With a structure and tools, the turn is calls or the structure; where a tool must be called, it is calls.

    Raises:
        ConfigError: fields that contradict each other, an unsupported schema, or a format without grammar.
    """
    grammars, wanted = server.grammars, body.structure
    whole: list[MatcherFactory] = []
    if tools and (body.is_forced or wanted is not None):
        many = not isinstance(body.tool_choice, NamedTool) and body.parallel_tool_calls
        grammar = whole_calls(template.parser(prompt, tools), server.tokenizer, tools, many)
        whole.append(Structure("tools", "grammar", grammar).matcher(grammars))
    if wanted is not None and not body.is_forced:
        whole.append(wanted.matcher(grammars))
    if whole:
        inner = whole[0] if len(whole) == 1 else partial(EitherMatcher, whole)
        return _after_reasoning(inner, server, template, prompt)
    special = server.tokenizer.special
    known = server.tokenizer.vocab_size
    if body.tool_choice == "none" and body.tools:
        begin, free_V = special.get(CALL), free_mask(grammars.vocabulary, known)
        without_V = free_mask(grammars.vocabulary, known, () if begin is None else (begin,))
        return None if begin is None else partial(CallsMatcher, begin, begin, None, without_V, free_V)
    return _checked_calls(body, server, template, prompt, tools)


def not_guaranteed(
    body: ChatRequest, server: ServerState, template: ChatTemplate, prompt: Sequence[int], tools: Sequence[Tool]
) -> list[str]:
    """Returns the names of constraints on free calls that are served without a guarantee.

    They need calls that begin and end with tokens of their own, and schemas that have a grammar.
    """
    if not tools or body.is_forced or body.structure is not None:
        return []
    is_strict = any(map(strict, tools))
    if _marks_calls(server):
        unmet = is_strict and _call_grammar(server, template, prompt, tools) is None
        return ["tools.function.strict"] if unmet else []
    asked = {
        "tools.function.strict": is_strict, "parallel_tool_calls": not body.parallel_tool_calls,
        "tool_choice.allowed_tools": body.chosen is not None,
    }  # fmt: skip
    return [name for name, is_asked in asked.items() if is_asked]


def _marks_calls(server: ServerState) -> bool:
    return CALL in server.tokenizer.special and END_CALL in server.tokenizer.special


def _call_grammar(
    server: ServerState, template: ChatTemplate, prompt: Sequence[int], tools: Sequence[Tool]
) -> MatcherFactory | None:
    """Returns the matcher of a call after its first token; None if the format or a strict schema has no grammar."""
    try:
        grammar = rest_of_call(template.parser(prompt, tools), server.tokenizer, tools)
        return Structure("tools", "grammar", grammar).matcher(server.grammars)
    except ConfigError:
        return None


def _checked_calls(
    body: ChatRequest, server: ServerState, template: ChatTemplate, prompt: Sequence[int], tools: Sequence[Tool]
) -> MatcherFactory | None:
    """Returns a free turn in which calls follow a grammar; None where nothing limits them, or nothing can."""
    limited = any(map(strict, tools)) or body.chosen is not None
    if not (tools and (limited or not body.parallel_tool_calls) and _marks_calls(server)):
        return None
    special, vocabulary, known = server.tokenizer.special, server.grammars.vocabulary, server.tokenizer.vocab_size
    call = None
    if limited:
        names_alone = [without_schema(tool) for tool in tools]
        call = _call_grammar(server, template, prompt, tools) or _call_grammar(server, template, prompt, names_alone)
    free_V, inside_V = free_mask(vocabulary, known), free_mask(vocabulary, known, template.stop_ids)
    last_V = None
    if not body.parallel_tool_calls:
        last_V = ~free_mask(vocabulary, vocabulary, template.stop_ids)
    return partial(CallsMatcher, special[CALL], special[END_CALL], call, free_V, inside_V, last_V)


def _after_reasoning(
    inner: MatcherFactory, server: ServerState, template: ChatTemplate, prompt: Sequence[int]
) -> MatcherFactory:
    tokenizer = server.tokenizer
    until = None
    if tokenizer.decode(prompt[-32:]).rstrip().endswith(THINK):
        until = tokenizer.special.get(END_THINK)
        if until is None:
            accepted = f"must be false for structured output and forced calls: {END_THINK} is no token of this model"
            raise ConfigError("chat_template_kwargs", "enable_thinking", accepted)
    stops = [*template.stop_ids, tokenizer.eos_id]
    calls = [tokenizer.special[CALL]] if CALL in tokenizer.special else []  # one would end the reasoning for parsers
    free_V = free_mask(server.grammars.vocabulary, tokenizer.vocab_size, [*stops, *calls])
    return partial(TurnMatcher, inner, free_V, until, tokenizer.eos_id, stops)
