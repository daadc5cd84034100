import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arcforge_core.contracts.chat import Message, ToolCall
from arcforge_core.contracts.conversation import BadRecord, Conversation
from arcforge_core.data.conversations.parse import parse

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {}}}}}


def read(record: dict[str, Any], form: str = "auto", mask_errors: bool = True) -> Conversation:
    return parse(record, form, "interleaved", mask_errors)


def chat(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "a"}


def test_openai_messages_with_tools_reasoning_and_calls() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    found = read(
        chat(
            {"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "7"},
            ANSWER,
            tools=[TOOL],
            source="s",
            task="t",
        )
    )
    assert found.messages == (
        Message("system", "s"),
        Message("user", "q"),
        Message("assistant", "", reasoning="r", tool_calls=(ToolCall("f", {"x": 1}, "1"),)),
        Message("tool", "7", tool_call_id="1"),
        Message("assistant", "a"),
    )
    assert (found.source, found.task, found.mode, [t.name for t in found.tools]) == ("s", "t", "interleaved", ["f"])


def test_sharegpt_is_the_same_conversation() -> None:
    turns = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
        {"from": "observation", "value": "7"},
        {"from": "gpt", "value": "<think>\nr\n</think>\n\na"},
    ]
    found = read({"conversations": turns, "system": "s", "tools": json.dumps([TOOL])})
    assert found.messages == (
        Message("system", "s"),
        Message("user", "q"),
        Message("assistant", "", tool_calls=(ToolCall("f", {"x": 1}),)),
        Message("tool", "7"),
        Message("assistant", "a", reasoning="r"),
    )
    assert [t.name for t in found.tools] == ["f"]


@pytest.mark.parametrize(
    ("fields", "mode"),
    [
        ({}, "interleaved"),
        ({"thinking": "preserved"}, "preserved"),
        ({"thinking": {"type": "enabled", "clear_thinking": False}}, "preserved"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "off"),
        ({"thinking": {"type": "disabled"}}, "off"),
    ],
)
def test_modes(fields: dict[str, Any], mode: str) -> None:
    assert read(chat(USER, {**ANSWER, "reasoning": "r"}, **fields)).mode == mode


def test_without_reasoning_and_without_a_word_about_it_thinking_is_off() -> None:
    assert read(chat(USER, ANSWER)).mode == "off"


@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}, {"error": True}, {"error": "wrong turn"}])
def test_marks_keep_a_message_out_of_the_loss(mark: dict[str, Any]) -> None:
    found = read(chat(USER, {**ANSWER, **mark}, USER, ANSWER))
    assert [m.trained for m in found.messages] == [True, False, True, True]


def test_marks_of_parts_are_kept_by_part() -> None:
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two", "train": False}, "three"]
    found = read(chat(USER, {"role": "assistant", "content": parts}))
    assert found.messages[1].content == "one twothree"
    assert found.parts == {1: (("one ", True), ("two", False), ("three", True))}
    assert read(chat(USER, {"role": "assistant", "content": ["a", "b"]})).parts == {}


def test_checkers_of_messages_and_of_the_record() -> None:
    first, last = ({"name": "exact", "arguments": {"answer": a}} for a in "ab")
    found = read(chat(USER, {**ANSWER, "checker": first}, USER, ANSWER, checker=last))
    assert [(c.message, c.name, c.arguments) for c in found.checks] == [
        (1, "exact", {"answer": "a"}),
        (3, "exact", {"answer": "b"}),
    ]


@pytest.mark.parametrize("fields", [{"finish_reason": "length"}, {"finish_reason": "max_tokens"}])
def test_a_finish_reason_that_is_a_limit_is_seen(fields: dict[str, Any]) -> None:
    assert read(chat(USER, ANSWER, **fields)).cut_off
    assert read(chat(USER, {**ANSWER, **fields})).cut_off
    assert not read(chat(USER, {**ANSWER, "finish_reason": "stop"})).cut_off


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "x"}, "must have messages or conversations, but has text"),
        ({"messages": []}, "messages must be a list of at least one object"),
        ({"messages": ["x"]}, "messages must be a list of at least one object"),
        (chat({"role": "usr", "content": ""}), r"messages\[0\].role='usr': must be one of"),
        (chat({"role": "user", "content": 3}), "content must be a text or a list of parts, not a int"),
        (chat({"role": "user", "content": [{"type": "image"}]}), "must be a text part"),
        (
            chat({**ANSWER, "tool_calls": {}}, USER) | {"messages": [{**ANSWER, "tool_calls": {"a": 1}}]},
            "tool_calls must",
        ),
        (chat({**ANSWER, "tool_calls": [{"function": "f"}]}), "function must be an object"),
        (chat({**ANSWER, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}), "must be JSON"),
        (chat(USER, tools="{"), "tools must be a list, or JSON of one"),
        (chat(USER, tools=[{"a": 1}]), "must have a name"),
        (chat({**ANSWER, "train": "no"}), r"messages\[0\].train='no': must be true or false"),
        (chat({**ANSWER, "weight": 0.5}), r"weight=0.5: must be 0 or 1"),
        (chat(USER, thinking="of"), "thinking='of': must be one of off, interleaved, preserved"),
        (chat(USER, thinking=3), "thinking must be an object"),
        (chat(USER, checker="x"), "checker must be an object with a name"),
        (chat(USER, checker={"name": "exact", "arguments": 3}), "checker.arguments must be an object"),
        (chat(USER, source=3), "source must be a text"),
        ({"conversations": [{"from": "humn", "value": ""}]}, "from='humn': must be one of .* did you mean 'human'"),
        ({"conversations": [{"from": "human"}]}, "value must be a text"),
        ({"conversations": [{"from": "function_call", "value": "x"}]}, "must be JSON"),
    ],
)
def test_bad_records_say_what_is_wrong(record: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        read(record)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = (
    "role",
    "content",
    "tool_calls",
    "reasoning_content",
    "train",
    "weight",
    "from",
    "value",
    "checker",
    "tool_call_id",
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "messages": st.lists(
                st.dictionaries(st.sampled_from(KEYS), VALUES | st.sampled_from(["user", "assistant"]))
            ),
            "conversations": VALUES,
            "tools": VALUES,
            "thinking": VALUES,
            "chat_template_kwargs": VALUES,
            "checker": VALUES,
            "finish_reason": VALUES,
        },
    )
)
def test_any_json_is_a_conversation_or_a_bad_record(record: dict[str, Any]) -> None:
    try:
        assert isinstance(read(record), Conversation)
    except BadRecord as error:
        assert str(error)
