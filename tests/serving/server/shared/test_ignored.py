"""Fields without effect are accepted, named and counted; unknown ones are refused outside of messages and tools."""

import re

import pytest

CHAT = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
CLAUDE = {**CHAT, "model": "small"}
EXTRA = {"provider_specific_fields": {"refusal": None}, "annotations": [{"x": 1}]}
LITELLM = {"role": "assistant", "content": "b", **EXTRA}


def named(client, path, body):
    """Returns the names in the header."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return set(filter(None, answer.headers.get("x-ignored-fields", "").split(", ")))


@pytest.mark.parametrize(("path", "body", "names"), [
    ("/v1/chat/completions", CHAT, set()),
    ("/v1/chat/completions", {**CHAT, "verbosity": "low", "prediction": {"type": "content", "content": "x"}},
     {"verbosity", "prediction"}),
    ("/v1/chat/completions", {**CHAT, "modalities": ["text"]}, set()),
    ("/v1/chat/completions", {**CHAT, "messages": [*CHAT["messages"], LITELLM, *CHAT["messages"]]},
     {"messages.provider_specific_fields", "messages.annotations"}),
    ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "new one!": 1}]}]},
     {"messages.content.cache_control", "messages.content.?"}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "metadata": {"a": "b"}}, {"metadata"}),
    ("/tokenize", {"messages": [LITELLM]}, {"messages.provider_specific_fields", "messages.annotations"}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 1, "max_tool_calls": 3, "include": ["x"]},
     {"max_tool_calls", "include"}),
    ("/v1/messages", {**CLAUDE, "thread": {"type": "create"}, "messages": [
        *CHAT["messages"], {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
        *CHAT["messages"]]}, {"thread", "messages.content.data"}),
    ("/v1/messages", {**CLAUDE, "tools": [{"name": "f", "input_schema": {}, "eager_input_streaming": True,
                                           "input_examples": [{}]}]},
     {"tools.eager_input_streaming", "tools.input_examples"}),
    ("/v1/messages/count_tokens", {"model": "small", "messages": CHAT["messages"], "speed": "fast"}, {"speed"}),
])  # fmt: skip
def test_they_are_named(client, path, body, names):
    assert named(client, path, body) == names


def test_streams_name_them_too(client):
    answer = client.post("/v1/chat/completions", json={**CHAT, "verbosity": "low", "stream": True})
    assert answer.headers["x-ignored-fields"] == "verbosity"


def test_they_are_counted_by_names_that_clients_cannot_make_up(client):
    def counted():
        found = re.findall(r'ignored_fields_total\{field="([^"]*)"[^}]*\} (\S+)', client.get("/metrics").text)
        return {name: float(value) for name, value in found}

    before = counted()
    for name in ("made_up", "another"):
        body = {**CHAT, "verbosity": "low", "messages": [{"role": "user", "content": "a", name: 1}]}
        assert named(client, "/v1/chat/completions", body) == {"verbosity", f"messages.{name}"}
    after = counted()
    assert {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name)} == {
        "verbosity": 2, "messages.*": 2
    }  # fmt: skip


@pytest.mark.parametrize(("path", "body", "param"), [
    ("/v1/chat/completions", {**CHAT, "made_up": 1}, "made_up"),
    ("/v1/chat/completions", {**CHAT, "modalities": ["text", "audio"]}, "modalities"),
    ("/v1/chat/completions", {**CHAT, "web_search_options": {}}, "web_search_options"),
    ("/v1/chat/completions", {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages"),
    ("/v1/completions", {"prompt": "a", "best_of": 3}, "best_of"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/responses", {"input": "a", "conversation": "c"}, "conversation"),
])  # fmt: skip
def test_what_has_an_effect_elsewhere_is_refused_by_name(client, path, body, param):
    answer = client.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_a_continued_thread_is_refused(client):
    answer = client.post("/v1/messages", json={**CLAUDE, "thread": {"type": "continue", "previous_message_id": "m"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("thread: ")


def test_tools_reach_the_prompt_without_unknown_fields(client):
    function = {"name": "f", "description": "d", "made_up": 1}
    body = {
        "messages": CHAT["messages"],
        "tools": [{"type": "function", "function": function, "cache_control": {"a": 1}}],
    }
    answer = client.post("/tokenize", json=body)
    text = client.post("/detokenize", json={"tokens": answer.json()["tokens"]}).json()["prompt"]
    assert '{"type": "function", "function": {"name": "f", "description": "d"}}' in text
    assert set(answer.headers["x-ignored-fields"].split(", ")) == {"tools.cache_control", "tools.function.made_up"}
