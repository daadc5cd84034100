"""Items of `/v1/responses` as messages, without a server."""

from pydantic import TypeAdapter

from arcforge_serving.server.responses.items import Item, chat_messages

ITEMS = TypeAdapter(list[Item])


def messages(*items):
    return chat_messages(ITEMS.validate_python(items))


def thought(content, summary=""):
    parts = {"content": [("reasoning_text", content)], "summary": [("summary_text", summary)]}
    shown = {name: [{"type": kind, "text": text} for kind, text in found if text] for name, found in parts.items()}
    return {"type": "reasoning", **shown}


def said(text):
    return {"type": "message", "role": "assistant", "content": text}


def called(name):
    return {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"}


def test_a_summary_is_read_where_reasoning_has_no_content():
    assert messages(thought("all of it", "in short")) == [{"role": "assistant", "reasoning_content": "all of it"}]
    assert messages(thought("", "in short")) == [{"role": "assistant", "reasoning_content": "in short"}]


def test_reasoning_behind_a_text_or_a_call_begins_another_turn():
    first, second = messages(said("a"), thought("why"), said("b"))
    assert first == {"role": "assistant", "content": "a"}
    assert second == {"role": "assistant", "reasoning_content": "why", "content": "b"}
    first, second = messages(thought("ask"), called("f"), thought("why"), called("g"))
    assert (first["reasoning_content"], [call["id"] for call in first["tool_calls"]]) == ("ask", ["f"])
    assert (second["reasoning_content"], [call["id"] for call in second["tool_calls"]]) == ("why", ["g"])


def test_reasoning_in_parts_calls_and_a_text_behind_them_are_one_turn():
    (turn,) = messages(thought("a"), thought("b"), said("c"), called("f"), called("g"))
    assert (turn["reasoning_content"], turn["content"], len(turn["tool_calls"])) == ("ab", "c", 2)
    (turn,) = messages(called("f"), said("c"))
    assert (turn["content"], len(turn["tool_calls"])) == ("c", 1)


def test_results_need_not_name_their_call_nor_references_their_type():
    assert messages({"type": "function_call_output", "output": "4"}) == [{"role": "tool", "content": "4"}]
    (item,) = ITEMS.validate_python([{"id": "msg_1", "type": None}])
    assert (item.type, item.id) == ("item_reference", "msg_1")
    (item,) = ITEMS.validate_python([{"id": "msg_1", "role": "user", "content": "Hi"}])
    assert item.type == "message"
