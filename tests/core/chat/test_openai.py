import pytest

from arcforge_core.chat.openai import (
    message_for_template,
    message_to_openai,
    messages_from_openai,
    options_from_openai,
    tools_from_openai,
)
from arcforge_core.contracts.chat import ChatOptions, Message, PicturedMessage, Tool, ToolCall
from arcforge_core.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"role": "user", "content": "a"}, Message("user", "a")),
        ({"role": "developer", "content": None}, Message("system", "")),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, Message("user", "ab")),
        ({"role": "user", "content": "a", "reasoning": "ignored"}, Message("user", "a")),
        ({"role": "assistant", "content": "a", "reasoning": "r"}, Message("assistant", "a", reasoning="r")),
        ({"role": "assistant", "reasoning_content": "", "reasoning": "r"}, Message("assistant", reasoning="")),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}]},
            Message("assistant", tool_calls=(ToolCall("f", {"x": 1}, "1"),)),
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}, {"name": "g"}]},
            Message("assistant", tool_calls=(ToolCall("f", {"x": 1}), ToolCall("g", {}))),
        ),
        ({"role": "tool", "content": "a", "tool_call_id": "1"}, Message("tool", "a", tool_call_id="1")),
    ],
)
def test_messages(given, message):
    assert messages_from_openai([given]) == [message]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"role": "robot"}, r"messages\[1\]\.role='robot': must be one of"),
        ({"content": "a"}, r"messages\[1\]\.role"),
        ({"role": "user", "content": 5}, r"messages\[1\]\.content=5: must be a string or a list"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"messages\[1\]\.content.*must be a text part"),
        ({"role": "user", "tool_calls": [{"name": "f"}]}, r"messages\[1\]\.role='user': must be assistant"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}, r"tool_calls\[0\]\.arguments.*JSON"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "arguments": "[]"}]}, r"tool_calls\[0\].*JSON object"),
        ({"role": "assistant", "tool_calls": [{"arguments": "{}"}]}, r"tool_calls\[0\].*must have a name"),
    ],
)
def test_what_is_not_understood_is_named(given, error):
    with pytest.raises(ConfigError, match=error):
        messages_from_openai([{"role": "user", "content": "a"}, given])


def test_tools():
    assert tools_from_openai(None) == []
    [tool] = tools_from_openai([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
    assert (tool.name, tool.parameters) == ("f", {"type": "object"})
    with pytest.raises(ConfigError, match="must have a name"):
        tools_from_openai([{"function": None}])


@pytest.mark.parametrize(
    ("request_", "options"),
    [
        ({}, ChatOptions()),
        ({"thinking": {"type": "disabled"}}, ChatOptions(enable_thinking=False)),
        ({"thinking": {"type": "enabled"}}, ChatOptions(given=frozenset({"enable_thinking"}))),
        ({"thinking": {"clear_thinking": False}}, ChatOptions(clear_thinking=False)),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            ChatOptions(extra={"x": 1}, given=frozenset({"enable_thinking"})),
        ),
        ({"reasoning_effort": "none"}, ChatOptions(enable_thinking=False, reasoning_effort="none")),
        ({"reasoning_effort": "minimal"}, ChatOptions(enable_thinking=False, reasoning_effort="minimal")),
        ({"reasoning_effort": "low"}, ChatOptions(reasoning_effort="low", given=frozenset({"enable_thinking"}))),
        (
            {"reasoning_effort": "none", "thinking": {"type": "enabled"}},
            ChatOptions(reasoning_effort="none", given=frozenset({"enable_thinking"})),
        ),
        ({"chat_template_kwargs": {"clear_thinking": False}}, ChatOptions(clear_thinking=False)),
    ],
)
def test_options(request_, options):
    assert options_from_openai(request_) == options


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"thinking": {"type": "loud"}}, r"thinking\.type='loud': must be enabled or disabled"),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "enable_thinking='no': must be true or false"),
    ],
)
def test_options_that_are_not_understood(request_, error):
    with pytest.raises(ConfigError, match=error):
        options_from_openai(request_)


def test_a_template_gets_what_transformers_gives_it():
    call = ToolCall("f", {"x": 1}, "1")
    assert message_for_template(Message("assistant", "a", reasoning="r", tool_calls=(call,))) == {
        "role": "assistant",
        "content": "a",
        "reasoning_content": "r",
        "tool_calls": [{"type": "function", "id": "1", "function": {"name": "f", "arguments": {"x": 1}}}],
    }
    assert message_for_template(Message("tool", "a", tool_call_id="1")) == {
        "role": "tool",
        "content": "a",
        "tool_call_id": "1",
    }


@pytest.mark.parametrize("parameters", [5, "text", [1]])
def test_parameters_that_are_no_schema_are_refused(parameters):
    with pytest.raises(ConfigError, match="parameters of f must be a JSON schema"):
        Tool({"type": "function", "function": {"name": "f", "parameters": parameters}})


def test_pictures_are_data_uris():
    assert message_to_openai(PicturedMessage("user", "Look:", pictures=(b"one", b"two"))) == {
        "role": "user",
        "content": [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,b25l"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,dHdv"}},
        ],
    }
