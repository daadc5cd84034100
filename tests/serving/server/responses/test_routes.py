"""`/v1/responses` through the `openai` client. What the model says is scripted by a grammar."""

import openai
import pytest

from arcforge_serving.server.shared.memories import Memories
from arcforge_serving.server.shared.response_store import ResponseStore

FUNCTION = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "weather", "parameters": FUNCTION}
PING = {"type": "function", "name": "ping", "parameters": {"type": "object", "properties": {}}}
SAID = ["Ask é.", "</think>", "Sure 😀.", "<tool_call>", "weather", "<arg_key>", "city", "</arg_key>", "<arg_value>",
        "Zürich", "</arg_value>", "</tool_call>", "<tool_call>", "ping", "</tool_call>"]  # fmt: skip


@pytest.fixture(scope="module")
def client(live):
    return live[1]


def ask(client, **fields):
    """Returns the whole response, which must be what its stream builds, but for ids, and the stream's events."""
    fields = {"model": "small", "input": "Hello ü", **fields}
    extra = {"seed": 3, **fields.pop("extra_body", {})}
    whole = client.responses.create(**fields, extra_body=extra)
    events = list(client.responses.create(**fields, extra_body=extra, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    built = events[-1].response
    assert [shown(item) for item in built.output] == [shown(item) for item in whole.output]
    assert built.status == whole.status
    assert built.usage.output_tokens_details == whole.usage.output_tokens_details
    assert (built.usage.input_tokens, built.usage.output_tokens) == (
        whole.usage.input_tokens,
        whole.usage.output_tokens,
    )
    joined = {}
    for event in events:
        if event.type.endswith(".delta"):
            joined[event.output_index] = joined.get(event.output_index, "") + event.delta
    assert list(joined.values()) == [text_of(item) for item in whole.output]
    return whole, events


def shown(item):
    return item.model_dump(exclude={"id", "call_id"})


def text_of(item):
    return item.arguments if item.type == "function_call" else item.content[0].text


def test_reasoning_text_and_calls_are_items(client, says):
    says(*SAID)
    response, events = ask(client, tools=[WEATHER, PING])
    reasoning, message, first, second = response.output
    assert (reasoning.type, reasoning.content[0].text, reasoning.summary) == ("reasoning", "Ask é.", [])
    assert (message.type, message.role, message.content[0].text) == ("message", "assistant", "Sure 😀.")
    assert (first.type, first.name, first.arguments) == ("function_call", "weather", '{"city": "Zürich"}')
    assert (second.name, second.arguments) == ("ping", "{}")
    assert first.call_id != second.call_id
    assert {item.status for item in response.output} == {"completed"}
    assert (response.status, response.error, response.object) == ("completed", None, "response")
    assert response.output_text == "Sure 😀."
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-2:] == ["response.output_item.done", "response.completed"]
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4
    assert kinds.count("response.content_part.added") == kinds.count("response.content_part.done") == 2


def test_tokens_of_reasoning_are_counted(client, says):
    says("one two", "</think>", "abc")
    tokens = ask(client)[0].usage
    reasoning = tokens.output_tokens_details.reasoning_tokens
    assert tokens.output_tokens == reasoning + 3
    says("</think>", "abc")
    assert ask(client)[0].usage.output_tokens_details.reasoning_tokens == 0


def test_the_clients_own_stream_builds_the_response(client, says):
    says(*SAID)
    with client.responses.stream(model="small", input="Hi", tools=[WEATHER, PING]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


def test_what_was_said_goes_back_as_it_came(client, says):
    says(*SAID)
    first, _ = ask(client, tools=[WEATHER, PING])
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "dry"} for call in calls]
    says("</think>", "It is dry.")
    items = [{"role": "user", "content": "Hello ü"}, *first.output, *results]
    second, _ = ask(client, tools=[WEATHER, PING], input=items)
    assert second.output_text == "It is dry."
    third, _ = ask(client, tools=[WEATHER, PING], input=results, previous_response_id=first.id)
    assert third.usage.input_tokens == second.usage.input_tokens


def test_a_kept_reply_is_gone_on_from(client, says):
    says("Why", "</think>", "b")
    ids = {"return_token_ids": True}
    first = client.responses.create(model="small", input="a", instructions="Not again.")
    says("</think>", "d")
    second = client.responses.create(model="small", input="c", previous_response_id=first.id, extra_body=ids)
    spelt = [{"role": "user", "content": "a"}, *first.output, {"role": "user", "content": "c"}]
    again = client.responses.create(model="small", input=spelt, extra_body=ids)
    assert second.model_extra["prompt_token_ids"] == again.model_extra["prompt_token_ids"]
    assert second.previous_response_id == first.id
    third = client.responses.create(model="small", input="e", previous_response_id=second.id)
    assert third.usage.input_tokens > second.usage.input_tokens
    assert client.responses.retrieve(first.id).output == first.output
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match=r"Response with id .* not found"):
        client.responses.retrieve(first.id)


def test_a_reply_that_is_not_kept_is_refused(client, says):
    says("</think>", "b")
    lost = client.responses.create(model="small", input="a", store=False)
    for id_ in (lost.id, "resp_1"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.responses.create(model="small", input="c", previous_response_id=id_)
        assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")
        assert "responses_mb" in caught.value.message


def test_the_length_is_limited(client, says):
    says("</think>", "one two three four")
    response, _ = ask(client, max_output_tokens=3)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"


@pytest.mark.parametrize(("fields", "thinks"), [
    ({}, True), ({"reasoning": {"effort": "high"}}, True), ({"reasoning": {"effort": "minimal"}}, False),
    ({"extra_body": {"thinking": {"type": "disabled"}}}, False),
])  # fmt: skip
def test_thinking_is_switched(client, fields, thinks):
    response, _ = ask(client, max_output_tokens=5, **fields)
    assert (response.output[0].type == "reasoning") == thinks


def test_tools_are_chosen(client):
    off = {"reasoning": {"effort": "none"}, "tools": [WEATHER, PING]}
    forced, _ = ask(client, tool_choice={"type": "function", "name": "weather"}, **off)
    assert [item.name for item in forced.output] == ["weather"]
    one, _ = ask(client, tool_choice="required", parallel_tool_calls=False, **off)
    assert [item.type for item in one.output] == ["function_call"]


@pytest.mark.parametrize(("form", "text"), [
    ({"type": "json_schema", "name": "n", "schema": {"enum": ["yes"]}}, '"yes"'), ({"type": "text"}, None),
])  # fmt: skip
def test_the_text_follows_a_schema(client, form, text):
    response, _ = ask(client, text={"format": form}, reasoning={"effort": "none"}, max_output_tokens=20)
    assert text is None or response.output_text == text


@pytest.mark.parametrize(("fields", "param"), [
    ({"input": []}, "input"), ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
    ({"input": [{"role": "assistant", "content": "I"}]}, "input"), ({"max_output_tokens": 100000}, "max_tokens"),
    ({"tools": [{"type": "web_search"}]}, "tools"), ({"tool_choice": "required"}, "tool_choice"),
    ({"background": True}, "background"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text"),
    ({"conversation": "c"}, "conversation"),
    ({"reasoning": {"effort": "low"}, "extra_body": {"thinking": {"type": "enabled"}}}, "thinking"),
])  # fmt: skip
def test_wrong_requests_name_the_field(client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**{"model": "small", "input": "a", **fields})
    assert caught.value.param == param


def test_what_fails_in_a_stream_ends_it_as_failed(client, monkeypatch):
    class Broken:
        finished = False

        def allowed(self):
            raise RuntimeError("broken")

        def accept(self, token):
            pass

    monkeypatch.setattr("arcforge_serving.server.openai.chat.turn_matcher", lambda *args: Broken)
    *_, last = client.responses.create(model="small", input="a", stream=True)
    assert last.type == "response.failed"
    assert last.response.status == "failed"
    assert "broken" in last.response.error.message


def test_the_input_is_listed(client, says):
    says("</think>", "b")
    items = [{"role": "user", "content": "a"}, {"type": "message", "role": "developer", "content": "c"},
             {"type": "function_call", "call_id": "f", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "f", "output": "d"}]  # fmt: skip
    response = client.responses.create(model="small", input=items)
    listed = list(client.responses.input_items.list(response.id, order="asc"))
    assert [item.type for item in listed] == ["message", "message", "function_call", "function_call_output"]
    assert listed[0].content[0].text == "a"
    assert len({item.id for item in listed}) == 4
    newest_first = client.responses.input_items.list(response.id, limit=3)
    assert ([item.id for item in newest_first.data], newest_first.has_more) == ([i.id for i in listed[:0:-1]], True)
    assert [item.id for item in newest_first] == [item.id for item in reversed(listed)]
    text = client.responses.create(model="small", input="a")
    (item,) = client.responses.input_items.list(text.id)
    assert (item.role, item.content[0].text) == ("user", "a")
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_1")


def test_items_of_stored_replies_can_be_referred_to(client, says):
    says("</think>", "b")
    first = client.responses.create(model="small", input="a")
    (asked,) = client.responses.input_items.list(first.id)
    references = [{"type": "item_reference", "id": item.id} for item in (asked, *first.output)]
    del references[0]["type"]  # the SDK's type lets it be left out
    further = {"role": "user", "content": "c"}
    second = client.responses.create(model="small", input=[*references, further])
    chained = client.responses.create(model="small", input=[further], previous_response_id=first.id)
    assert second.usage.input_tokens == chained.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.BadRequestError, match="there is no stored item"):
        client.responses.create(model="small", input=references)


def test_input_tokens_are_counted(client, says):
    says("</think>", "b")
    fields = {"model": "small", "input": "a", "instructions": "be", "tools": [PING]}
    response = client.responses.create(**fields)
    counted = client.responses.input_tokens.count(**fields)
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", response.usage.input_tokens)
    further = {"model": "small", "input": "c", "previous_response_id": response.id}
    assert client.responses.input_tokens.count(**further).input_tokens == (
        client.responses.create(**further).usage.input_tokens
    )


def test_the_tools_that_may_be_called_are_limited(client):
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "ping"}]}
    response, _ = ask(
        client, tools=[WEATHER, PING], tool_choice=allowed, reasoning={"effort": "none"}, max_output_tokens=60
    )
    assert {item.name for item in response.output} == {"ping"}


def test_reasoning_of_all_turns_can_be_shown(client, says):
    says("</think>", "b")
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "because"}]}
    turns = [{"role": "user", "content": "a"}, reasoning, {"role": "assistant", "content": "b"}]
    input_ = [*turns, {"role": "user", "content": "c"}]
    few, all_ = (
        client.responses.create(model="small", input=input_, reasoning={"context": context}).usage.input_tokens
        for context in ("current_turn", "all_turns")
    )
    assert few < all_


def test_tools_that_are_no_functions_are_ignored_by_name(client):
    tools = [{"type": "web_search", "external_web_access": True}, WEATHER, {"type": "namespace", "tools": [PING]}]
    given = {"model": "small", "input": "Hello", "max_output_tokens": 1}
    plain = client.responses.with_raw_response.create(**given, tools=[WEATHER])
    found = client.responses.with_raw_response.create(**given, tools=tools)
    assert found.parse().usage.input_tokens == plain.parse().usage.input_tokens
    assert found.headers["x-ignored-fields"] == "tools.namespace, tools.web_search"


# ---- what is kept ----------------------------------------------------------------------------------------------------


def reply(name, text=""):
    return {"id": name, "text": text}


def test_the_longest_unused_goes_first():
    store = ResponseStore(Memories(1000))
    for name in ("a", "b", "c"):
        store.put("", [], reply(name, "x" * 250))
    assert store.get("a", "") is not None
    store.put("", [], reply("d", "x" * 250))
    assert [store.get(name, "") is not None for name in "abcd"] == [True, False, True, True]
    assert store.memories.bytes <= 1000
    assert store.drop("a", "")
    assert not store.drop("a", "")
    assert len(store) == 2


def test_nothing_is_kept_that_is_too_large():
    store = ResponseStore(Memories(100))
    store.put("", [], reply("a", "x" * 200))
    store.put("", [], reply("b"))
    assert (store.get("a", ""), len(store)) == (None, 1)
    empty = ResponseStore(Memories(0))
    empty.put("", [], reply("a"))
    assert len(empty) == 0


def test_replies_are_their_owners():
    store = ResponseStore(Memories())
    store.put("alice", [], reply("a"))
    assert store.get("a", "bob") is None
    assert not store.drop("a", "bob")
    assert store.get("a", "alice").response == reply("a")


def test_sampling_fields_of_chats_have_their_effect(client):
    def text(**extra):
        response = client.responses.create(
            model="small", input="Hello", max_output_tokens=24, extra_body={"seed": -3, "ignore_eos": True, **extra}
        )
        return [item.content[0].text for item in response.output if item.type != "function_call"]

    plain = text()
    assert plain == text(repetition_penalty=1.0, min_p=0.0)
    assert text(repetition_penalty=50.0) != plain
    assert text(min_p=1.0) == text(top_k=1) != plain
