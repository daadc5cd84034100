"""Chats through the `openai` client. What the model says is scripted by a grammar that lets nothing else through."""

import json

import openai
import pytest

from arcforge_core.configs import SimpleEngineConfig
from arcforge_core.contracts.engine import SamplingParams
from arcforge_core.generation.engine import SimpleEngine

HELLO = [{"role": "user", "content": "Hello ü"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "maximum": 99}},
            "required": ["city"],
        },
    },
}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
SAID = ["<think>", "Ask é.", "</think>", "Sure 😀.", "<tool_call>", "weather", "<arg_key>", "city", "</arg_key>",
        "<arg_value>", "Zürich", "</arg_value>", "<arg_key>", "days", "</arg_key>", "<arg_value>", "2", "</arg_value>",
        "</tool_call>", "<tool_call>", "ping", "</tool_call>"]  # fmt: skip


def script(*pieces):
    """Returns a grammar of one text; a tag means its special token."""
    return "start: " + " ".join(p if p.startswith("<") else json.dumps(p, ensure_ascii=False) for p in pieces)


def open_turn(tokenizer):
    """Returns a prompt that leaves it to the model whether it thinks."""
    return tokenizer.encode("[gMASK]<sop><|user|>Hi<|assistant|>", allow_special=True)


def say(client, **fields):
    """Returns the whole answer and the sum of its stream, which must be alike but for the ids of calls."""
    extra = {key: fields.pop(key) for key in list(fields) if key not in OPENAI}
    fields.setdefault("messages", HELLO)
    whole = client.chat.completions.create(model="small", extra_body=extra, seed=3, **fields)
    chunks = list(
        client.chat.completions.create(
            model="small", extra_body=extra, seed=3, stream=True, stream_options={"include_usage": True}, **fields
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    for choice in whole.choices:
        parts = [chunk.choices[0] for chunk in chunks[:-1] if chunk.choices[0].index == choice.index]
        assert [part.delta.role for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
        assert "".join(part.delta.content or "" for part in parts) == (choice.message.content or "")
        assert joined(parts, "reasoning_content") == getattr(choice.message, "reasoning_content", "")
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [choice.finish_reason]
        assert calls_of(parts) == [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()]
        if choice.logprobs is not None:
            assert [e for part in parts if part.logprobs for e in part.logprobs.content] == choice.logprobs.content
        ids = [id_ for part in parts for id_ in (part.model_extra or {}).get("token_ids", ())]
        assert ids == (choice.model_extra or {}).get("token_ids", [])
    return whole, chunks


OPENAI = ("messages", "tools", "tool_choice", "response_format", "max_tokens", "max_completion_tokens", "logprobs",
          "top_logprobs", "n", "stop", "temperature", "parallel_tool_calls", "logit_bias", "user")  # fmt: skip


def answer_of(chat, **fields):
    """Returns the whole answer alone."""
    extra = {key: fields.pop(key) for key in list(fields) if key not in OPENAI}
    return chat.chat.completions.create(**{"model": "small", "messages": HELLO, "seed": 3, **fields}, extra_body=extra)


def joined(parts, field):
    return "".join((part.delta.model_extra or {}).get(field, "") for part in parts)


def calls_of(parts):
    """Returns (name, arguments) of calls that came in deltas."""
    calls = []
    for call in (call for part in parts for call in part.delta.tool_calls or ()):
        if call.id is not None:
            assert call.type == "function"
            assert call.id.startswith("call_")
            assert call.index == len(calls)
            calls.append([call.function.name, ""])
        calls[call.index][1] += call.function.arguments
    return [tuple(call) for call in calls]


@pytest.fixture(scope="module")
def chat(live):
    return live[1]


def test_both_names_of_the_most_tokens_bind(chat):
    for fields in ({"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}):
        answer = answer_of(chat, temperature=0, ignore_eos=True, **fields)
        assert answer.usage.completion_tokens == 3


def test_greedy_tokens_are_those_of_the_model(live):
    state, client = live
    answer, _ = say(client, temperature=0, max_tokens=12, return_token_ids=True)
    prompt = answer.prompt_token_ids
    assert state.tokenizer.decode(prompt) == "[gMASK]<sop><|user|>Hello ü<|assistant|><think>"
    params = SamplingParams(max_new_tokens=12, temperature=0, stop_token_ids=state.template.stop_ids)
    (wanted,) = SimpleEngine(SimpleEngineConfig(), state.engine.model).generate([prompt], params)
    (choice,) = answer.choices
    assert choice.token_ids == wanted.token_ids
    parsed = state.template.parse(wanted.token_ids, prompt).message
    assert (choice.message.content, choice.message.reasoning_content) == (parsed.content, parsed.reasoning)
    assert choice.weight_versions == [[0, 12]]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 12)


def test_reasoning_content_and_calls_come_apart(live):
    state, chat = live
    answer, chunks = say(
        chat, messages=[], prompt_token_ids=open_turn(state.tokenizer), guided_grammar=script(*SAID), max_tokens=200
    )
    (choice,) = answer.choices
    assert choice.message.reasoning_content == "Ask é."
    assert choice.message.content == "Sure 😀."
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]
    assert calls == [("weather", {"city": "Zürich", "days": 2}), ("ping", {})]
    assert len({call.id for call in choice.message.tool_calls}) == 2
    assert choice.finish_reason == "tool_calls"
    assert all("\ufffd" not in str(chunk) for chunk in chunks)
    assert len(chunks) > 10


@pytest.mark.parametrize(
    "off", [{"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": {"type": "disabled"}}]
)
def test_thinking_is_switched_off(chat, off):
    answer, _ = say(chat, max_tokens=5, return_token_ids=True, **off)
    assert not hasattr(answer.choices[0].message, "reasoning_content")


@pytest.mark.parametrize(
    "kept", [{"chat_template_kwargs": {"clear_thinking": False}}, {"thinking": {"clear_thinking": False}}]
)
def test_earlier_reasoning_is_cleared_or_kept(live, kept):
    state, chat = live
    turn = {"role": "assistant", "content": "b", "reasoning_content": "why"}
    messages = [*HELLO, turn, {"role": "user", "content": "c"}]
    texts = [
        state.tokenizer.decode(
            say(chat, messages=messages, max_tokens=1, return_token_ids=True, **o)[0].prompt_token_ids
        )
        for o in ({}, kept)
    ]
    assert ["why" in text for text in texts] == [False, True]


def test_empty_fields_of_other_servers_replies_may_be_sent_back(chat):
    turn = {"role": "assistant", "content": "b", "annotations": [], "refusal": None, "audio": {}}
    reply = chat.chat.completions.with_raw_response.create(model="small", messages=[*HELLO, turn, *HELLO], max_tokens=1)
    assert "x-ignored-fields" not in reply.headers


def test_replies_can_be_sent_back(live):
    state, chat = live
    answer, _ = say(
        chat, messages=[], prompt_token_ids=open_turn(state.tokenizer), guided_grammar=script(*SAID), max_tokens=200
    )
    message = answer.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls]
    again, _ = say(
        chat, messages=[*HELLO, message, *results], tools=[WEATHER, PING], max_tokens=1, return_token_ids=True
    )
    text = state.tokenizer.decode(again.prompt_token_ids)
    assert "<think>Ask é.</think>Sure 😀.<tool_call>weather<arg_key>city</arg_key><arg_value>Zürich</arg_value>" in text


def test_log_probs_have_one_entry_per_token(live):
    state, chat = live
    fields = {"prompt_token_ids": open_turn(state.tokenizer), "guided_grammar": script(*SAID), "max_tokens": 200}
    answer, _ = say(chat, messages=[], logprobs=True, top_logprobs=2, return_token_ids=True, **fields)
    (choice,) = answer.choices
    entries = choice.logprobs.content
    assert len(entries) == len(choice.token_ids) == answer.usage.completion_tokens
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "".join(SAID)
    (wanted,) = state.engine.generate(
        [answer.prompt_token_ids],
        SamplingParams(max_new_tokens=1, temperature=0, top_logprobs=2),
    )
    shown = [(bytes(top.bytes), top.logprob) for top in entries[0].top_logprobs]
    tops = [
        (state.tokenizer.token_bytes(id_), pytest.approx(logprob, abs=1e-5)) for id_, logprob in wanted.top_logprobs[0]
    ]
    assert shown == tops


@pytest.mark.parametrize("stop", ["Ask é.", "é", "k", "😀", "</think>", "Zür", "Sure 😀.<tool_call>", "ice"])
def test_stop_strings_cut_whatever_they_hit(live, stop):
    state, chat = live
    prompt, grammar = open_turn(state.tokenizer), script(*SAID)
    answer, _ = say(
        chat, messages=[], prompt_token_ids=prompt, guided_grammar=grammar, max_tokens=200, stop=[stop, "never"]
    )
    (choice,) = answer.choices
    parser = state.template.parser(prompt)
    parser.feed(state.tokenizer.encode("".join(SAID).partition(stop)[0], allow_special=True))
    parser.finish()
    wanted = parser.parsed.message
    assert (choice.message.content or "") == wanted.content
    assert getattr(choice.message, "reasoning_content", "") == wanted.reasoning
    assert len(choice.message.tool_calls or ()) == len(wanted.tool_calls)
    assert choice.finish_reason == ("tool_calls" if wanted.tool_calls else "stop")


def test_stop_tokens_end_and_are_not_shown(live):
    state, chat = live
    fields = {"prompt_token_ids": open_turn(state.tokenizer), "guided_grammar": script("ab", "<eop>", "cd")}
    end = state.tokenizer.special["<eop>"]
    answer, _ = say(chat, messages=[], max_tokens=20, **fields)
    assert answer.choices[0].message.content == "ab<eop>cd"
    answer, _ = say(chat, messages=[], max_tokens=20, stop_token_ids=[end], return_token_ids=True, **fields)
    assert answer.choices[0].message.content == "ab"
    assert answer.choices[0].token_ids[-1] == end


# ---- tools -----------------------------------------------------------------------------------------------------------


def is_weather(call):
    arguments = json.loads(call.function.arguments)
    assert len(arguments["city"]) <= 8
    assert isinstance(arguments.get("days", 0), int)
    assert set(arguments) <= {"city", "days"}
    return call.function.name == "weather"


@pytest.mark.parametrize("thinking", ["disabled", "enabled"])
def test_a_named_tool_is_called_once(live, thinking):
    state, chat = live
    bias = {str(state.tokenizer.special["</think>"]): 5}  # or this model would think for ever
    choice = {"type": "function", "function": {"name": "weather"}}
    answer, _ = say(
        chat,
        tools=[PING, WEATHER],
        tool_choice=choice,
        thinking={"type": thinking},
        logit_bias=bias,
        n=4,
        max_tokens=200,
    )
    done = [choice for choice in answer.choices if choice.finish_reason == "tool_calls"]
    assert len(done) >= 2
    for choice in done:
        (call,) = choice.message.tool_calls
        assert is_weather(call)
        assert choice.message.content is None
    assert any(hasattr(choice.message, "reasoning_content") for choice in done) == (thinking == "enabled")


def test_required_calls_are_of_any_tool_and_number(live):
    state, chat = live
    fields = {"tools": [PING, WEATHER], "tool_choice": "required", "thinking": {"type": "disabled"}, "temperature": 5.0}
    fields["logit_bias"] = biased(state, tool_call=6)  # another one, rather than the end
    answer, _ = say(chat, **fields, n=8, max_tokens=50)
    calls = [choice.message.tool_calls or () for choice in answer.choices]
    assert {call.function.name for found in calls for call in found} == {"ping", "weather"}
    assert max(map(len, calls)) > 1
    calls = [choice.message.tool_calls for choice in answer.choices if choice.finish_reason == "tool_calls"]
    assert all(call.function.arguments == "{}" or is_weather(call) for found in calls for call in found)
    answer = answer_of(chat, **fields, n=4, max_tokens=40, parallel_tool_calls=False)
    assert {len(c.message.tool_calls) for c in answer.choices if c.finish_reason == "tool_calls"} == {1}


def biased(state, **weights):
    """Returns biases towards tags."""
    return {str(state.tokenizer.special[f"<{name.replace('end_', '/')}>"]): weight for name, weight in weights.items()}


def test_strict_tools_are_called_as_their_schema_wants(live):
    state, chat = live
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    bias = biased(state, tool_call=6, end_tool_call=4)
    fields = {"thinking": {"type": "disabled"}, "n": 6, "max_tokens": 40, "logit_bias": bias}
    answer = answer_of(chat, tools=[strict], **fields)
    calls = [c.message.tool_calls[0] for c in answer.choices if c.message.tool_calls]
    complete = [call for call in calls if json.loads(call.function.arguments)]
    assert len(complete) >= 2
    assert all(map(is_weather, complete))
    assert any(choice.message.content for choice in answer.choices)  # text is free
    loose = answer_of(chat, tools=[WEATHER], **fields)
    names = {call.function.name for c in loose.choices for call in c.message.tool_calls or ()}
    assert names - {"weather"}


def test_at_most_one_call_without_parallel_ones(live):
    state, chat = live
    bias = biased(state, tool_call=7, end_tool_call=4)
    fields = {"thinking": {"type": "disabled"}, "n": 6, "max_tokens": 40, "logit_bias": bias}
    strict = {"type": "function", "function": {**PING["function"], "strict": True}}
    for tool in (PING, strict):
        fields["tools"] = [tool]
        many = answer_of(chat, **fields)
        assert max(len(c.message.tool_calls or ()) for c in many.choices) > 1
        one = answer_of(chat, **fields, parallel_tool_calls=False)
        assert max(len(c.message.tool_calls or ()) for c in one.choices) == 1


def test_no_calls_with_none(live):
    state, chat = live
    strict = {"type": "function", "function": {**PING["function"], "strict": True}}
    fields = {"tools": [strict], "thinking": {"type": "disabled"}, "n": 2, "max_tokens": 20}
    bias = biased(state, tool_call=9)
    some, _ = say(chat, **fields, logit_bias=bias, return_token_ids=True)
    assert any(choice.message.tool_calls for choice in some.choices)
    none, _ = say(chat, **fields, logit_bias=bias, tool_choice="none", return_token_ids=True)
    assert not any(choice.message.tool_calls for choice in none.choices)
    assert "ping" in state.tokenizer.decode(some.prompt_token_ids)
    assert "ping" not in state.tokenizer.decode(none.prompt_token_ids)


# ---- structured output -----------------------------------------------------------------------------------------------

POINT = {
    "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False
}  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "check"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": POINT}}}, "point"),
        ({"guided_json": POINT}, "point"),
        ({"guided_json": json.dumps(POINT)}, "point"),
        ({"structured_outputs": {"json": POINT}}, "point"),
        ({"response_format": {"type": "json_object"}}, "object"),
        ({"structured_outputs": {"json_object": True}}, "object"),
        ({"guided_regex": "[ab]{3}"}, "regex"),
        ({"structured_outputs": {"regex": "[ab]{3}", "json_object": False}}, "regex"),
        ({"guided_choice": ["aab", "abb"]}, "regex"),
        ({"structured_outputs": {"choice": ["aab", "abb"]}}, "regex"),
        ({"guided_grammar": 'start: "a" ("ab" | "bb")'}, "regex"),
        ({"structured_outputs": {"grammar": 'start: "a" ("ab" | "bb")'}}, "regex"),
    ],
)
def test_answers_have_the_structure(live, fields, check):
    state, chat = live
    bias = biased(state, end_think=5) | {str(state.tokenizer.encode("}")[0]): 9}
    for kind in ("disabled", "enabled") if "structured_outputs" in fields else ("disabled",):
        answer = answer_of(chat, **fields, thinking={"type": kind}, logit_bias=bias, n=3, max_tokens=60)
        done = [choice.message for choice in answer.choices if choice.finish_reason == "stop"]
        assert done
        assert any(hasattr(message, "reasoning_content") for message in done) == (kind == "enabled")
        for text in (message.content for message in done):
            if check == "regex":
                assert len(text) == 3
                assert set(text) <= {"a", "b"}
                continue
            value = json.loads(text)
            assert isinstance(value, dict)
            assert check == "object" or list(value) == ["x"]


def test_a_response_format_of_text_is_free(chat):
    answer, _ = say(chat, response_format={"type": "text"}, max_tokens=5)
    assert answer.choices[0].finish_reason == "length"


# ---- refusals --------------------------------------------------------------------------------------------------------

FORCED = {"type": "function", "function": {"name": "rain"}}
JSON = {"response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [5]}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages[0].role"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "messages"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [PING], "tool_choice": FORCED}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({**JSON, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_json": {"type": "integer", "minimum": 3, "maximum": 2}}, "guided_json"),
        ({"guided_json": {"type": "nothing"}}, "guided_json"),
        ({"guided_json": {"description": "\ud800"}}, "guided_json"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": "\ud800"}}}]}, "messages"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": 3}, "logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 2000}, "max_tokens"),
        ({"prompt_token_ids": [1]}, "prompt_token_ids"),
        ({"messages": [], "prompt_token_ids": []}, "prompt_token_ids"),
        ({"messages": [], "prompt_token_ids": [5000]}, "prompt_token_ids"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "enable_thinking"),
        ({"chat_template_kwargs": {"depth": 1}}, "chat_template_kwargs"),
        ({"thinking": {"type": "on"}}, "thinking"),
        ({"functions": []}, "functions"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)  # fmt: skip
def test_bad_requests_are_refused_by_name(live, fields, param):
    _, chat = live
    body = json.dumps({"messages": HELLO, "model": "small", **fields})
    reply = chat._client.post(
        chat.base_url.join("chat/completions"), content=body, headers={"content-type": "application/json"}
    )
    assert reply.status_code == 400, reply.text
    assert reply.json()["error"]["param"] == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
def test_parts_that_are_no_text_are_refused_by_their_type(chat, kind):
    content = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    with pytest.raises(openai.BadRequestError, match=f"reads and writes text only, no {kind}"):
        chat.chat.completions.create(model="small", messages=[{"role": "user", "content": content}])


def test_what_is_nested_too_deeply_is_refused(chat):
    for depth in (300, 900, 3000):
        schema = '{"items":' * depth + "{}" + "}" * depth
        for body in (
            f'"guided_json":{schema}',
            f'"tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]',
        ):
            reply = chat._client.post(
                chat.base_url.join("chat/completions"),
                content=f'{{"messages":[{{"role":"user","content":"a"}}],"max_tokens":1,{body}}}',
                headers={"content-type": "application/json"},
            )
            assert reply.status_code in (200, 400), (depth, reply.text)


def test_the_client_knows_our_errors(chat):
    with pytest.raises(openai.BadRequestError, match=r"maximum context length is 1024 tokens\. However, ") as caught:
        chat.chat.completions.create(model="small", messages=HELLO, max_tokens=5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match="'small'"):
        chat.chat.completions.create(model="other", messages=HELLO)


def test_reasoning_is_hidden_and_counted(live):
    state, chat = live
    said = {"messages": [], "prompt_token_ids": open_turn(state.tokenizer), "guided_grammar": script(*SAID)}
    shown, hidden = (say(chat, **said, max_tokens=200, include_reasoning=which)[0] for which in (True, False))
    assert shown.choices[0].message.reasoning_content == "Ask é."
    assert not hasattr(hidden.choices[0].message, "reasoning_content")
    assert hidden.choices[0].message.content == shown.choices[0].message.content == "Sure 😀."
    reasoning = hidden.usage.completion_tokens_details.reasoning_tokens
    assert 0 < reasoning < hidden.usage.completion_tokens == shown.usage.completion_tokens
    assert shown.usage.completion_tokens_details.reasoning_tokens == reasoning


def test_echo_is_ignored_by_name(chat):
    reply = chat.chat.completions.with_raw_response.create(
        model="small", messages=HELLO, max_tokens=1, extra_body={"echo": True}
    )
    assert reply.headers["x-ignored-fields"] == "echo"


def test_tokens_of_log_probs_as_ids(chat):
    answer, _ = say(
        chat, max_tokens=4, logprobs=True, top_logprobs=2, return_token_ids=True, return_tokens_as_token_ids=True
    )
    (choice,) = answer.choices
    assert [entry.token for entry in choice.logprobs.content] == [f"token_id:{id_}" for id_ in choice.token_ids]
    assert all(top.token.startswith("token_id:") for entry in choice.logprobs.content for top in entry.top_logprobs)


@pytest.mark.parametrize(("bias", "said"), [
    ({"one": 1, "two": 2}, "keys must be token ids, not 'one', 'two'"), ({"999999": 1}, "not 999999"),
])  # fmt: skip
def test_wrong_biases_are_named(chat, bias, said):
    with pytest.raises(openai.BadRequestError, match=said) as caught:
        chat.chat.completions.create(model="small", messages=HELLO, logit_bias=bias)
    assert caught.value.param == "logit_bias"
