"""Converts OpenAI's dictionaries to messages, replies and options, and messages to the dictionaries of templates."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from arcforge_core.contracts.chat import ChatOptions, Message, PicturedMessage, Tool, ToolCall
from arcforge_core.contracts.environment import EpisodeFailure, Reply
from arcforge_core.errors import ConfigError

ROLE_ALIASES = {"developer": "system"}
UNTHINKING = ("none", "minimal")
"""Values of ``reasoning_effort`` that turn the reasoning off."""
SWITCHES = ("enable_thinking", "clear_thinking")
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Field names of the reasoning in OpenAI-like APIs; the first is older and more common."""


class MalformedReply(EpisodeFailure):
    """A completion that its model spoiled, as with arguments of a call that are no JSON object."""


def messages_from_openai(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns the messages of a chat request.

    Content may be a string, null, or a list of text parts; arguments of calls may be JSON in a string or a mapping.

    Raises:
        ConfigError: a role, a part or arguments are invalid; the field names the message's index.
    """
    return [message_from_openai(message, f"messages[{index}]") for index, message in enumerate(messages)]


def message_from_openai(message: Mapping[str, Any], where: str) -> Message:
    """Returns one message, which an error calls `where`; see `messages_from_openai`."""
    role = message.get("role")
    reasoning = next((message[name] for name in REASONING_FIELDS if isinstance(message.get(name), str)), None)
    calls = [_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(message.get("tool_calls") or ())]
    try:
        return Message(
            ROLE_ALIASES.get(str(role), str(role)),
            _text(message.get("content"), f"{where}.content"),
            reasoning=reasoning if role == "assistant" else None,
            tool_calls=tuple(calls),
            tool_call_id=message.get("tool_call_id"),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}.{error.field.removeprefix('message.')}", error.value, error.accepted) from error


def tools_from_openai(tools: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """Returns the tools of a chat request.

    Raises:
        ConfigError: a tool has no name.
    """
    return [Tool(tool) for tool in tools or ()]


def options_from_openai(request: Mapping[str, Any]) -> ChatOptions:
    """Returns the rendering options of a chat request.

    Reads, each taking precedence over those before it, ``reasoning_effort`` of OpenAI's API,
    ``thinking: {"type": "enabled" | "disabled", "clear_thinking": bool}`` of Z.ai's, and ``chat_template_kwargs`` of
    vLLM and SGLang.

    Raises:
        ConfigError: an invalid value.
    """
    thinking, effort = request.get("thinking") or {}, request.get("reasoning_effort")
    if thinking.get("type", "enabled") not in ("enabled", "disabled"):
        raise ConfigError("thinking.type", thinking["type"], "must be enabled or disabled")
    switches: dict[str, Any] = {} if effort is None else {"enable_thinking": effort not in UNTHINKING}
    if "type" in thinking:
        switches["enable_thinking"] = thinking["type"] == "enabled"
    if "clear_thinking" in thinking:
        switches["clear_thinking"] = thinking["clear_thinking"]
    extra = dict(request.get("chat_template_kwargs") or {})
    switches |= {name: extra.pop(name) for name in SWITCHES if name in extra}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise ConfigError(name, value, "must be true or false")
    given = frozenset(name for name, value in switches.items() if value)
    return ChatOptions(**switches, reasoning_effort=effort, extra=extra, given=given)


def switches_of(options: ChatOptions) -> dict[str, bool]:
    """Returns the switches of a request; one that is on only if it was turned on: a template has its own defaults."""
    switches = {name: getattr(options, name) for name in SWITCHES}
    return {name: is_on for name, is_on in switches.items() if not is_on or name in options.given}


def reply_from_openai(answer: Any, where: str = "") -> Reply:
    """Returns the reply in a chat completion; calls of one that was cut off are left out.

    Args:
        answer: JSON of the server.
        where: begins the reason of a failure.

    Raises:
        MalformedReply: its message cannot be read, or no further request could carry it.
        EpisodeFailure: it is none, or the turn did not end by itself or at its limit.
    """
    try:
        (choice,) = answer["choices"]
        given, reason = choice["message"], str(choice["finish_reason"])
    except (KeyError, TypeError, ValueError) as error:
        raise EpisodeFailure("engine", f"{where}no chat completion: {error}: {json.dumps(answer)[:200]}") from error
    try:
        (message,) = messages_from_openai([given])
        json.dumps(message_to_openai(message), ensure_ascii=False).encode()  # as the next request carries it
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        told = f"{str(error)[:200]}: {json.dumps(answer)[:200]}"
        raise MalformedReply("engine", f"{where}no chat completion: {told}") from error
    if reason not in ("stop", "tool_calls", "length"):
        raise EpisodeFailure("engine", f"{where}a turn ended with {reason}")
    is_cut = reason == "length"
    calls = () if is_cut else message.tool_calls
    return Reply(message.content, message.reasoning or "", calls, "length" if is_cut else "stop")


def message_for_template(message: Message) -> dict[str, Any]:
    """Returns the dictionary that Hugging Face's templates expect; arguments are mappings, not JSON in a string."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "type": "function",
                **({} if call.id is None else {"id": call.id}),
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    return found


def message_to_openai(message: Message) -> dict[str, Any]:
    """Returns a message of a chat request, as clients of OpenAI's API send it; arguments are JSON in a string, pictures
    data URIs."""
    found = message_for_template(message)
    if isinstance(message, PicturedMessage):
        uris = [f"data:image/png;base64,{base64.b64encode(data).decode()}" for data in message.pictures]
        found["content"] = [{"type": "text", "text": message.content}]
        found["content"] += [{"type": "image_url", "image_url": {"url": uri}} for uri in uris]
    for call in found.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return found


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise ConfigError(where, content, "must be a string or a list of text parts")
    return "".join(_part(part, where) for part in content)


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    if not isinstance(text, str):
        raise ConfigError(where, part, "must be a text part")
    return text


def _call(call: Mapping[str, Any], where: str) -> ToolCall:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise ConfigError(f"{where}.arguments", function["arguments"], f"must be JSON: {error}") from error
    if not isinstance(arguments, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(where, dict(call), "must have a name, and a JSON object of arguments")
    return ToolCall(function["name"], dict(arguments), call.get("id"))
