"""Parses records: OpenAI's messages, ShareGPT's turns and ATIF's steps, with marks that exclude text from the loss."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from arcforge_core.chat.atif import from_atif, is_atif
from arcforge_core.chat.openai import messages_from_openai, options_from_openai, tools_from_openai
from arcforge_core.contracts.chat import Message, Tool
from arcforge_core.contracts.conversation import OFF, OPTIONS, BadRecord, Check, Conversation
from arcforge_core.data.conversations.failures import failed
from arcforge_core.errors import ConfigError, DataError, nearest

SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "bot", "chatgpt"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function_response"), "tool"),
    "system": "system",
    "function_call": "assistant",
}
"""ShareGPT's names of speakers, mapped to roles."""
CUT_OFF = ("length", "max_tokens")
"""Values of ``finish_reason`` for answers that hit a limit."""


def parse(record: Mapping[str, Any], form: str, thinking: str, mask_errors: bool) -> Conversation:
    """Returns the conversation of a record.

    Args:
        record: its fields.
        form: ``openai``, ``sharegpt``, or ``auto``, which detects it.
        thinking: mode of records that name none and have reasoning; without reasoning it is ``off``.
        mask_errors: exclude messages whose tool calls failed from the loss.

    Raises:
        BadRecord: the record is not a conversation, with the reason.
    """
    try:
        record = from_atif(record) if is_atif(record) else record
        found = _openai_messages(record, form)
        tools = tuple(tools_from_openai(_tools(record.get("tools"))))
        parsed = messages_from_openai([{**message, "content": _content(message)} for message in found])
        trained = [_is_trained(message, f"messages[{n}]") for n, message in enumerate(found)]
        if mask_errors:
            for n in failed(parsed, found):
                trained[n] = False
        messages = tuple(
            replace(_split_think(message), trained=keep) for message, keep in zip(parsed, trained, strict=True)
        )
        reasons = any(message.reasoning for message in messages)
        return Conversation(
            messages,
            tools,
            _options(record, thinking if reasons else OFF),
            _text(record, "source"),
            _text(record, "task") or None,
            _checks(record, found),
            any(holder.get("finish_reason") in CUT_OFF for holder in (record, *found[-1:])),
            {n: parts for n, message in enumerate(found) if (parts := _parts(message, f"messages[{n}]"))},
            _files(record.get("files")),
        )
    except (ConfigError, DataError) as error:
        raise BadRecord(str(error)) from error


def _openai_messages(record: Mapping[str, Any], form: str) -> list[dict[str, Any]]:
    """Returns the record's messages in OpenAI's format."""
    name = next((name for name in ("messages", "conversations", "conversation") if name in record), None)
    if name is None:
        raise BadRecord(f"the record must have messages or conversations, but has {', '.join(record) or 'nothing'}")
    found = record[name]
    if not isinstance(found, list) or not found or not all(isinstance(message, dict) for message in found):
        raise BadRecord(f"{name} must be a list of at least one object")
    if form == "auto":
        form = "sharegpt" if all("from" in message for message in found) else "openai"
    if form == "sharegpt":
        found = [_from_sharegpt(message, f"{name}[{n}]") for n, message in enumerate(found)]
        if system := _text(record, "system"):
            found = [{"role": "system", "content": system}, *found]
    for n, message in enumerate(found):
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadRecord(f"{name}[{n}].tool_calls must be a list of objects")
        if not all(isinstance(call.get("function", call), dict) for call in calls):
            raise BadRecord(f"{name}[{n}].tool_calls: function must be an object")
    return found


def _from_sharegpt(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    speaker, value = message.get("from"), message.get("value")
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise BadRecord(
            f"{where}.from={speaker!r}: must be one of {', '.join(SPEAKERS)}{nearest(str(speaker), SPEAKERS)}"
        )
    if not isinstance(value, str):
        raise BadRecord(f"{where}.value must be a text")
    marks = {name: part for name, part in message.items() if name not in ("from", "value")}
    if speaker != "function_call":
        return {"role": SPEAKERS[speaker], "content": value, **marks}
    try:
        calls = json.loads(value)
    except ValueError as error:
        raise BadRecord(f"{where}.value of a function_call must be JSON: {error}") from error
    return {"role": "assistant", "content": "", "tool_calls": calls if isinstance(calls, list) else [calls], **marks}


def _tools(value: Any) -> Sequence[Mapping[str, Any]]:
    """Returns the tools; some data sets store them as JSON in a string."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadRecord(f"tools must be a list, or JSON of one: {error}") from error
    if not value:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadRecord("tools must be a list of objects")
    return value


def _content(message: Mapping[str, Any]) -> Any:
    """Returns the content without the marks of its parts."""
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        raise BadRecord(f"content must be a text or a list of parts, not a {type(content).__name__}")
    return content


def _parts(message: Mapping[str, Any], where: str) -> tuple[tuple[str, bool], ...]:
    """Returns the parts of a content and whether each is trained; () if all are trained."""
    content = message.get("content")
    if not isinstance(content, list) or message.get("role") != "assistant":
        return ()
    marked = [part if isinstance(part, dict) else {"text": part} for part in content]
    parts = tuple((str(p["text"]), _is_trained(p, f"{where}.content[{n}]")) for n, p in enumerate(marked))
    return () if all(trained for _, trained in parts) else parts


def _is_trained(marked: Mapping[str, Any], where: str) -> bool:
    """Reads the marks ``train``, ``weight`` (OpenAI's) and ``error``."""
    train, weight, error = marked.get("train", True), marked.get("weight", 1), marked.get("error", False)
    if not isinstance(train, bool):
        raise BadRecord(f"{where}.train={train!r}: must be true or false")
    if weight not in (0, 1):
        raise BadRecord(f"{where}.weight={weight!r}: must be 0 or 1")
    return train and bool(weight) and not error


def _split_think(message: Message) -> Message:
    """Moves reasoning between tags at the start of the content to its field."""
    text = message.content.lstrip()
    if message.role != "assistant" or message.reasoning is not None or not text.startswith("<think>"):
        return message
    reasoning, end, content = text.removeprefix("<think>").partition("</think>")
    return replace(message, reasoning=reasoning.strip(), content=content.lstrip()) if end else message


def _options(record: Mapping[str, Any], default: str) -> Any:
    """Returns rendering options: the record's ``thinking``, a mode's name or a request's field, or the default."""
    said = record.get("thinking")
    if isinstance(said, str):
        if said not in OPTIONS:
            raise BadRecord(f"thinking={said!r}: must be one of {', '.join(OPTIONS)}{nearest(said, OPTIONS)}")
        return OPTIONS[said]
    if said is None and not record.get("chat_template_kwargs"):
        return OPTIONS[default]
    for name in ("thinking", "chat_template_kwargs"):
        if not isinstance(record.get(name) or {}, dict):
            raise BadRecord(f"{name} must be an object")
    return options_from_openai(record)


def _checks(record: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> tuple[Check, ...]:
    """Returns the checkers of messages, and the record's own, which judges the last message."""
    holders = [*enumerate(messages), (len(messages) - 1, record)]
    return tuple(_check(n, holder["checker"]) for n, holder in holders if holder.get("checker"))


def _check(message: int, named: Any) -> Check:
    if not isinstance(named, dict) or not isinstance(named.get("name"), str):
        raise BadRecord("checker must be an object with a name")
    arguments = named.get("arguments") or {}
    if not isinstance(arguments, dict):
        raise BadRecord("checker.arguments must be an object")
    return Check(message, named["name"], arguments)


def _files(value: Any) -> dict[str, str] | None:
    """Returns the initial files for tools; None if the record has none."""
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise BadRecord("files must be an object of texts by path")
    return value


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name) or ""
    if not isinstance(value, str):
        raise BadRecord(f"{name} must be a text")
    return value


def tools_by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}
