import re
from dataclasses import replace

import pytest

from arcforge_core.contracts.chat import Message, Tool, ToolCall
from arcforge_core.contracts.conversation import OFF, OPTIONS, Conversation
from arcforge_core.data.conversations.format import format_flaw

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "number"}, "s": {"type": ["string", "null"]}, "any": {}},
    "required": ["x"],
}
TOOL = Tool({"name": "f", "parameters": SCHEMA})
USER, ANSWER = Message("user", "q"), Message("assistant", "a")


def calling(*calls: ToolCall, trained: bool = True) -> Message:
    return Message("assistant", "", tool_calls=calls, trained=trained)


GOOD_CALL = ToolCall("f", {"x": 1, "s": None, "any": []}, "1")
RESULT = Message("tool", "3", tool_call_id="1")


@pytest.mark.parametrize(
    "messages",
    [
        [USER, ANSWER],
        [ANSWER, USER, ANSWER],
        [USER, calling(GOOD_CALL), RESULT, ANSWER],
        [USER, calling(GOOD_CALL, GOOD_CALL), RESULT, RESULT, ANSWER],
        [USER, calling(GOOD_CALL)],
        [USER, calling(ToolCall("g", {}), trained=False), RESULT, ANSWER],
        [USER, Message("assistant", "a", reasoning="r")],
        [Message("user", "what is <think>?"), ANSWER],
    ],
)
def test_well_formed(messages: list[Message]) -> None:
    assert format_flaw(Conversation(tuple(messages), (TOOL,))) is None


@pytest.mark.parametrize(
    ("messages", "flaw"),
    [
        ([USER], "no assistant message"),
        ([USER, replace(ANSWER, trained=False)], "no assistant message is trained"),
        ([USER, ANSWER, ANSWER], "second assistant message in a row"),
        ([USER, RESULT, ANSWER], r"messages\[1\] is a result without a call"),
        ([USER, ANSWER, RESULT, ANSWER], r"messages\[2\] is a result without a call"),
        ([USER, Message("assistant", " ")], "is empty"),
        ([USER, Message("assistant", "a <tool_call>f")], r"has <tool_call> in its text"),
        ([USER, Message("assistant", "a", reasoning="<|im_end|>")], r"has <\|im_end\|> in its text"),
        ([USER, calling(ToolCall("g", {})), RESULT, ANSWER], "calls 'g', which is not a tool"),
        ([USER, calling(ToolCall("f", {})), RESULT, ANSWER], "calls f without x"),
        ([USER, calling(ToolCall("f", {"x": 1, "y": 2})), RESULT, ANSWER], "with y, which it does not accept"),
        ([USER, calling(ToolCall("f", {"x": "1"})), RESULT, ANSWER], "with x of type string, not"),
        ([USER, calling(ToolCall("f", {"x": True})), RESULT, ANSWER], "with x of type boolean, not"),
        ([USER, calling(GOOD_CALL, GOOD_CALL), RESULT, ANSWER], "makes 2 calls, but 1 results follow"),
        ([USER, calling(GOOD_CALL), USER, ANSWER], "makes 1 calls, but 0 results follow"),
        ([USER, calling(GOOD_CALL), replace(RESULT, tool_call_id="2"), ANSWER], "ids differ from those of the calls"),
    ],
)
def test_flaws(messages: list[Message], flaw: str) -> None:
    found = format_flaw(Conversation(tuple(messages), (TOOL,)))
    assert found is not None
    assert re.search(flaw, found)


def test_reasoning_with_thinking_off() -> None:
    thoughtful = Conversation((USER, Message("assistant", "a", reasoning="r")), (), OPTIONS[OFF])
    assert "thinking is off" in str(format_flaw(thoughtful))


def test_a_call_without_any_tool_is_a_flaw() -> None:
    assert "not a tool of the conversation" in str(
        format_flaw(Conversation((USER, calling(GOOD_CALL), RESULT, ANSWER)))
    )
