"""One conversation in every dialect: the same ids go in, and the same come out."""

import pytest

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "How it is.", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
RESPONSES_TOOL = {"type": "function", **FUNCTION}
ANTHROPIC_TOOL = {"name": "weather", "description": "How it is.", "input_schema": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}


def thought(text):
    """Returns an item of reasoning."""
    return {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


CONVERSATIONS = {
    "a text": (
        {"messages": [{"role": "user", "content": "Hello ü"}]},
        {"input": "Hello ü"},
        {"messages": [{"role": "user", "content": "Hello ü"}]},
    ),
    "instructions, and no thinking": (
        {
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
            "thinking": {"type": "disabled"},
        },
        {"instructions": "Be brief.", "input": [{"role": "user", "content": "Hi"}], "reasoning": {"effort": "none"}},
        {
            "system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}],
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "thinking": {"type": "disabled"},
        },
    ),
    "earlier turns, whose reasoning is cleared": (
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b", "reasoning_content": "why"},
                {"role": "user", "content": "c"},
            ]
        },
        {
            "input": [
                {"role": "user", "content": "a"},
                thought("why"),
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                {"role": "user", "content": [{"type": "input_text", "text": "c"}]},
            ]
        },
        {
            "messages": [
                {"role": "user", "content": "a"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "why", "signature": "s"}, {"type": "text", "text": "b"},
                    ],
                },
                {"role": "user", "content": "c"},
            ]
        },
    ),
    "a call and its result": (
        {
            "messages": [
                {"role": "user", "content": "Rain?"},
                {"role": "assistant", "content": "Wait.", "reasoning_content": "Ask.", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "No."},
            ],
            "tools": [CHAT_TOOL],
        },
        {
            "input": [
                {"role": "user", "content": "Rain?"},
                thought("Ask."),
                {"role": "assistant", "content": "Wait."},
                {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
                {"type": "function_call_output", "call_id": "c1", "output": "No."},
            ],
            "tools": [RESPONSES_TOOL],
        },
        {
            "messages": [
                {"role": "user", "content": "Rain?"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Ask.", "signature": "s"},
                        {"type": "text", "text": "Wait."},
                        {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "No."}]},
            ],
            "tools": [ANTHROPIC_TOOL],
        },
    ),
}  # fmt: skip
OURS = {"return_token_ids": True, "ignore_eos": True, "seed": 5}


def split(fields, ours=("thinking",)):
    """Returns a request's fields as the `openai` client takes them."""
    extra = {key: fields[key] for key in fields if key in ours}
    return {**{key: fields[key] for key in fields if key not in ours}, "extra_body": {**OURS, **extra}}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_every_dialect_has_the_same_ids(live, claude, name):
    _, client = live
    chat, responses, messages = CONVERSATIONS[name]
    one = client.chat.completions.create(model="small", max_tokens=12, **split(chat))
    (choice,) = one.choices
    wanted = (one.model_extra["prompt_token_ids"], choice.model_extra["token_ids"])
    assert len(wanted[1]) == 12

    two = client.responses.create(model="small", max_output_tokens=12, **split(responses))
    assert (two.model_extra["prompt_token_ids"], two.model_extra["token_ids"]) == wanted
    three = claude.messages.create(model="small", max_tokens=12, extra_body=OURS, **messages)
    assert (three.model_extra["prompt_token_ids"], three.model_extra["token_ids"]) == wanted

    given = client.chat.completions.create(
        model="small", max_tokens=12, messages=chat["messages"], extra_body={**OURS, "input_ids": wanted[0]}
    )
    assert given.choices[0].model_extra["token_ids"] == wanted[1]
    completed = client.completions.create(model="small", prompt=wanted[0], max_tokens=12, extra_body=OURS)
    assert completed.choices[0].model_extra["token_ids"] == wanted[1]
    assert claude.messages.count_tokens(model="small", **messages).input_tokens == len(wanted[0])
    text = choice.message.content or ""
    assert two.output_text == text
    assert "".join(block.text for block in three.content if block.type == "text") == text


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_streams_have_them_too(live, claude, name):
    _, client = live
    chat, responses, messages = CONVERSATIONS[name]
    chunks = list(client.chat.completions.create(model="small", max_tokens=12, stream=True, **split(chat)))
    wanted = [id_ for chunk in chunks for id_ in chunk.choices[0].model_extra.get("token_ids", ())]
    assert len(wanted) == 12
    *_, done = client.responses.create(model="small", max_output_tokens=12, stream=True, **split(responses))
    assert done.response.model_extra["token_ids"] == wanted
    assert done.response.model_extra["prompt_token_ids"] == chunks[0].model_extra["prompt_token_ids"]
    start, *_, delta, _ = claude.messages.create(model="small", max_tokens=12, stream=True, extra_body=OURS, **messages)
    assert delta.model_extra["token_ids"] == wanted
    assert start.message.model_extra["prompt_token_ids"] == chunks[0].model_extra["prompt_token_ids"]
