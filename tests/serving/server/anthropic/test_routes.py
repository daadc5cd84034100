"""`/v1/messages` through the `anthropic` client. What the model says is scripted by a grammar."""

import anthropic
import httpx
import pytest

from arcforge_serving.configs import PagedEngineConfig, ServeConfig
from arcforge_serving.server.gate.auth import Keys, load_keys
from arcforge_serving.server.gate.guard import Guard

HELLO = [{"role": "user", "content": "Hello ü"}]
WEATHER = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 8}},
        "required": ["city"],
    },
}
PING = {"name": "ping", "input_schema": {"type": "object", "properties": {}}}
SAID = ["Ask é.", "</think>", "Sure 😀.", "<tool_call>", "weather", "<arg_key>", "city", "</arg_key>", "<arg_value>",
        "Zürich", "</arg_value>", "</tool_call>", "<tool_call>", "ping", "</tool_call>"]  # fmt: skip


def ask(claude, **fields):
    """Returns the whole message, which must be what its stream builds, but for ids."""
    fields = {"model": "small", "messages": HELLO, "max_tokens": 200, **fields}
    extra = {"seed": 3, **fields.pop("extra_body", {})}
    whole = claude.messages.create(**fields, extra_body=extra)
    with claude.messages.stream(**fields, extra_body=extra) as stream:
        events = list(stream)
        built = stream.get_final_message()
    assert [shown(block) for block in built.content] == [shown(block) for block in whole.content]
    assert (built.stop_reason, built.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert built.usage.output_tokens == whole.usage.output_tokens
    assert total(built.usage) == total(whole.usage)
    return whole, events


def shown(block):
    return block.model_dump(exclude={"id", "parsed_output"})


def total(usage):
    return usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens


def test_thinking_text_and_calls_are_blocks(claude, says):
    says(*SAID)
    message, events = ask(claude, tools=[WEATHER, PING])
    thinking, text, first, second = message.content
    assert (thinking.type, thinking.thinking) == ("thinking", "Ask é.")
    assert thinking.signature
    assert (text.type, text.text) == ("text", "Sure 😀.")
    assert (first.type, first.name, first.input) == ("tool_use", "weather", {"city": "Zürich"})
    assert (second.name, second.input) == ("ping", {})
    assert first.id != second.id
    assert (message.stop_reason, message.role, message.type) == ("tool_use", "assistant", "message")
    assert message.id.startswith("msg_")
    kinds = [event.type for event in events]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4


def test_what_was_said_goes_back_as_it_came(claude, says):
    """An agent's loop: the content of a reply is the next request's, with the results."""
    says(*SAID)
    first, _ = ask(claude, tools=[WEATHER, PING])
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "dry"}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    messages = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    says("</think>", "It is dry.")
    second, _ = ask(claude, tools=[WEATHER, PING], messages=messages)
    assert [block.text for block in second.content] == ["It is dry."]
    assert second.stop_reason == "end_turn"
    assert total(second.usage) > total(first.usage)
    assert second.usage.cache_read_input_tokens > 0


def test_prompts_show_what_was_thought_and_called(live, claude):
    state, _ = live
    called = [
        {"type": "thinking", "thinking": "Ask.", "signature": "x"},
        {"type": "tool_use", "id": "1", "name": "ping", "input": {"a": 1}},
    ]
    result = {"type": "tool_result", "tool_use_id": "1", "content": "pong", "is_error": True}
    messages = [
        *HELLO,
        {"role": "assistant", "content": called},
        {"role": "user", "content": [result, {"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]},
    ]
    answer = claude.messages.create(
        model="small", system="Sys", messages=messages, max_tokens=1, extra_body={"return_token_ids": True}
    )
    text = state.tokenizer.decode(answer.model_extra["prompt_token_ids"])
    assert text.startswith("[gMASK]<sop><|system|>Sys<|user|>Hello ü<|assistant|>")
    assert "<tool_call>ping<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>" in text
    assert text.endswith("<tool_response>pong</tool_response><|user|>And now?<|assistant|><think>")


def test_system_messages_for_one_turn_leave_the_prompt_with_the_next(live, claude):
    state, _ = live

    def prompt(*messages):
        fields = {"model": "small", "max_tokens": 1, "extra_body": {"return_token_ids": True}}
        reply = claude.beta.messages.create(messages=list(messages), **fields)
        return state.tokenizer.decode(reply.model_extra["prompt_token_ids"])

    once = {"role": "system", "content": "Be brief.", "clear_at": "next_user_message"}
    always = {**once, "clear_at": "never"}
    turns = ({"role": "assistant", "content": "a"}, *HELLO)
    assert "Be brief." in prompt(*HELLO, once)
    assert "Be brief." not in prompt(*HELLO, once, *turns)
    assert "Be brief." in prompt(*HELLO, always, *turns)
    with pytest.raises(anthropic.BadRequestError, match="output_config"):
        prompt(*HELLO, {"role": "system", "content": "a", "output_config": {"effort": "low"}})


def test_blocks_that_cannot_be_read_are_named_with_those_that_can(claude):
    source = {"type": "base64", "media_type": "image/png", "data": "eA=="}
    with pytest.raises(anthropic.BadRequestError, match="'text', 'tool_result', not 'image'"):
        ask(claude, messages=[{"role": "user", "content": [{"type": "image", "source": source}]}])


def test_stop_sequences_are_named(claude, says):
    says("</think>", "one, two, three")
    message, _ = ask(claude, stop_sequences=["nothing", ", t"])
    assert [block.text for block in message.content] == ["one"]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ", t")
    message, _ = ask(claude)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)


def test_the_length_is_limited(claude, says):
    says("</think>", "one two three four")
    message, _ = ask(claude, max_tokens=3)
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 3)


@pytest.mark.parametrize("cut", range(2, 40, 3))
def test_calls_that_are_cut_off_still_have_an_object(claude, says, cut):
    says("</think>", *SAID[3:])
    message, _ = ask(claude, tools=[WEATHER, PING], max_tokens=cut)
    assert all(isinstance(block.input, dict) for block in message.content if block.type == "tool_use")


def test_thinking_is_switched(claude):
    on, _ = ask(claude, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=5)
    assert on.content[0].type == "thinking"
    off, _ = ask(claude, thinking={"type": "disabled"}, max_tokens=5)
    assert off.content[0].type == "text"


def test_tools_are_chosen(claude):
    forced, _ = ask(claude, tools=[WEATHER, PING], tool_choice={"type": "tool", "name": "weather"},
                    thinking={"type": "disabled"})  # fmt: skip
    (call,) = forced.content
    assert call.name == "weather"
    assert set(call.input) == {"city"}
    one, _ = ask(claude, tools=[WEATHER, PING], tool_choice={"type": "any", "disable_parallel_tool_use": True},
                 thinking={"type": "disabled"})  # fmt: skip
    assert [block.type for block in one.content] == ["tool_use"]


YES = {"type": "json_schema", "schema": {"enum": ["yes"]}}


@pytest.mark.parametrize("fields", [{"output_config": {"format": YES}}, {"extra_body": {"output_format": YES}}])
def test_the_text_follows_a_schema(claude, fields):
    message, _ = ask(claude, thinking={"type": "disabled"}, **fields)
    assert message.content[0].text == '"yes"'


def test_fields_that_say_nothing_here_are_taken(claude, says):
    says("</think>", "b")
    cached = {"cache_control": {"type": "ephemeral"}}
    block = {"type": "text", "text": "a", **cached}
    fields = {"system": [block], "tools": [{**PING, **cached}], "extra_body": cached, "metadata": {"user_id": "u"}}
    message, _ = ask(claude, messages=[{"role": "user", "content": [block]}], **fields)
    assert message.content[0].text == "b"


@pytest.mark.parametrize(("fields", "said"), [
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages: "),
    ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "messages: the last one must be the user's"),
    ({"messages": []}, "messages: "),
    ({"max_tokens": 0}, "max_tokens: "),
    ({"max_tokens": 5000}, "input length and `max_tokens` exceed context limit: "),
    ({"tool_choice": {"type": "any"}}, "tool_choice: there are no tools"),
    ({"tool_choice": {"type": "tool"}, "tools": [PING]}, "tool_choice: needs the name"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools: "),
    ({"output_config": {"format": YES}, "extra_body": {"output_format": YES}}, "output_format: output_config"),
    ({"extra_body": {"container": "c"}}, "container: this server runs no code"),
])  # fmt: skip
def test_wrong_requests_have_anthropics_shape(claude, fields, said):
    with pytest.raises(anthropic.BadRequestError) as caught:
        claude.messages.create(**{"model": "small", "messages": HELLO, "max_tokens": 5, **fields})
    body = caught.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(said)


def test_an_unknown_model_is_not_found(claude):
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="claude", messages=HELLO, max_tokens=5)
    assert caught.value.body["error"]["type"] == "not_found_error"


def test_what_fails_in_a_stream_is_an_error_event(claude, monkeypatch):

    class Broken:
        finished = False

        def allowed(self):
            raise RuntimeError("broken")

        def accept(self, token):
            pass

    monkeypatch.setattr("arcforge_serving.server.openai.chat.turn_matcher", lambda *args: Broken)
    with pytest.raises(anthropic.APIStatusError) as caught:
        list(claude.messages.create(model="small", messages=HELLO, max_tokens=5, stream=True))
    assert caught.value.body["error"]["type"] == "api_error"
    with pytest.raises(anthropic.InternalServerError) as caught:
        claude.messages.create(model="small", messages=HELLO, max_tokens=5)
    assert caught.value.body["type"] == "error"


def test_keys_come_in_anthropics_header_too(live):
    state, client = live
    address = str(client.base_url).removesuffix("/v1/")
    keys = load_keys(ServeConfig(PagedEngineConfig()), {"ARCFORGE_SERVE_KEYS": "users-key"})
    state.guard = Guard(keys)
    try:
        with anthropic.Anthropic(base_url=address, api_key="users-key", max_retries=0) as known:
            assert known.messages.create(model="small", messages=HELLO, max_tokens=1).usage.output_tokens == 1
        with (
            anthropic.Anthropic(base_url=address, api_key="another-key", max_retries=0) as unknown,
            pytest.raises(anthropic.AuthenticationError) as caught,
        ):
            unknown.messages.create(model="small", messages=HELLO, max_tokens=1)
        assert caught.value.body["error"]["type"] == "authentication_error"
        assert httpx.get(f"{address}/v1/models", headers={"x-api-key": "users-key"}).status_code == 200
        assert httpx.get(f"{address}/v1/models", headers={"x-api-key": "nobodys-key"}).status_code == 401
    finally:
        state.guard = Guard(Keys())
